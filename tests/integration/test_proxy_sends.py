"""SendMessage and RecallMessage through a real proxy and broker."""

import time
from collections.abc import Iterator

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from latermq.client import Message, Verdict, blocking
from latermq.protocol.messaging import messaging_pb2 as pb
from latermq.protocol.messaging.queue_choice import queue_of_group
from tests.interop.waiting import wait_until
from tests.support.grpc_client import GrpcClient, grpc_client
from tests.support.proxy_messages import new_message, send
from tests.support.serving import Server, serving


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("data") / "data", grpc=True) as running:
        yield running


@pytest.fixture
def client(server: Server) -> Iterator[GrpcClient]:
    with grpc_client(server.proxy) as connected:
        yield connected


def stored(server: Server, topic: str) -> list[Message]:
    """All messages of a topic, queue by queue."""
    messages: list[Message] = []
    with blocking.PullConsumer(server.namesrv) as consumer:
        for queue in consumer.queues(topic):
            offset, end = consumer.min_offset(queue), consumer.max_offset(queue)
            while offset < end:
                result = consumer.pull(queue, offset)
                messages += result.messages
                offset = result.next_offset
    return messages


def at(seconds_from_now: float) -> Timestamp:
    timestamp = Timestamp()
    timestamp.FromMilliseconds(int((time.time() + seconds_from_now) * 1000))
    return timestamp


def test_a_message_is_stored_with_all_that_its_sender_gave(server: Server, client: GrpcClient) -> None:
    message = new_message("plain", b"body", tag="red", keys=["k1", "k2"])
    message.user_properties["color"] = "blue"
    answer = send(client, message)
    assert (answer.status.code, answer.status.message) == (pb.OK, "OK")
    [entry] = answer.entries
    assert entry.message_id == message.system_properties.message_id
    assert (entry.status.code, entry.offset, entry.transaction_id, entry.recall_handle) == (pb.OK, 0, "", "")
    [found] = stored(server, "plain")
    assert found.body == b"body"
    properties = found.properties
    assert (properties["TAGS"], properties["KEYS"], properties["color"]) == ("red", "k1 k2", "blue")
    assert (properties["UNIQ_KEY"], properties["PGROUP"]) == (entry.message_id, "plain")


def test_messages_without_a_group_go_to_all_queues_in_turn(server: Server, client: GrpcClient) -> None:
    for _ in range(16):
        assert send(client, new_message("spread")).status.code == pb.OK
    assert sorted(message.queue_id for message in stored(server, "spread")) == sorted([*range(8)] * 2)


def test_messages_of_a_group_stay_in_order_in_the_queue_that_rocketmq_chooses(
    server: Server, client: GrpcClient
) -> None:
    for number in range(10):
        message = new_message("fifo", str(number).encode(), message_group="group-7", message_type=pb.FIFO)
        assert send(client, message).status.code == pb.OK
    found = stored(server, "fifo")
    assert [message.body for message in found] == [str(number).encode() for number in range(10)]
    assert {message.queue_id for message in found} == {queue_of_group("group-7", 8)}


def test_several_messages_have_a_result_each(server: Server, client: GrpcClient) -> None:
    messages = [new_message("several", message_group="g"), new_message("several", delivery_timestamp=at(600))]
    messages.append(new_message("several", delivery_timestamp=at(100 * 365 * 86_400)))
    answer = send(client, *messages)
    assert answer.status.code == pb.MULTIPLE_RESULTS
    codes = [entry.status.code for entry in answer.entries]
    assert codes == [pb.OK, pb.OK, pb.ILLEGAL_DELIVERY_TIME]
    assert [entry.message_id for entry in answer.entries] == [
        message.system_properties.message_id for message in messages
    ]
    assert [bool(entry.recall_handle) for entry in answer.entries] == [False, True, False]


def test_one_illegal_message_refuses_the_whole_request(server: Server, client: GrpcClient) -> None:
    answer = send(client, new_message("whole"), new_message("whole", b""))
    assert (answer.status.code, list(answer.entries)) == (pb.MESSAGE_BODY_EMPTY, [])
    assert send(client, new_message("whole")).entries[0].offset == 0
    assert len(stored(server, "whole")) == 1


