"""SendMessage and RecallMessage: which queue a message goes to, and what the broker's replies become."""

import gc
import tracemalloc
from collections import deque
from types import SimpleNamespace
from typing import Any, cast

import pytest
from google.protobuf.duration_pb2 import Duration as Seconds
from google.protobuf.timestamp_pb2 import Timestamp

from latermq.client.session.failures import ConnectFailed, RequestTimedOut
from latermq.clock import SimulatedClock
from latermq.config import Config, Duration, ProxyConfig, Size
from latermq.errors import LaterMQError, TopicNotFound
from latermq.message.recall_handle import encode_recall_handle
from latermq.protocol.messaging import messaging_pb2 as pb
from latermq.protocol.remoting.codes import Request, Response
from latermq.protocol.remoting.queues import MessageQueue
from latermq.server.proxy.brokers.broker_link import BrokerLink
from latermq.server.proxy.brokers.topics import TopicInfo, Topics
from latermq.server.proxy.calls.send_calls import SendCalls
from tests.support.proxy_calls import FakeCall, FakeLink, FakeProxy
from tests.support.proxy_messages import new_message


class Sender:
    """A proxy that knows the topic `orders`, on these brokers with two queues each."""

    def __init__(self, *brokers: str, kind: str = "MIXED", found: LaterMQError | None = None, **settings: Any) -> None:
        self.link = FakeLink(*brokers)
        self.refreshed: list[str] = []
        queues = [MessageQueue("orders", broker, number) for broker in brokers for number in range(2)]
        self.info = TopicInfo("orders", cast(Any, SimpleNamespace(writable=queues)), kind, False)
        self.topics = SimpleNamespace(
            cached=lambda topic: self.info if topic == "orders" else None,
            get=lambda topic, then: then(found or TopicInfo(topic, self.info.route, kind, False)),
            refresh=self.refreshed.append,
        )
        self.calls = SendCalls(
            cast(BrokerLink, self.link), cast(Topics, self.topics), Config(proxy=ProxyConfig(max_routes=2, **settings)),
            SimulatedClock(),
        )  # fmt: skip
        self._proxy = FakeProxy(self.calls.endpoints)

    def send(self, *messages: pb.Message) -> FakeCall:
        call: FakeCall = self._proxy.call("SendMessage", pb.SendMessageRequest(messages=messages))
        return call

    def send_all(self, request: pb.SendMessageRequest, *, is_authorized: bool) -> FakeCall:
        if is_authorized:
            self._proxy.table.authorize = lambda call, accesses: deque(accesses, 0).clear()
        call: FakeCall = self._proxy.call("SendMessage", request)
        return call

    def recall(self, handle: str) -> FakeCall:
        request = pb.RecallMessageRequest(topic=pb.Resource(name="orders"), recall_handle=handle)
        call: FakeCall = self._proxy.call("RecallMessage", request)
        return call


def answer(call: FakeCall) -> pb.SendMessageResponse:
    [found] = call.read(pb.SendMessageResponse)
    return found


def delayed() -> pb.Message:
    return new_message("orders", delivery_timestamp=Timestamp(seconds=1_900_000_000))


@pytest.mark.parametrize("is_authorized", [False, True])
def test_too_many_messages_are_refused_before_any_is_looked_at(is_authorized: bool) -> None:
    sender = Sender("a")
    request = pb.SendMessageRequest.FromString(b"\x0a\x00" * 200_000)
    tracemalloc.start()
    try:
        call = sender.send_all(request, is_authorized=is_authorized)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert answer(call).status.code == pb.PAYLOAD_TOO_LARGE
    assert peak_bytes < 2_000_000  # 200,000 objects would take ten times as much


def test_a_map_that_protobuf_decodes_slowly_is_not_decoded() -> None:
    message = pb.Message(user_properties={f"{number:x}": "a" for number in range(100_000)})
    call = Sender("a").send(message)
    assert answer(call).status.message.startswith("more than 128 user properties")


def test_messages_take_turns_over_queues_whose_brokers_are_reachable() -> None:
    sender = Sender("a", "b")
    for _ in range(4):
        sender.send(new_message("orders"))
    places = [(request.broker, request.fields["e"]) for request in sender.link.take()]
    assert places == [("a", "0"), ("a", "1"), ("b", "0"), ("b", "1")]
    sender.link.brokers.remove("a")
    for _ in range(4):
        sender.send(new_message("orders"))
    assert {request.broker for request in sender.link.take()} == {"b"}


@pytest.mark.parametrize("number", [1, 2])
def test_failed_sends_leave_nothing_for_the_garbage_collector(number: int) -> None:
    sender = Sender("a")
    messages = [new_message("orders") for _ in range(number)]

    def fail() -> None:
        call = sender.send(*messages)
        for request in sender.link.take():
            request.fail(ConnectFailed("broker 'a' is not reachable"))
        assert answer(call).status.code != pb.OK

    fail()
    gc.collect()
    gc.disable()
    try:
        for _ in range(50):
            fail()
        assert gc.collect() < 50
    finally:
        gc.enable()


