"""The gRPC proxy as `serve` runs it: routes, TLS and plaintext on one port, restarts of its parts, and its stop."""

import contextlib
import os
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from latermq.protocol.messaging import messaging_pb2 as pb
from latermq.tls.certificates import self_signed
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
    create_topic(server, "plain", "--queues", "3", "--attribute", "message.type=NORMAL")
    for topic, queues, kind in (("in-order", 2, pb.FIFO), ("plain", 3, pb.NORMAL)):
        found = client.route(topic).message_queues
        assert [list(queue.accept_message_types) for queue in found] == [[kind]] * queues


def test_a_topic_without_a_type_accepts_all_types(server: Server, client: GrpcClient) -> None:
    create_topic(server, "untyped", "--queues", "1")
    [queue] = client.route("untyped").message_queues
    assert list(queue.accept_message_types) == [pb.NORMAL, pb.FIFO, pb.DELAY, pb.TRANSACTION]


def test_a_namespace_is_a_prefix_of_the_topic(server: Server, client: GrpcClient) -> None:
    create_topic(server, "shop%orders", "--queues", "1")
    answer = client.route("orders", namespace="shop")
    [queue] = answer.message_queues
    assert queue.topic == pb.Resource(resource_namespace="shop", name="orders")


@pytest.mark.parametrize("topic", ["", "a b", "x" * 128, "TBW102", "rmq_sys_wheel_timer"])
def test_a_topic_that_clients_may_not_use_is_refused(client: GrpcClient, topic: str) -> None:
    assert client.route(topic).status.code == pb.ILLEGAL_TOPIC


def test_a_route_needs_the_endpoints_that_the_client_used(client: GrpcClient) -> None:
    client.endpoints.Clear()
    assert client.route("any").status.code == pb.ILLEGAL_ACCESS_POINT
    assert assign(client, "any", "g").status.code == pb.ILLEGAL_ACCESS_POINT


def test_a_large_request_has_no_larger_answer(client: GrpcClient) -> None:
    address = client.endpoints.addresses[0]
    request = pb.QueryRouteRequest(topic=pb.Resource(name="any"), endpoints=client.endpoints)
    # A field that this version does not know, in each message that is repeated for each queue.
    unknown = b"\xa2\x06" + b"\x80\x80\x40" + b"x" * (1 << 20)
    request.topic.MergeFromString(unknown)
    answer = client.call("QueryRoute", request, pb.QueryRouteResponse)
    assert (answer.status.code, len(answer.message_queues)) == (pb.OK, 8)
    assert answer.ByteSize() < 10_000
    request.endpoints.addresses.extend([address] * 10_000)
    assert client.call("QueryRoute", request, pb.QueryRouteResponse).status.code == pb.ILLEGAL_ACCESS_POINT


def assign(client: GrpcClient, topic: str, group: str) -> pb.QueryAssignmentResponse:
    request = pb.QueryAssignmentRequest(
        topic=pb.Resource(name=topic), group=pb.Resource(name=group), endpoints=client.endpoints
    )
    return client.call("QueryAssignment", request, pb.QueryAssignmentResponse)


def test_a_consumer_receives_from_each_broker_and_in_order_from_each_queue(server: Server, client: GrpcClient) -> None:
    create_topic(server, "assigned", "--queues", "3")
    run_command("group", "create", "orderly", "--ordered", "--namesrv", server.namesrv)
    for group, numbers in (("any-group", [-1]), ("orderly", [0, 1, 2])):
        answer = assign(client, "assigned", group)
        assert answer.status.code == pb.OK
        queues = [assignment.message_queue for assignment in answer.assignments]
        assert [queue.id for queue in queues] == numbers
        assert {queue.broker.name for queue in queues} == {"broker-a"}
        assert all(queue.broker.endpoints == client.endpoints for queue in queues)


def test_an_assignment_with_wrong_names_is_refused(client: GrpcClient) -> None:
    assert assign(client, "a b", "g").status.code == pb.ILLEGAL_TOPIC
    assert assign(client, "any", "a b").status.code == pb.ILLEGAL_CONSUMER_GROUP


