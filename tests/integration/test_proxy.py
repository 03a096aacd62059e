"""The gRPC proxy as `serve` runs it: routes, TLS and plaintext on one port, restarts of its parts, and its stop."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from latermq.protocol.messaging import messaging_pb2 as pb
from tests.interop.waiting import wait_until
from tests.support.grpc_client import GrpcClient, grpc_client
from tests.support.serving import NO_METRICS, Server, serving


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("data") / "data", grpc=True) as running:
        yield running


@pytest.fixture
def client(server: Server) -> Iterator[GrpcClient]:
    with grpc_client(server.proxy) as connected:
        yield connected


def run_command(*arguments: str) -> None:
    command = [sys.executable, "-m", "latermq", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr


def create_topic(server: Server, topic: str, *options: str) -> None:
    run_command("topic", "create", topic, "--namesrv", server.namesrv, *options)


@pytest.mark.parametrize("tls", [False, True], ids=["plaintext", "TLS"])
def test_the_route_of_an_unknown_topic_is_where_its_first_message_creates_it(server: Server, tls: bool) -> None:
    with grpc_client(server.proxy, tls=tls) as client:
        answer = client.route("not-there-yet")
    assert answer.status.code == pb.OK
    assert [queue.id for queue in answer.message_queues] == list(range(8))
    for queue in answer.message_queues:
        assert queue.permission == pb.READ_WRITE
        assert queue.broker == pb.Broker(name="broker-a", endpoints=client.endpoints)
        assert list(queue.accept_message_types) == [pb.NORMAL, pb.FIFO, pb.DELAY, pb.TRANSACTION]


def test_a_topic_accepts_the_type_that_it_was_created_for(server: Server, client: GrpcClient) -> None:
    create_topic(server, "in-order", "--queues", "2", "--attribute", "message.type=FIFO")
    create_topic(server, "plain", "--queues", "3")
    for topic, queues, kind in (("in-order", 2, pb.FIFO), ("plain", 3, pb.NORMAL)):
        found = client.route(topic).message_queues
        assert [list(queue.accept_message_types) for queue in found] == [[kind]] * queues


def test_a_call_without_a_client_id_is_refused(server: Server) -> None:
    with grpc_client(server.proxy, client_id=None) as client:
        answer = client.route("any")
    assert answer.status.code == pb.CLIENT_ID_REQUIRED
    assert answer.status.message == "the call has no client id. Send it in the header x-mq-client-id"


def test_calls_that_the_proxy_does_not_serve_are_unimplemented(client: GrpcClient) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        client.call("PullMessage", pb.QueryRouteRequest(), pb.QueryRouteResponse)
    assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED


@contextlib.contextmanager
def proxy_alone(namesrv: str, *options: str) -> "Iterator[tuple[subprocess.Popen[str], str]]":
    """A proxy without `serve`, and its address."""
    command = [sys.executable, "-m", "latermq", "proxy", "--namesrv", namesrv, "--port", "0", *options]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **NO_METRICS}
    ) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline().split()[-1]
        finally:
            if process.poll() is None:
                process.kill()
            process.communicate(timeout=30)


def test_several_proxies_serve_the_same_brokers(server: Server, tmp_path: Path) -> None:
    with proxy_alone(server.namesrv, "--data", str(tmp_path)) as (process, address):
        for tls in (False, True):
            with grpc_client(address, tls=tls) as client:
                assert client.route("any").status.code == pb.OK
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0


def test_a_killed_proxy_is_restarted_on_its_port(tmp_path: Path) -> None:
    with serving(tmp_path / "data", grpc=True) as server, grpc_client(server.proxy) as client:
        assert client.route("any").status.code == pb.OK
        killed = server.proxy_pid()
        os.kill(killed, signal.SIGKILL)

        def works() -> bool:
            with contextlib.suppress(grpc.RpcError):
                return client.route("any").status.code == pb.OK
            return False

        wait_until(works, 15.0, "a route from the new proxy")
        assert server.proxy_pid() != killed


def test_after_the_death_of_the_broker_calls_fail_at_once_and_then_work_again(tmp_path: Path) -> None:
    with serving(tmp_path / "data", grpc=True) as server, grpc_client(server.proxy) as client:
        create_topic(server, "known")
        assert client.route("known").status.code == pb.OK
        os.kill(server.broker_pid(), signal.SIGKILL)
        # The cached route stays, so that clients keep their queues during a restart of their broker.
        assert client.route("known").status.code == pb.OK
        wait_until(lambda: client.route("new").status.code == pb.OK, 15.0, "a route through the new broker")
