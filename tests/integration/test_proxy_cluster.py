"""Two brokers behind two proxies: halves at both brokers, a proxy that stops, and another one that continues."""

import asyncio
import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest

from latermq.client import blocking
from latermq.message.properties import encode_properties
from latermq.protocol.messaging import messaging_pb2 as pb
from latermq.protocol.remoting.codes import Request
from tests.integration.brokers import send as send_raw
from tests.integration.raw_client import connect
from tests.integration.test_proxy import create_topic, proxy_alone
from tests.interop.ports import free_port
from tests.interop.waiting import wait_until
from tests.support.grpc_client import GrpcClient, grpc_client
from tests.support.proxy_messages import ack, answers_to, handle_of, new_message, receive_request, send
from tests.support.serving import Server, another_broker, serving

TOPIC = "pairs"
CHECKS = ("--set", "transaction.check_after=2s", "--set", "transaction.check_every=2s")


@dataclass
class Cluster:
    """The parts that the tests use."""

    server: Server
    ports: dict[str, int]  # of the brokers, by name
    first: GrpcClient  # at one proxy
    second: GrpcClient  # at the other


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder, port = tmp_path_factory.mktemp("cluster"), free_port()
    with (
        serving(folder / "a", *CHECKS, grpc=True) as server,
        another_broker(server, folder / "b", port, *CHECKS),
        proxy_alone(server.namesrv, "--data", str(folder / "proxy")) as (_, address),
        grpc_client(server.proxy, "first") as first,
        grpc_client(address, "second") as second,
    ):
        create_topic(server, TOPIC, "--queues", "1")
        wait_until(
            lambda: all(len(client.route(TOPIC).message_queues) == 2 for client in (first, second)),
            60.0,
            "both brokers",
        )
        yield Cluster(server, {"broker-a": server.port, "broker-b": port}, first, second)


def send_halves(cluster: Cluster, key: str) -> None:
    """Store the same half at both brokers, as a producer does that gets no answer from the first."""
    known = {"UNIQ_KEY": key, "PGROUP": TOPIC, "TRAN_MSG": "true"}

    async def send_to(port: int) -> None:
        async with connect(port) as client:
            reply = await send_raw(client, TOPIC, key.encode(), properties=encode_properties(known), f="4")
            assert reply.code == 0

    for port in cluster.ports.values():
        asyncio.run(send_to(port))


def state_of(cluster: Cluster, broker: str, key: str) -> str:
    """How the transaction stands at a broker."""

    async def ask() -> str:
        async with connect(cluster.ports[broker]) as client:
            fields = {"topic": TOPIC, "producerGroup": TOPIC, "commitOrRollback": "0", "transactionId": key}
            return (await client.call(Request.END_TRANSACTION, fields)).text_fields()["state"]

    return asyncio.run(ask())


def states(cluster: Cluster, key: str) -> list[str]:
    return [state_of(cluster, broker, key) for broker in cluster.ports]


def end(
    client: GrpcClient, key: str, resolution: pb.TransactionResolution, source: pb.TransactionSource = pb.SOURCE_CLIENT
) -> int:
    request = pb.EndTransactionRequest(
        topic=pb.Resource(name=TOPIC), message_id=key, transaction_id=key, resolution=resolution, source=source
    )
    return client.call("EndTransaction", request, pb.EndTransactionResponse).status.code


def received(cluster: Cluster, group: str) -> list[bytes]:
    """All messages of the topic, as a new group receives them from both brokers."""
    found = []
    for broker in cluster.ports:
        request = receive_request(TOPIC, group, 0.5)
        request.message_queue.broker.name = broker
        found += [answer.message.body for answer in answers_to(cluster.first, request) if answer.HasField("message")]
    return found


def test_a_half_at_two_brokers_is_committed_at_one_and_rolled_back_at_the_other(cluster: Cluster) -> None:
    received(cluster, "g")  # the group begins here
    send_halves(cluster, "twice")
    assert states(cluster, "twice") == ["open", "open"]
    assert end(cluster.first, "twice", pb.COMMIT) == pb.OK
    wait_until(lambda: states(cluster, "twice") == ["committed", "rolled back"], 10.0, "both ends")
    # Later commits, as after a check, find the committed one, through any proxy.
    assert end(cluster.second, "twice", pb.COMMIT, pb.SOURCE_SERVER_CHECK) == pb.OK
    assert end(cluster.second, "twice", pb.ROLLBACK) == pb.INVALID_TRANSACTION_ID
    assert received(cluster, "g") == [b"twice"]