def test_consumers_of_the_proxy_are_members_of_their_group(server: Server, client: GrpcClient) -> None:
    subscription = pb.Subscription(
        group=pb.Resource(name="watchers"), subscriptions=[pb.SubscriptionEntry(topic=pb.Resource(name="assigned"))]
    )
    settings = pb.Settings(client_type=pb.PUSH_CONSUMER, subscription=subscription)
    create_topic(server, "assigned", "--queues", "3")
    run_command("group", "create", "watchers", "--namesrv", server.namesrv)
    stream = client.telemetry(pb.TelemetryCommand(settings=settings))
    assert stream.next().status.code == pb.OK

    def members() -> str:
        command = [sys.executable, "-m", "latermq", "group", "show", "watchers", "--namesrv", server.namesrv]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False).stdout

    wait_until(lambda: "test-client" in members(), 20.0, "the consumer as a member")
    request = pb.NotifyClientTerminationRequest(group=pb.Resource(name="watchers"))
    client.call("NotifyClientTermination", request, pb.NotifyClientTerminationResponse)
    wait_until(lambda: "test-client" not in members(), 20.0, "its end")
    stream.close()


def test_without_auto_creation_an_unknown_topic_is_not_found_and_one_without_permission_has_no_queue(
    tmp_path: Path,
) -> None:
    options = ("--set", "broker.auto_create_topics=false")
    with serving(tmp_path / "data", *options, grpc=True) as server, grpc_client(server.proxy) as client:
        assert client.route("unknown").status.code == pb.TOPIC_NOT_FOUND
        assert assign(client, "unknown", "g").status.code == pb.TOPIC_NOT_FOUND
        create_topic(server, "made", "--queues", "1")
        wait_until(lambda: client.route("made").status.code == pb.OK, 10.0, "the new topic")


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
        assert send(client, "known").code == pb.OK
        os.kill(server.broker_pid(), signal.SIGKILL)
        # The cached route stays, so that clients keep their queues during a restart of their broker.
        assert client.route("known").status.code == pb.OK
        began_s = time.monotonic()
        refused = send(client, "known")
        if refused.code != pb.OK:  # unless the machine is so slow that the broker runs again
            assert refused.code == pb.INTERNAL_SERVER_ERROR
            assert time.monotonic() - began_s < 2.0
        wait_until(lambda: send(client, "known").code == pb.OK, 15.0, "a send to the new broker")
        wait_until(lambda: client.route("new").status.code == pb.OK, 15.0, "a route through the new broker")


def send(client: GrpcClient, topic: str) -> pb.Status:
    message = pb.Message(topic=pb.Resource(name=topic), body=b"body")
    message.system_properties.message_id = "01" + "AB" * 16
    message.system_properties.message_type = pb.NORMAL
    message.system_properties.body_encoding = pb.IDENTITY
    return client.call("SendMessage", pb.SendMessageRequest(messages=[message]), pb.SendMessageResponse).status


def test_without_tls_the_proxy_needs_no_directory_and_serves_plaintext_alone(server: Server) -> None:
    with proxy_alone(server.namesrv, "--set", "proxy.tls=false") as (_, address):
        with grpc_client(address) as client:
            assert client.route("any").status.code == pb.OK
        host, _, port = address.rpartition(":")
        with pytest.raises((ssl.SSLError, ConnectionError)):
            ssl.get_server_certificate((host, int(port)), timeout=10)


def test_a_certificate_of_the_operator_is_used(server: Server, tmp_path: Path) -> None:
    files = self_signed(tmp_path, 1_700_000_000_000)
    options = ("--set", f"proxy.certificate={files.certificate}", "--set", f"proxy.key={files.key}")
    with proxy_alone(server.namesrv, *options) as (_, address):
        host, _, port = address.rpartition(":")
        assert ssl.get_server_certificate((host, int(port))) == files.certificate.read_text()


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ([], "error: the proxy cannot start: the proxy has no certificate"),
        (["--set", "proxy.certificate=/nowhere", "--set", "proxy.key=/nowhere"], "cannot use the certificate /nowhere"),
        (["--set", "proxy.certificate=/nowhere"], "proxy.certificate and proxy.key must be set together"),
    ],
)
def test_a_proxy_without_a_usable_certificate_does_not_start(options: list[str], error: str) -> None:
    command = [sys.executable, "-m", "latermq", "proxy", "--namesrv", "127.0.0.1:1", "--port", "0", *options]
    environment = {**os.environ, **NO_METRICS}
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)
    assert ended.returncode == 2
    assert error in ended.stderr
    assert "hint: " in ended.stderr or "must be set together" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_without_a_name_server_the_proxy_starts_and_answers_with_a_status_to_retry(tmp_path: Path) -> None:
    with proxy_alone("127.0.0.1:1", "--data", str(tmp_path)) as (_, address), grpc_client(address) as client:
        assert client.route("any").status.code == pb.INTERNAL_SERVER_ERROR
