"""Receiving, acknowledging, holding and burying messages, and transactions, through a real proxy and broker."""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from latermq.client import OutgoingMessage, blocking
from latermq.protocol.messaging import messaging_pb2 as pb
from tests.interop.ports import free_port
from tests.interop.waiting import wait_until
from tests.support.grpc_client import GrpcClient, grpc_client
from tests.support.metrics_scrape import scrape
from tests.support.proxy_messages import ack, answers_to, handle_of, new_message, receive, receive_request, send
from tests.support.serving import Server, serving


@pytest.fixture(scope="module")
def metrics_port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, metrics_port: int) -> Iterator[Server]:
    environment = {"LATERMQ_METRICS_PROXY_PORT": str(metrics_port)}
    with serving(tmp_path_factory.mktemp("data") / "data", grpc=True, environment=environment) as running:
        yield running


@pytest.fixture
def client(server: Server) -> Iterator[GrpcClient]:
    with grpc_client(server.proxy) as connected:
        yield connected


def bodies(messages: list[pb.Message]) -> list[bytes]:
    return sorted(message.body for message in messages)


def begin(client: GrpcClient, topic: str, group: str = "g") -> None:
    """Create a topic by its first message, and a group that has received everything in it."""
    assert send(client, new_message(topic, b"first")).status.code == pb.OK
    found = receive(client, topic, group, 10.0)
    assert ack(client, topic, group, [handle_of(message) for message in found]).status.code == pb.OK


def change(
    client: GrpcClient, topic: str, message: pb.Message, seconds: float, handle: str = "", **more: Any
) -> pb.ChangeInvisibleDurationResponse:
    request = pb.ChangeInvisibleDurationRequest(
        group=pb.Resource(name="g"), topic=pb.Resource(name=topic), receipt_handle=handle or handle_of(message), **more
    )
    request.invisible_duration.FromMilliseconds(int(seconds * 1000))
    return client.call("ChangeInvisibleDuration", request, pb.ChangeInvisibleDurationResponse)


def test_a_message_arrives_as_it_was_sent_and_not_again_after_its_acknowledgement(client: GrpcClient) -> None:
    begin(client, "whole-life")
    message = new_message("whole-life", b"body", tag="red", keys=["k1", "k2"], trace_context="trace")
    message.user_properties["color"] = "blue"
    send(client, message)
    [found] = receive(client, "whole-life", "g")
    system, sent = found.system_properties, message.system_properties
    assert (found.topic, found.body, dict(found.user_properties)) == (message.topic, b"body", {"color": "blue"})
    assert (system.message_id, system.tag, list(system.keys)) == (sent.message_id, "red", ["k1", "k2"])
    assert (system.delivery_attempt, system.trace_context, system.born_host) == (1, "trace", "tests")
    answer = ack(client, "whole-life", "g", [handle_of(found)])
    assert (answer.status.code, [entry.status.code for entry in answer.entries]) == (pb.OK, [pb.OK])
    assert ack(client, "whole-life", "g", [handle_of(found)]).status.code == pb.OK  # repeated
    assert receive(client, "whole-life", "g", 1.0) == []


def test_a_waiting_receiver_gets_a_message_when_it_is_sent(server: Server, client: GrpcClient) -> None:
    begin(client, "waits")
    answers = client.stream("ReceiveMessage", receive_request("waits", "g", 15.0), pb.ReceiveMessageResponse, 18.0)
    time.sleep(0.5)
    started_s = time.monotonic()
    with grpc_client(server.proxy, "another") as other:
        send(other, new_message("waits", b"now"))
    received = list(answers)
    assert time.monotonic() - started_s < 5
    assert [answer.WhichOneof("content") for answer in received] == ["status", "message", "delivery_timestamp"]
    assert received[1].message.body == b"now"


def test_many_messages_arrive_in_batches_of_32(client: GrpcClient) -> None:
    begin(client, "many")
    for start in range(0, 100, 20):
        send(client, *[new_message("many", str(number).encode()) for number in range(start, start + 20)])
    found: list[pb.Message] = []
    while batch := receive(client, "many", "g", 1.0):
        assert len(batch) <= 32
        answer = ack(client, "many", "g", [handle_of(message) for message in batch])
        assert answer.status.code == pb.OK
        found += batch
    assert bodies(found) == sorted(str(number).encode() for number in range(100))


