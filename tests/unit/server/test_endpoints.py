"""Every request that is served has a row that says what it touches, and is authorized before its handler runs."""

import inspect
from collections.abc import Callable
from typing import Any, cast, get_type_hints

import pytest

from latermq.errors import InvalidParameter, MalformedRequest, NoPermission
from latermq.message.names import TIMER_TOPIC, retry_topic
from latermq.protocol.remoting.clients import ConsumerData, HeartbeatData, LockBatchRequest, SubscriptionData
from latermq.protocol.remoting.codes import Request, Response
from latermq.protocol.remoting.frames import Command, FrameReader, encode_frame, encode_response
from latermq.protocol.remoting.json_body import decode_body, encode_body
from latermq.protocol.remoting.queues import MessageQueue
from latermq.protocol.remoting.rows import encode_rows
from latermq.server.broker.composition import broker_service, pipeline_requests
from latermq.server.remoting.access import GET, PUB, SUB, Access, Action, Kind, on_topic
from latermq.server.remoting.connection import Connection
from latermq.server.remoting.endpoints import BodyLimit, Endpoint, RequestTable
from latermq.server.remoting.sliced_requests import Slices
from tests.support.admins import Scene
from tests.support.rows import Row, batch_of
from tests.support.served_requests import broker_endpoints, name_server_endpoints
from tests.unit.broker.test_send_lane import Way, send_frame

NOBODY = cast(Connection, None)
# They parse an expression, or end a wait of the same connection, and touch nothing else.
OPEN_CODES = {Request.CHECK_CLIENT_CONFIG, Request.CANCEL_POP}
SERVED = [*name_server_endpoints(), *(one for some in broker_endpoints().values() for one in some)]
BARE = [one for subject, some in broker_endpoints().items() if subject != "producers and consumers" for one in some]


def request(code: int, body: bytes = b"", **fields: object) -> Command:
    texts = {name: str(value) for name, value in fields.items()}
    [command] = FrameReader().feed(encode_frame(code, 7, fields=texts, body=body))
    return command


def touched(endpoint: Endpoint, command: Command) -> set[Access]:
    content: Any = None
    if endpoint.header is not None:
        content = command.header(endpoint.header)
    elif endpoint.body is not None:
        content = decode_body(command.body, endpoint.body)
    return set(endpoint.accesses(command, content))


def topic(name: str, *actions: Action) -> Access:
    return Access(Kind.TOPIC, name, actions)


def group(name: str, *actions: Action) -> Access:
    return Access(Kind.GROUP, name, actions)


CLUSTER_GET = Access(Kind.CLUSTER, "", (GET,))


@pytest.mark.parametrize("endpoint", SERVED, ids=lambda endpoint: endpoint.code.name)
def test_every_row_says_what_its_request_touches(endpoint: Endpoint) -> None:
    assert all(rule.actions for rule in endpoint.access)
    assert bool(endpoint.access) == (endpoint.code not in OPEN_CODES)


@pytest.mark.parametrize("endpoint", BARE, ids=lambda endpoint: endpoint.code.name)
def test_every_handler_takes_what_its_row_decodes(endpoint: Endpoint) -> None:
    hints = get_type_hints(endpoint.handler)
    content = hints[list(inspect.signature(endpoint.handler).parameters)[2]]
    assert content == (endpoint.header or endpoint.body or type(None))
    is_sliced = inspect.isgeneratorfunction(inspect.unwrap(endpoint.handler))
    assert is_sliced == (endpoint.slices is not None)


def test_a_request_has_one_row() -> None:
    table = RequestTable(1_000)
    one = Endpoint(Request.GET_MAX_OFFSET, lambda *_: b"", (on_topic("topic", GET),))
    table.add([one])
    with pytest.raises(AssertionError, match="GET_MAX_OFFSET has two rows"):
        table.add([one])


@pytest.mark.parametrize(
    ("row", "length", "error"),
    [
        ({}, 1_001, MalformedRequest),
        ({"stores": True}, 100_000, None),
        ({"body_limit": BodyLimit(10, "broker.max_heartbeat", InvalidParameter)}, 11, InvalidParameter),
        ({"body_limit": BodyLimit(2_000, "server.max_frame")}, 2_000, None),
    ],
)
def test_a_body_is_as_long_as_its_row_allows(row: dict[str, Any], length: int, error: type[Exception] | None) -> None:
    table = RequestTable(1_000)
    table.add([Endpoint(Request.GET_MAX_OFFSET, lambda *_: b"reply", (), **row)])
    command = request(Request.GET_MAX_OFFSET, b"x" * length)
    if error is None:
        assert table.serve(NOBODY, command) == b"reply"
    else:
        with pytest.raises(error, match="the limit is"):
            table.serve(NOBODY, command)