def test_a_delayed_message_can_be_recalled(server: Server, client: GrpcClient) -> None:
    message = new_message("later", delivery_timestamp=at(3600), message_type=pb.DELAY)
    [entry] = send(client, message).entries
    request = pb.RecallMessageRequest(topic=pb.Resource(name="later"), recall_handle=entry.recall_handle)
    answer = client.call("RecallMessage", request, pb.RecallMessageResponse)
    assert (answer.status.code, answer.message_id) == (pb.OK, entry.message_id)
    with blocking.Admin(server.namesrv) as admin:
        assert admin.timer_status("later", unique_key=entry.message_id).verdict == Verdict.CANCELLED


def test_a_delayed_message_arrives_when_it_is_due(server: Server, client: GrpcClient) -> None:
    due = at(1.5)
    assert send(client, new_message("due", delivery_timestamp=due)).status.code == pb.OK
    assert stored(server, "due") == []
    [found] = wait_until(lambda: stored(server, "due"), 20, "the delivery")
    assert found.store_timestamp_ms >= due.ToMilliseconds()


def test_a_delivery_time_of_three_years_is_accepted(client: GrpcClient) -> None:
    assert send(client, new_message("far", delivery_timestamp=at(3 * 365 * 86_400))).status.code == pb.OK


@pytest.mark.parametrize(
    ("handle", "code"),
    [
        ("", pb.BAD_REQUEST),
        ("not a handle", pb.BAD_REQUEST),
        ("djEgbGF0ZXIgYnJva2VyLWEgMTkwMDAwMDAwMDAwMCB1bmtub3du", pb.NOT_FOUND),
    ],
)
def test_a_handle_of_no_timer_is_refused_with_a_code_that_no_client_takes_for_success(
    client: GrpcClient, handle: str, code: int
) -> None:
    request = pb.RecallMessageRequest(topic=pb.Resource(name="later"), recall_handle=handle)
    assert client.call("RecallMessage", request, pb.RecallMessageResponse).status.code == code


def test_a_topic_takes_messages_of_its_own_type_only(server: Server, client: GrpcClient) -> None:
    with blocking.Admin(server.namesrv) as admin:
        admin.create_topic("only-fifo", attributes={"message.type": "FIFO"})
    refused = send(client, new_message("only-fifo"))
    assert refused.status.code == pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
    assert send(client, new_message("only-fifo", message_group="g")).status.code == pb.OK


@pytest.mark.parametrize(
    ("messages", "code"),
    [
        ([], pb.MESSAGE_CORRUPTED),
        ([new_message("a"), new_message("b")], pb.MESSAGE_CORRUPTED),
        ([new_message("")], pb.ILLEGAL_TOPIC),
        ([new_message("a b")], pb.ILLEGAL_TOPIC),
        ([new_message("rmq_sys_wheel_timer")], pb.ILLEGAL_TOPIC),
        ([new_message("t", b"")], pb.MESSAGE_BODY_EMPTY),
        ([new_message("t", bytes(4 * 1024 * 1024 + 1))], pb.MESSAGE_BODY_TOO_LARGE),
        ([new_message("t", tag="a|b")], pb.ILLEGAL_MESSAGE_TAG),
        ([new_message("t", keys=[" "])], pb.ILLEGAL_MESSAGE_KEY),
        ([new_message("t", message_group="g" * 64)], pb.ILLEGAL_MESSAGE_GROUP),
        ([new_message("t", message_id=" ")], pb.ILLEGAL_MESSAGE_ID),
        ([new_message("t", priority=1)], pb.NOT_IMPLEMENTED),
        ([new_message("t", lite_topic="l")], pb.NOT_IMPLEMENTED),
        ([new_message("t", delivery_timestamp=at(100 * 365 * 86_400))], pb.ILLEGAL_DELIVERY_TIME),
        ([new_message("t", trace_context="c" * 40_000)], pb.MESSAGE_PROPERTIES_TOO_LARGE),
    ],
)  # fmt: skip
def test_what_cannot_be_sent_is_refused_with_its_code(
    client: GrpcClient, messages: list[pb.Message], code: int
) -> None:
    answer = send(client, *messages)
    assert (answer.status.code, list(answer.entries)) == (code, [])
    assert answer.status.message


def test_the_largest_message_fits(client: GrpcClient) -> None:
    message = new_message("large", bytes(4 * 1024 * 1024))
    message.user_properties.update({f"{number:03}": "v" * 120 for number in range(128)})
    assert send(client, message).status.code == pb.OK


def test_a_namespace_is_part_of_the_topic(server: Server, client: GrpcClient) -> None:
    message = new_message("inside")
    message.topic.resource_namespace = "ns"
    assert send(client, message).status.code == pb.OK
    assert len(stored(server, "ns%inside")) == 1