@pytest.mark.parametrize(
    ("poll_s", "deadline_s"), [(2.0, 5.0), (0.0, None), (None, 3.0), (1.0, None), (None, 1.0), (20.0, 2.0)]
)
def test_any_polling_time_is_served_before_the_deadline(
    client: GrpcClient, poll_s: float | None, deadline_s: float | None
) -> None:
    begin(client, "empty")
    answers = answers_to(client, receive_request("empty", "g", poll_s), deadline_s)
    assert answers[0].status.code == pb.MESSAGE_NOT_FOUND


def test_filters_select_messages(client: GrpcClient) -> None:
    begin(client, "filtered", "tags")
    begin(client, "filtered", "sql")
    for tag, size in (("red", 1), ("blue", 2), ("red", 3)):
        message = new_message("filtered", f"{tag}-{size}".encode(), tag=tag)
        message.user_properties["size"] = str(size)
        send(client, message)
    by_tag = pb.FilterExpression(type=pb.TAG, expression="red || green")
    by_sql = pb.FilterExpression(type=pb.SQL, expression="size > 1")

    def all_of(group: str, expression: pb.FilterExpression) -> list[bytes]:
        found: list[pb.Message] = []
        while batch := receive(client, "filtered", group, 1.0, filter_expression=expression):
            found += batch
        return bodies(found)

    assert all_of("tags", by_tag) == [b"red-1", b"red-3"]
    assert all_of("sql", by_sql) == [b"blue-2", b"red-3"]
    wrong = pb.FilterExpression(type=pb.SQL, expression="size >")
    answers = answers_to(client, receive_request("filtered", "sql", filter_expression=wrong))
    assert answers[0].status.code == pb.ILLEGAL_FILTER_EXPRESSION


def test_a_change_to_nothing_delivers_again_and_kills_the_old_handle(client: GrpcClient) -> None:
    begin(client, "changed")
    send(client, new_message("changed", b"x"))
    [first] = receive(client, "changed", "g")
    answer = change(client, "changed", first, 0)
    assert answer.status.code == pb.OK
    assert answer.receipt_handle != handle_of(first)
    [second] = receive(client, "changed", "g", 10.0)
    assert second.system_properties.delivery_attempt == 2
    assert second.system_properties.message_id == first.system_properties.message_id
    assert ack(client, "changed", "g", [handle_of(first)]).status.code == pb.INVALID_RECEIPT_HANDLE
    assert receive(client, "changed", "g", 0.5) == []
    refused = change(client, "changed", first, 5)
    assert (refused.status.code, refused.receipt_handle) == (pb.INVALID_RECEIPT_HANDLE, handle_of(first))
    assert ack(client, "changed", "g", [handle_of(second)]).status.code == pb.OK


def test_a_changed_handle_acknowledges(client: GrpcClient) -> None:
    begin(client, "kept")
    send(client, new_message("kept", b"x"))
    [message] = receive(client, "kept", "g")
    handle = handle_of(message)
    for seconds in (60, 120):
        answer = change(client, "kept", message, seconds, handle)
        assert answer.status.code == pb.OK
        handle = answer.receipt_handle
    assert ack(client, "kept", "g", [handle]).status.code == pb.OK


def test_a_cancelled_receiver_loses_no_message(server: Server, client: GrpcClient) -> None:
    begin(client, "cancelled")
    with grpc_client(server.proxy, "gone") as gone:
        waiting: Any = gone.stream("ReceiveMessage", receive_request("cancelled", "g", 15.0), pb.ReceiveMessageResponse)
        time.sleep(0.5)
        waiting.cancel()
        time.sleep(0.2)
    send(client, new_message("cancelled", b"x"))
    [message] = receive(client, "cancelled", "g", 10.0)
    assert (message.body, message.system_properties.delivery_attempt) == (b"x", 1)