def test_a_message_group_keeps_its_queue_even_if_the_broker_is_away() -> None:
    sender = Sender("a", "b")
    sender.send(new_message("orders", message_group="g"))
    [before] = sender.link.take()
    sender.link.brokers.remove(before.broker)
    sender.send(new_message("orders", message_group="g"))
    [after] = sender.link.take()
    assert (after.broker, after.fields["e"]) == (before.broker, before.fields["e"])


def test_a_send_has_the_fields_that_brokers_expect() -> None:
    sender = Sender("a")
    sender.send(new_message("orders", b"body", message_type=pb.TRANSACTION, born_timestamp=Timestamp(seconds=7)))
    [request] = sender.link.take()
    assert (request.code, request.body) == (Request.SEND_MESSAGE_V2, b"body")
    fields = request.fields
    assert (fields["a"], fields["b"], fields["f"], fields["g"]) == ("orders", "orders", "4", "7000")
    assert "TRAN_MSG\x01true\x02" in fields["i"]


def test_the_answer_has_what_the_sender_needs_later() -> None:
    sender = Sender("a")
    calls = [
        sender.send(message)
        for message in (new_message("orders"), delayed(), new_message("orders", message_type=pb.TRANSACTION))
    ]
    for request, handle in zip(sender.link.take(), ("", "handle", ""), strict=True):
        request.answer(fields={"queueOffset": "5", "recallHandle": handle})
    plain, timer, half = (answer(call).entries[0] for call in calls)
    assert (plain.offset, plain.recall_handle, plain.transaction_id) == (5, "", "")
    assert (timer.recall_handle, timer.transaction_id) == ("handle", "")
    assert (half.recall_handle, half.transaction_id) == ("", half.message_id)
    assert [answer(call).status.code for call in calls] == [pb.OK] * 3


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (Response.SYSTEM_BUSY, pb.TOO_MANY_REQUESTS),
        (Response.MESSAGE_ILLEGAL, pb.BAD_REQUEST),
        (Response.SERVICE_NOT_AVAILABLE, pb.INTERNAL_SERVER_ERROR),
        (Response.NO_PERMISSION, pb.FORBIDDEN),
        (Response.TOPIC_NOT_EXIST, pb.TOPIC_NOT_FOUND),
        (Response.SYSTEM_ERROR, pb.INTERNAL_SERVER_ERROR),
    ],
)
def test_refusals_of_the_broker_have_codes(code: int, expected: int) -> None:
    sender = Sender("a")
    call = sender.send(new_message("orders"))
    sender.link.take()[0].answer(code, remark="why")
    assert (answer(call).status.code, list(answer(call).entries)) == (expected, [])
    assert "why" in answer(call).status.message
    assert bool(sender.refreshed) == (code in (Response.NO_PERMISSION, Response.TOPIC_NOT_EXIST))


@pytest.mark.parametrize(
    ("code", "expected"),
    [(Response.MESSAGE_ILLEGAL, pb.ILLEGAL_DELIVERY_TIME), (Response.SYSTEM_ERROR, pb.TOO_MANY_REQUESTS)],
)
def test_refusals_of_timers_have_codes_of_their_own(code: int, expected: int) -> None:
    sender = Sender("a")
    call = sender.send(delayed())
    sender.link.take()[0].answer(code, remark="why")
    assert answer(call).status.code == expected


@pytest.mark.parametrize(
    ("error", "expected"),
    [(RequestTimedOut("late"), pb.PROXY_TIMEOUT), (ConnectFailed("down"), pb.INTERNAL_SERVER_ERROR)],
)
def test_a_broker_that_does_not_answer_is_an_error(error: LaterMQError, expected: int) -> None:
    sender = Sender("a")
    call = sender.send(new_message("orders"))
    sender.link.take()[0].fail(error)
    assert answer(call).status.code == expected


def test_several_messages_are_answered_together_in_their_order() -> None:
    sender = Sender("a")
    messages = [new_message("orders") for _ in range(3)]
    call = sender.send(*messages)
    requests = sender.link.take()
    requests[2].answer(fields={"queueOffset": "2"})
    requests[0].answer(fields={"queueOffset": "0"})
    assert call.answers == []
    requests[1].answer(Response.SYSTEM_BUSY)
    found = answer(call)
    assert found.status.code == pb.MULTIPLE_RESULTS
    assert [entry.status.code for entry in found.entries] == [pb.OK, pb.TOO_MANY_REQUESTS, pb.OK]
    assert [entry.message_id for entry in found.entries] == [one.system_properties.message_id for one in messages]