@pytest.mark.parametrize("committed_at", ["broker-a", "broker-b"])
def test_a_check_after_a_crash_between_the_two_ends_finishes_them_the_same_way(
    cluster: Cluster, committed_at: str
) -> None:
    key, group = f"crash {committed_at}", f"g-{committed_at}"
    received(cluster, group)
    send_halves(cluster, key)

    async def commit_at_one() -> None:
        async with connect(cluster.ports[committed_at]) as client:
            fields = {"topic": TOPIC, "producerGroup": TOPIC, "commitOrRollback": "8", "transactionId": key}
            assert (await client.call(Request.END_TRANSACTION, fields)).code == 0

    asyncio.run(commit_at_one())
    assert end(cluster.second, key, pb.COMMIT, pb.SOURCE_SERVER_CHECK) == pb.OK
    [other] = cluster.ports.keys() - {committed_at}
    wait_until(lambda: state_of(cluster, other, key) == "rolled back", 10.0, "the rollback of the other half")
    assert state_of(cluster, committed_at, key) == "committed"
    assert received(cluster, group) == [key.encode()]


def test_a_rollback_ends_the_halves_at_all_brokers(cluster: Cluster) -> None:
    send_halves(cluster, "dropped")
    assert end(cluster.first, "dropped", pb.ROLLBACK) == pb.OK
    assert states(cluster, "dropped") == ["rolled back", "rolled back"]
    assert end(cluster.second, "dropped", pb.COMMIT) == pb.INVALID_TRANSACTION_ID


# The stop of a proxy, and another proxy that continues


def test_no_message_is_held_by_a_proxy_that_stops_while_messages_arrive(cluster: Cluster, tmp_path: Path) -> None:
    """Each message arrives in an answer of the stopping proxy, or at once through another one."""
    topic, group, count = "stopping", "stopping-readers", 400
    create_topic(cluster.server, topic, "--queues", "8")
    wait_until(lambda: len(cluster.first.route(topic).message_queues) == 16, 60.0, "the topic at both brokers")
    brokers = list(cluster.ports)

    def request_to(broker: str, poll_s: float) -> pb.ReceiveMessageRequest:
        request = receive_request(topic, group, poll_s, batch_size=1)
        request.batch_size = 1
        request.invisible_duration.FromSeconds(300)
        request.message_queue.broker.name = broker
        return request

    for broker in brokers:
        answers_to(cluster.first, request_to(broker, 0.2))  # the group begins here
    found: set[bytes] = set()
    with (
        proxy_alone(cluster.server.namesrv, "--data", str(tmp_path)) as (process, address),
        grpc_client(address, "stopped") as client,
    ):
        wait_until(lambda: len(client.route(topic).message_queues) == 16, 60.0, "both brokers")

        def receive_all(number: int) -> None:
            with contextlib.suppress(grpc.RpcError):
                for _ in range(count):
                    for answer in client.stream(
                        "ReceiveMessage", request_to(brokers[number % 2], 20.0), pb.ReceiveMessageResponse, 30.0
                    ):
                        if answer.HasField("message"):
                            found.add(answer.message.body)
                    if process.poll() is not None:
                        return

        receivers = [threading.Thread(target=receive_all, args=(number,)) for number in range(16)]
        for receiver in receivers:
            receiver.start()
        for number in range(count):
            if number == count // 4:
                process.send_signal(signal.SIGTERM)
            assert send(cluster.first, new_message(topic, b"%d" % number)).status.code == pb.OK
        assert process.wait(30) == 0
        for receiver in receivers:
            receiver.join()
    assert 0 < len(found) < count  # some before the stop, and not all
    deadline_s = time.monotonic() + 20.0
    while len(found) < count and time.monotonic() < deadline_s:
        for broker in brokers:
            request = request_to(broker, 0.2)
            request.batch_size = 32
            found |= {one.message.body for one in answers_to(cluster.first, request) if one.HasField("message")}
    assert len(found) == count


def test_a_receive_in_order_that_is_repeated_at_another_proxy_gets_the_same_batch(cluster: Cluster) -> None:
    topic, group = "in-order", "ordered"
    create_topic(cluster.server, topic, "--queues", "1", "--attribute", "message.type=FIFO")
    with blocking.Admin(cluster.server.namesrv) as admin:
        admin.create_group(group, orderly=True)
    for number in range(6):
        sent = new_message(topic, b"%d" % number, message_group="m")
        wait_until(lambda sent=sent: send(cluster.first, sent).status.code == pb.OK, 20.0, "a send")  # type: ignore[misc]
    # The queue of the message group is at one of the brokers.
    found = {broker: batch(cluster.first, topic, group, broker, "attempt-1") for broker in cluster.ports}
    [broker] = [name for name, messages in found.items() if messages]
    lost = found[broker]
    again = batch(cluster.second, topic, group, broker, "attempt-1")
    assert [message.body for message in again] == [message.body for message in lost]
    assert [message.system_properties.delivery_attempt for message in again] == [1] * len(lost)
    assert batch(cluster.second, topic, group, broker, "attempt-2") == []  # the queue is blocked
    assert ack(cluster.second, topic, group, [handle_of(message) for message in again]).status.code == pb.OK


def batch(client: GrpcClient, topic: str, group: str, broker: str, attempt_id: str) -> list[pb.Message]:
    request = receive_request(topic, group, 1.0, attempt_id=attempt_id)
    request.message_queue.broker.name = broker
    return [answer.message for answer in answers_to(client, request) if answer.HasField("message")]