def test_a_row_with_slices_needs_who_takes_them() -> None:
    with pytest.raises(AssertionError, match="needs slices"):
        RequestTable(1_000).add([Endpoint(Request.GET_MAX_OFFSET, lambda *_: b"", (), slices=Slices.ALL)])


def test_the_hook_is_asked_before_the_handler_with_what_was_decoded() -> None:
    seen: list[tuple[str, object]] = []

    def handler(_: Connection, command: Command, content: object) -> bytes:
        seen.append(("handler", content))
        return encode_response(command)

    def authorize(_: Connection, endpoint: Endpoint, __: Command, content: object) -> None:
        seen.append(("hook", content))

    table = RequestTable(1_000)
    table.add([Endpoint(Request.HEART_BEAT, handler, (), body=HeartbeatData)])
    table.authorize = authorize
    table.serve(NOBODY, request(Request.HEART_BEAT, encode_body(HeartbeatData(clientID="c"))))
    assert [who for who, _ in seen] == ["hook", "handler"]
    assert seen[0][1] is seen[1][1]


# What requests touch


class TouchingScene(Scene):
    """A broker's rows, and messages to ask about."""

    def __init__(self) -> None:
        super().__init__()
        self.make_topic("orders")
        service = broker_service(self.broker)
        self.rows = {one.code: one for one in service.table}
        self.rows |= {
            one.code: one for some in broker_endpoints().values() for one in some if one.code not in self.rows
        }
        own = [*self.service.endpoints, *pipeline_requests(self.broker, service.flush_queue).endpoints]
        self.rows |= {one.code: one for one in own}

    def touched(self, code: Request, body: bytes = b"", **fields: object) -> set[Access]:
        return touched(self.rows[code], request(code, body, **fields))


@pytest.fixture
def scene() -> TouchingScene:
    return TouchingScene()


def test_a_send_touches_its_topic_and_a_retry_its_group(scene: TouchingScene) -> None:
    assert scene.touched(Request.SEND_MESSAGE_V2, b=retry_topic("g"), e=0) == {group("g", SUB)}
    assert scene.touched(Request.SEND_BATCH_MESSAGE, b="orders", e=0) == {topic("orders", PUB)}
    assert scene.touched(Request.SEND_MESSAGE, topic="orders", queueId=0) == {topic("orders", PUB)}
    assert scene.touched(Request.SEND_MESSAGE, topic="", queueId=0) == {topic("", PUB)}


def test_a_message_that_is_sent_back_is_of_the_topic_that_the_log_says(scene: TouchingScene) -> None:
    scene.send("orders")
    fields: dict[str, Any] = {"offset": 0, "group": "g", "delayLevel": 1, "originTopic": "mine"}
    assert scene.touched(Request.CONSUMER_SEND_MSG_BACK, **fields) == {group("g", SUB), topic("orders", SUB)}
    assert scene.touched(Request.VIEW_MESSAGE_BY_ID, offset=0, topic="mine") == {topic("orders", GET)}


def test_a_pull_touches_topic_and_group(scene: TouchingScene) -> None:
    fields: dict[str, Any] = {
        "consumerGroup": "g", "queueId": 0, "queueOffset": 0, "maxMsgNums": 1, "sysFlag": 0, "commitOffset": 0,
        "suspendTimeoutMillis": 0, "subVersion": 0, "subscription": "*", "expressionType": "TAG",
    }  # fmt: skip
    for code in (Request.PULL_MESSAGE, Request.LITE_PULL_MESSAGE):
        assert scene.touched(code, topic="orders", **fields) == {topic("orders", SUB), group("g", SUB)}
        assert scene.touched(code, topic=retry_topic("other"), **fields) == {group("other", SUB), group("g", SUB)}