def test_types_are_checked_against_the_topic() -> None:
    sender = Sender("a", kind="DELAY")
    assert answer(sender.send(new_message("orders"))).status.code == pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
    sender.send(delayed())
    assert len(sender.link.take()) == 1
    assert answer(sender.send(delayed(), new_message("orders"))).status.code == pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
    assert sender.link.take() == []


def test_a_topic_that_is_not_known_yet_is_looked_up() -> None:
    sender = Sender("a")
    sender.send(new_message("other"))
    assert sender.link.take()[0].fields["b"] == "other"
    missing = Sender("a", found=TopicNotFound("no such topic"))
    assert answer(missing.send(new_message("other"))).status.code == pb.TOPIC_NOT_FOUND


def test_a_topic_without_writable_queues_is_forbidden() -> None:
    assert answer(Sender().send(new_message("orders"))).status.code == pb.FORBIDDEN
    assert answer(Sender().send(new_message("orders"), new_message("orders"))).status.code == pb.FORBIDDEN


def test_the_number_of_messages_in_a_request_is_bounded() -> None:
    sender = Sender("a", max_send_messages=5)
    sender.send(*[new_message("orders") for _ in range(5)])
    assert len(sender.link.take()) == 5
    refused = sender.send(*[new_message("orders") for _ in range(6)])
    assert answer(refused).status.code == pb.PAYLOAD_TOO_LARGE


def test_topics_in_use_are_bounded() -> None:
    sender = Sender("a")
    for number in range(10):
        sender.send(new_message(f"topic-{number}"))
    assert sender.calls.statistics() == {"send_topics": 2}


def test_a_recall_goes_to_the_broker_of_the_handle() -> None:
    sender = Sender("a", "b")
    handle = encode_recall_handle("orders", "b", 1_900_000_000_000, "id")
    call = sender.recall(handle)
    [request] = sender.link.take()
    assert (request.broker, request.code, request.fields["recallHandle"]) == ("b", Request.RECALL_MESSAGE, handle)
    request.answer(fields={"msgId": "id"})
    [found] = call.read(pb.RecallMessageResponse)
    assert (found.status.code, found.message_id) == (pb.OK, "id")


@pytest.mark.parametrize(
    ("code", "expected"),
    [(Response.ILLEGAL_OPERATION, pb.NOT_FOUND), (Response.SYSTEM_BUSY, pb.TOO_MANY_REQUESTS)],
)
def test_a_refused_recall_never_looks_like_success(code: int, expected: int) -> None:
    sender = Sender("a")
    call = sender.recall(encode_recall_handle("orders", "a", 1_900_000_000_000, "id"))
    sender.link.take()[0].answer(code)
    [found] = call.read(pb.RecallMessageResponse)
    assert found.status.code == expected != pb.MESSAGE_NOT_FOUND


def test_a_handle_that_is_too_long_for_a_header_is_refused() -> None:
    sender = Sender("a")
    [found] = sender.recall(encode_recall_handle("orders", "a", 1, "k" * 60_000)).read(pb.RecallMessageResponse)
    assert found.status.code == pb.BAD_REQUEST
    assert sender.link.take() == []


def test_a_handle_of_an_unknown_broker_is_an_error() -> None:
    sender = Sender("a")
    [found] = sender.recall(encode_recall_handle("orders", "z", 1, "id")).read(pb.RecallMessageResponse)
    assert found.status.code == pb.INTERNAL_SERVER_ERROR


@pytest.mark.parametrize(
    ("setting", "value", "system", "code"),
    [
        ("max_keys", 2, {"keys": ["a", "b", "c"]}, pb.MESSAGE_PROPERTIES_TOO_LARGE),
        ("max_user_properties_size", Size(4), {"keys": ["abcde"]}, pb.MESSAGE_PROPERTIES_TOO_LARGE),
        ("max_message_group", 4, {"message_group": "abcde"}, pb.ILLEGAL_MESSAGE_GROUP),
        (
            "max_recovery",
            Duration(4_000),
            {"message_type": pb.TRANSACTION, "orphaned_transaction_recovery_duration": Seconds(seconds=5)},
            pb.BAD_REQUEST,
        ),
    ],
)
def test_limits_of_a_message_are_settings(setting: str, value: int, system: dict[str, Any], code: int) -> None:
    settings: dict[str, Any] = {setting: value}
    one = new_message("orders", **system)
    assert not Sender("a").send(one).answers  # it is sent to a broker
    refused = Sender("a", **settings).send(one)
    assert answer(refused).status.code == code


def test_the_number_of_user_properties_is_a_setting() -> None:
    one = new_message("orders")
    one.user_properties.update({"a": "1", "b": "2"})
    assert not Sender("a").send(one).answers
    refused = Sender("a", max_user_properties=1).send(one)
    assert answer(refused).status.code == pb.MESSAGE_PROPERTIES_TOO_LARGE