def test_a_message_is_forwarded_to_the_dead_letters_once(server: Server, client: GrpcClient) -> None:
    begin(client, "buried")
    send(client, new_message("buried", b"bad"))
    [message] = receive(client, "buried", "g")
    request = pb.ForwardMessageToDeadLetterQueueRequest(
        group=pb.Resource(name="g"),
        topic=pb.Resource(name="buried"),
        receipt_handle=handle_of(message),
        message_id=message.system_properties.message_id,
        delivery_attempt=3,
        max_delivery_attempts=3,
    )
    answers = [
        client.call("ForwardMessageToDeadLetterQueue", request, pb.ForwardMessageToDeadLetterQueueResponse)
        for _ in range(2)
    ]
    assert answers[0].status.code == pb.OK
    assert answers[1].status.code == pb.INVALID_RECEIPT_HANDLE
    with blocking.PullConsumer(server.namesrv) as consumer:
        [queue] = consumer.queues("%DLQ%g")
        [letter] = consumer.pull(queue, 0).messages
    assert letter.body == b"bad"


def test_a_group_in_order_gets_the_same_batch_for_the_same_attempt(server: Server, client: GrpcClient) -> None:
    with blocking.Admin(server.namesrv) as admin:
        admin.create_topic("in-order", 1, attributes={"message.type": "FIFO"})
        admin.create_group("ordered", orderly=True)
    for number in range(3):
        send(client, new_message("in-order", str(number).encode(), message_group="m"))
    first = receive(client, "in-order", "ordered", 10.0, attempt_id="a")
    again = receive(client, "in-order", "ordered", 1.0, attempt_id="a")
    assert [message.body for message in first] == [message.body for message in again]
    assert [message.system_properties.delivery_attempt for message in again] == [1] * len(first)
    assert receive(client, "in-order", "ordered", 0.5, attempt_id="b") == []  # blocked until they are acknowledged
    assert ack(client, "in-order", "ordered", [handle_of(message) for message in again]).status.code == pb.OK


def test_a_delayed_message_is_received_when_it_is_due(client: GrpcClient) -> None:
    begin(client, "delayed")
    due = Timestamp()
    due.FromMilliseconds(int(time.time() * 1000) + 2000)
    send(client, new_message("delayed", b"later", delivery_timestamp=due))
    [message] = receive(client, "delayed", "g", 15.0)
    system = message.system_properties
    assert time.time() * 1000 >= due.ToMilliseconds()
    assert (system.message_type, system.delivery_timestamp.ToMilliseconds()) == (pb.DELAY, due.ToMilliseconds())


def end(client: GrpcClient, topic: str, key: str, resolution: pb.TransactionResolution) -> pb.EndTransactionResponse:
    request = pb.EndTransactionRequest(
        topic=pb.Resource(name=topic), message_id=key, transaction_id=key, resolution=resolution
    )
    return client.call("EndTransaction", request, pb.EndTransactionResponse)


def test_a_transaction_is_received_only_after_its_commit(server: Server, client: GrpcClient) -> None:
    begin(client, "money")
    committed = new_message("money", b"yes", message_type=pb.TRANSACTION)
    rolled_back = new_message("money", b"no", message_type=pb.TRANSACTION)
    keys = [send(client, message).entries[0].transaction_id for message in (committed, rolled_back)]
    assert keys == [message.system_properties.message_id for message in (committed, rolled_back)]
    assert receive(client, "money", "g", 1.0) == []
    with grpc_client(server.proxy, "elsewhere") as other:
        assert end(other, "money", keys[0], pb.COMMIT).status.code == pb.OK
    assert end(client, "money", keys[0], pb.COMMIT).status.code == pb.OK  # repeated
    assert end(client, "money", keys[1], pb.ROLLBACK).status.code == pb.OK
    assert end(client, "money", keys[1], pb.COMMIT).status.code == pb.INVALID_TRANSACTION_ID
    assert end(client, "money", "unknown", pb.COMMIT).status.code == pb.INVALID_TRANSACTION_ID
    [message] = receive(client, "money", "g", 10.0)
    assert (message.body, message.system_properties.message_type) == (b"yes", pb.TRANSACTION)


