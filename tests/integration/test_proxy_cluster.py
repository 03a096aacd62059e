"""Two brokers behind two proxies: a transaction whose half is at both brokers is committed once."""

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from latermq.message.properties import encode_properties
from latermq.protocol.messaging import messaging_pb2 as pb
from latermq.protocol.remoting.codes import Request
from tests.integration.brokers import send as send_raw
from tests.integration.raw_client import connect
from tests.integration.test_proxy import create_topic, proxy_alone
from tests.interop.ports import free_port
from tests.interop.waiting import wait_until
from tests.support.grpc_client import GrpcClient, grpc_client
from tests.support.proxy_messages import answers_to, receive_request
from tests.support.serving import NO_METRICS, Server, serving

TOPIC = "pairs"
CHECKS = ("--set", "transaction.check_after=2s", "--set", "transaction.check_every=2s")


@dataclass
class Cluster:
    """The parts that the tests use."""

    server: Server
    ports: dict[str, int]  # of the brokers, by name
    first: GrpcClient  # at one proxy
    second: GrpcClient  # at the other


@contextlib.contextmanager
def another_broker(server: Server, folder: Path) -> Iterator[int]:
    """A second broker, and its port."""
    port = free_port()
    command = [sys.executable, "-m", "latermq", "broker", "--data", str(folder), "--host", "127.0.0.1"]
    command += ["--port", str(port), "--namesrv", server.namesrv, "--set", "broker.name=broker-b", *CHECKS]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **NO_METRICS}) as process:
        try:
            assert process.stdout is not None
            assert "ready" in process.stdout.readline()
            yield port
        finally:
            process.kill()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("cluster")
    with (
        serving(folder / "a", *CHECKS, grpc=True) as server,
        another_broker(server, folder / "b") as port,
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