def test_topics_with_the_messages_of_all_topics_belong_to_the_cluster(scene: TouchingScene) -> None:
    fields: dict[str, Any] = {"queueId": 0, "offset": 0}
    assert scene.touched(Request.PULL_RECORDS, topic="orders", **fields) == {topic("orders", SUB, GET)}
    assert scene.touched(Request.PULL_RECORDS, topic=TIMER_TOPIC, **fields) == {CLUSTER_GET}


def test_a_heartbeat_touches_all_its_groups_and_topics(scene: TouchingScene) -> None:
    wants = [SubscriptionData(topic="orders"), SubscriptionData(topic=retry_topic("g1"))]
    data = [ConsumerData(groupName="g1", subscriptionDataSet=wants), ConsumerData(groupName="g2")]
    body = encode_body(HeartbeatData(clientID="c", consumerDataSet=data))
    expected = {group("g1", SUB), group("g2", SUB), topic("orders", SUB)}
    assert scene.touched(Request.HEART_BEAT, body) == expected


def test_rows_touch_every_topic_in_the_body(scene: TouchingScene) -> None:
    rows = [Row("k1"), Row("k2", topic="bills"), Row("k3")]
    expected = {topic("orders", PUB), topic("bills", PUB)}
    assert scene.touched(Request.SCHEDULE_ROWS, encode_rows(batch_of(rows)), job="j") == expected


def test_a_lock_touches_its_group_and_the_topics_of_its_queues(scene: TouchingScene) -> None:
    queues = [MessageQueue("orders", "b", 0), MessageQueue("orders", "b", 1), MessageQueue("bills", "b", 0)]
    body = encode_body(LockBatchRequest(consumerGroup="g", clientId="c", mqSet=queues))
    for code in (Request.LOCK_BATCH_MQ, Request.UNLOCK_BATCH_MQ):
        assert scene.touched(code, body) == {group("g", SUB), topic("orders", SUB), topic("bills", SUB)}


def test_timers_of_all_topics_belong_to_the_cluster(scene: TouchingScene) -> None:
    assert scene.touched(Request.LIST_TIMERS, topic="orders") == {topic("orders", PUB, GET)}
    assert scene.touched(Request.COUNT_TIMERS) == {CLUSTER_GET}


def test_a_group_that_need_not_be_named_is_touched_where_it_is(scene: TouchingScene) -> None:
    assert scene.touched(Request.UNREGISTER_CLIENT, clientID="c", producerGroup="p") == set()
    assert scene.touched(Request.UNREGISTER_CLIENT, clientID="c", consumerGroup="g") == {group("g", SUB)}


# The send lane


def refusing(*topics: str) -> tuple[list[str], Callable[[Connection, Endpoint, Command, Any], None]]:
    """A hook that refuses what touches these topics, and the topics that it was asked about."""
    asked_for: list[str] = []

    def authorize(_: Connection, endpoint: Endpoint, command: Command, content: Any) -> None:
        for access in endpoint.accesses(command, content):
            asked_for.append(access.name)
            if access.name in topics:
                raise NoPermission(f"the test refuses {access.name}")

    return asked_for, authorize


def test_a_run_of_sends_is_authorized_once_for_each_topic() -> None:
    way = Way()
    way.receive(send_frame(100))  # the first one opens the topic
    asked_for, way.service.table.authorize = refusing()
    way.receive(b"".join(send_frame(number) for number in range(30)))
    assert way.taken == list(range(30))
    assert asked_for == ["orders"]


def test_the_lane_leaves_what_is_not_permitted_to_be_refused() -> None:
    way = Way()
    _, way.service.table.authorize = refusing("orders")
    before = way.broker.store.log.end
    way.receive(b"".join([send_frame(1), send_frame(2, b="%odd"), send_frame(3)]))
    assert [(reply.opaque, reply.code) for reply in way.replies()] == [
        (1, Response.NO_PERMISSION),
        (2, Response.SUCCESS),
        (3, Response.NO_PERMISSION),
    ]
    [stored] = way.broker.store.queues
    assert (stored.topic, stored.next_offset) == ("%odd", 1)
    assert way.broker.store.log.end > before


def test_a_topic_that_is_no_longer_permitted_is_refused_in_the_next_run() -> None:
    way = Way()
    way.receive(send_frame(1))
    _, way.service.table.authorize = refusing("orders")
    way.receive(send_frame(2))
    assert [(reply.opaque, reply.code) for reply in way.replies()] == [(1, 0), (2, Response.NO_PERMISSION)]