def test_bodies_that_4x_clients_compressed_are_readable(server: Server, client: GrpcClient) -> None:
    begin(client, "compressed")
    body = b"a body that repeats itself " * 1000
    with blocking.Producer(server.namesrv) as producer:
        producer.send(OutgoingMessage("compressed", body))
    [message] = receive(client, "compressed", "g", 10.0)
    assert (message.body, message.system_properties.body_encoding) == (body, pb.IDENTITY)


def test_a_push_consumer_keeps_its_messages_until_it_says_goodbye(server: Server, client: GrpcClient) -> None:
    begin(client, "leased")
    send(client, new_message("leased", b"x"))
    with grpc_client(server.proxy, "pusher") as pusher:
        request = receive_request("leased", "g", 5.0, auto_renew=True)
        request.ClearField("invisible_duration")
        [held] = [answer.message for answer in answers_to(pusher, request) if answer.HasField("message")]
        assert receive(client, "leased", "g", 2.0) == []
        goodbye = pb.NotifyClientTerminationRequest(group=pb.Resource(name="g"))
        pusher.call("NotifyClientTermination", goodbye, pb.NotifyClientTerminationResponse)
    [again] = receive(client, "leased", "g", 15.0)
    assert again.body == b"x"
    assert ack(client, "leased", "g", [handle_of(held)]).status.code == pb.INVALID_RECEIPT_HANDLE


def test_unknown_topics_have_their_code(client: GrpcClient) -> None:
    answers = answers_to(client, receive_request("never-created", "g"))
    assert answers[0].status.code == pb.TOPIC_NOT_FOUND


def test_a_stopping_proxy_lets_waiting_receivers_go(tmp_path_factory: pytest.TempPathFactory) -> None:
    with serving(tmp_path_factory.mktemp("stop") / "data", grpc=True) as running, grpc_client(running.proxy) as client:
        begin(client, "stopping")
        request = receive_request("stopping", "g", 30.0)
        waiting = client.stream("ReceiveMessage", request, pb.ReceiveMessageResponse, 40.0)
        time.sleep(0.5)
        started_s = time.monotonic()
        running.stop()
        answers = list(waiting)
        assert answers[0].status.code == pb.MESSAGE_NOT_FOUND
        assert time.monotonic() - started_s < 20


def resident_bytes(pid: int) -> int:
    [line] = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS:")]
    return int(line.split()[1]) * 1024


def test_five_thousand_waiting_receivers_take_little_memory(server: Server, metrics_port: int) -> None:
    receivers, connections, groups = 5_000, 20, 10
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(grpc_client(server.proxy, f"waiting-{number}")) for number in range(connections)]
        for number in range(groups):
            begin(clients[0], "crowd", f"crowd-{number}")
        for number in range(groups):  # what others of them sent
            found = receive(clients[0], "crowd", f"crowd-{number}", 0.2)
            ack(clients[0], "crowd", f"crowd-{number}", [handle_of(message) for message in found])
        processes = (server.proxy_pid(), server.broker_pid())
        before = [resident_bytes(pid) for pid in processes]
        calls: list[Any] = []
        for number in range(receivers):
            request = receive_request("crowd", f"crowd-{number % groups}", 100.0, auto_renew=True)
            client = clients[number % connections]
            calls.append(client.stream("ReceiveMessage", request, pb.ReceiveMessageResponse, 120.0))

        def waiting() -> int:
            return int(scrape(metrics_port).value("latermq_proxy_receives"))

        wait_until(lambda: waiting() >= receivers, 60, "all receivers wait")
        after = [resident_bytes(pid) for pid in processes]
        for first, last in zip(before, after, strict=True):
            assert (last - first) / receivers < 4096
        send(clients[0], new_message("crowd", b"for each group"))
        wait_until(lambda: waiting() <= receivers - groups, 20, "a receiver of each group has it")
        time.sleep(0.5)
        assert waiting() == receivers - groups
        for call in calls:
            call.cancel()
        wait_until(lambda: waiting() == 0, 20, "all receivers are gone")
