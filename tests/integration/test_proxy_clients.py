"""Telemetry streams, heartbeats and the end of clients, through a real proxy."""

import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from latermq.protocol.http2.frames import DATA, HEADERS, PREFACE, SETTINGS_ACK, frame, settings_frame
from latermq.protocol.http2.grpc.messages import message_prefix
from latermq.protocol.http2.hpack.encoder import encode_fields
from latermq.protocol.messaging import messaging_pb2 as pb
from latermq.server.proxy.calls.call_table import SERVICE
from tests.integration.test_proxy import send
from tests.interop.ports import free_port
from tests.interop.waiting import wait_until
from tests.support.grpc_client import GrpcClient, grpc_client
from tests.support.metrics_scrape import scrape
from tests.support.serving import Server, serving

METRICS_PORT = free_port()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    options = ("--set", f"metrics.proxy_port={METRICS_PORT}", "--set", "proxy.max_settings=8KiB")
    with serving(tmp_path_factory.mktemp("data") / "data", *options, grpc=True) as running:
        yield running


@pytest.fixture(params=[False, True], ids=["plaintext", "TLS"])
def client(server: Server, request: pytest.FixtureRequest) -> Iterator[GrpcClient]:
    with grpc_client(server.proxy, tls=request.param) as connected:
        yield connected


def producing(*topics: str) -> pb.TelemetryCommand:
    publishing = pb.Publishing(topics=[pb.Resource(name=topic) for topic in topics])
    return pb.TelemetryCommand(settings=pb.Settings(client_type=pb.PRODUCER, publishing=publishing))


def consuming(group: str) -> pb.TelemetryCommand:
    subscription = pb.Subscription(group=pb.Resource(name=group))
    return pb.TelemetryCommand(settings=pb.Settings(client_type=pb.PUSH_CONSUMER, subscription=subscription))


def heartbeat(client: GrpcClient, kind: pb.ClientType, group: str | None = None) -> pb.Status:
    resource = None if group is None else pb.Resource(name=group)
    return client.call("Heartbeat", pb.HeartbeatRequest(client_type=kind, group=resource), pb.HeartbeatResponse).status


def clients() -> float:
    return scrape(METRICS_PORT).value("latermq_proxy_clients")


def test_settings_are_answered_on_the_stream_they_came_on(client: GrpcClient) -> None:
    stream = client.telemetry(producing("t"))
    answer = stream.next()
    assert answer.status.code == pb.OK
    assert answer.settings.publishing.max_body_size == 4 * 1024 * 1024
    assert answer.settings.backoff_policy.max_attempts == 3
    stream.send(producing("t", "u"))
    assert [topic.name for topic in stream.next().settings.publishing.topics] == ["t", "u"]
    stream.end()
    assert list(stream.call) == []
    assert stream.call.code() == grpc.StatusCode.OK


def test_a_consumer_gets_the_settings_of_its_group(client: GrpcClient) -> None:
    stream = client.telemetry(consuming("unknown-group"))
    settings = stream.next().settings
    assert not settings.subscription.fifo
    assert settings.backoff_policy.max_attempts == 17
    assert len(settings.backoff_policy.customized_backoff.next) == 18
    stream.close()


@pytest.mark.parametrize(
    ("first", "text"),
    [
        (pb.TelemetryCommand(thread_stack_trace=pb.ThreadStackTrace()), "the first command must be"),
        (pb.TelemetryCommand(settings=pb.Settings()), "the settings say neither"),
        (consuming("a b"), "group 'a b' contains illegal characters"),
        (producing(*(f"topic-{number}" for number in range(100))), "the limit is 8192"),
    ],
)
def test_wrong_settings_end_the_stream_with_invalid_argument(
    server: Server, first: pb.TelemetryCommand, text: str
) -> None:
    with grpc_client(server.proxy) as client:
        stream = client.telemetry(first)
        answer = stream.next().status
        assert answer.code in (
            pb.BAD_REQUEST,
            pb.UNRECOGNIZED_CLIENT_TYPE,
            pb.ILLEGAL_CONSUMER_GROUP,
            pb.PAYLOAD_TOO_LARGE,
        )
        with pytest.raises(grpc.RpcError) as caught:
            stream.next()
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert text in caught.value.details()
        stream.close()


def test_a_stream_without_a_client_id_is_refused(server: Server) -> None:
    with grpc_client(server.proxy, client_id=None) as client:
        stream = client.telemetry(producing("t"))
        with pytest.raises(grpc.RpcError) as caught:
            stream.next()
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        stream.close()


def test_heartbeats_of_clients_without_settings_are_accepted(client: GrpcClient) -> None:
    assert heartbeat(client, pb.PRODUCER).code == pb.OK
    assert heartbeat(client, pb.PUSH_CONSUMER, "g").code == pb.OK
    assert heartbeat(client, pb.SIMPLE_CONSUMER, "g").code == pb.OK


def test_heartbeats_that_say_too_little_are_refused(client: GrpcClient) -> None:
    assert heartbeat(client, pb.PUSH_CONSUMER).code == pb.ILLEGAL_CONSUMER_GROUP
    assert heartbeat(client, pb.PUSH_CONSUMER, "a b").code == pb.ILLEGAL_CONSUMER_GROUP
    assert heartbeat(client, pb.CLIENT_TYPE_UNSPECIFIED).code == pb.UNRECOGNIZED_CLIENT_TYPE


def test_a_client_that_says_goodbye_is_forgotten(server: Server) -> None:
    with grpc_client(server.proxy, client_id="leaving") as client:
        before = clients()
        heartbeat(client, pb.PUSH_CONSUMER, "leavers")
        heartbeat(client, pb.PRODUCER)
        assert clients() == before + 2
        request = pb.NotifyClientTerminationRequest(group=pb.Resource(name="leavers"))
        answer = client.call("NotifyClientTermination", request, pb.NotifyClientTerminationResponse)
        assert answer.status.code == pb.OK
        assert clients() == before
        # Again, as after a restart of the proxy.
        answer = client.call("NotifyClientTermination", request, pb.NotifyClientTerminationResponse)
        assert answer.status.code == pb.OK


def test_every_call_needs_a_client_id(server: Server) -> None:
    with grpc_client(server.proxy, client_id=None) as client:
        assert heartbeat(client, pb.PRODUCER).code == pb.CLIENT_ID_REQUIRED
        for method, request, reply in (
            ("QueryAssignment", pb.QueryAssignmentRequest(), pb.QueryAssignmentResponse),
            ("NotifyClientTermination", pb.NotifyClientTerminationRequest(), pb.NotifyClientTerminationResponse),
        ):
            assert client.call(method, request, reply).status.code == pb.CLIENT_ID_REQUIRED  # type: ignore[attr-defined]


def test_a_message_that_cannot_be_decoded_is_an_internal_error(client: GrpcClient) -> None:
    invoke = client.channel.unary_unary(f"/{SERVICE}/Heartbeat")
    with pytest.raises(grpc.RpcError) as caught:
        invoke(b"\xff\xff", timeout=10, metadata=client.metadata())
    assert caught.value.code() == grpc.StatusCode.INTERNAL
    assert caught.value.details() == "the message is not a valid HeartbeatRequest"


def resident_bytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def open_streams(address: str, first: int, count: int) -> socket.socket:
    """Open telemetry streams of different clients on one connection, and read none of the answers."""
    host, _, port = address.rpartition(":")
    sock = socket.create_connection((host, int(port)))
    sock.sendall(PREFACE + settings_frame({}) + SETTINGS_ACK)
    message = producing("idle").SerializeToString()
    for number in range(count):
        block = encode_fields(
            [
                (b":method", b"POST"),
                (b":scheme", b"http"),
                (b":path", f"/{SERVICE}/Telemetry".encode()),
                (b":authority", b"localhost"),
                (b"content-type", b"application/grpc"),
                (b"x-mq-client-id", f"idle-{first + number}".encode()),
            ]
        )
        stream_id = 2 * number + 1
        sock.sendall(frame(HEADERS, 4, stream_id, block) + frame(DATA, 0, stream_id, message_prefix(message) + message))
    return sock


def test_5000_idle_streams_take_little_memory(server: Server) -> None:
    pid = server.proxy_pid()
    before_bytes, before = resident_bytes(pid), clients()
    socks = [open_streams(server.proxy, first, 2500) for first in (0, 2500)]
    try:
        wait_until(lambda: clients() - before == 5000, 30.0, "5,000 clients")
        assert scrape(METRICS_PORT).value("latermq_proxy_telemetry_streams") >= 5000
        per_stream_bytes = (resident_bytes(pid) - before_bytes) / 5000
        print(f"{per_stream_bytes:.0f} bytes per stream")
        assert per_stream_bytes < 6_000
    finally:
        for sock in socks:
            sock.close()
    wait_until(lambda: scrape(METRICS_PORT).value("latermq_proxy_telemetry_streams") < 100, 30.0, "their end")


def test_settings_without_end_from_a_client_that_does_not_read_take_bounded_memory(server: Server) -> None:
    pid = server.proxy_pid()
    before_bytes = resident_bytes(pid)
    message = producing("idle").SerializeToString()
    piece = frame(DATA, 0, 1, (message_prefix(message) + message) * 100)
    with open_streams(server.proxy, 0, 1) as sock:
        sock.settimeout(0.5)
        deadline_s = time.monotonic() + 3
        sent_bytes = 0
        while time.monotonic() < deadline_s:
            try:
                sent_bytes += sock.send(piece * 10)
            except (TimeoutError, ConnectionError):
                break
        assert sent_bytes > 10_000
        assert resident_bytes(pid) - before_bytes < 64 * 1024 * 1024
    with grpc_client(server.proxy) as client:
        assert heartbeat(client, pb.PRODUCER).code == pb.OK


def test_settings_of_4_mb_end_the_stream_before_they_are_decoded(server: Server) -> None:
    with grpc_client(server.proxy) as client:
        stream = client.telemetry(producing(*(["t"] * 800_000)))
        assert stream.next().status.code == pb.PAYLOAD_TOO_LARGE
        with pytest.raises(grpc.RpcError) as caught:
            stream.next()
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert "bytes; the limit is 8192" in caught.value.details()
        stream.close()


def test_the_newest_stream_of_a_client_gets_the_check_of_its_transaction(tmp_path: Path) -> None:
    options = ("--set", "transaction.check_after=500ms", "--set", "transaction.check_every=500ms")
    with serving(tmp_path / "data", *options, grpc=True) as server, grpc_client(server.proxy) as client:
        older = client.telemetry(producing("orders"))
        older.next()
        with grpc_client(server.proxy) as reconnected:
            stream = reconnected.telemetry(producing("orders"))
            stream.next()
            message = pb.Message(topic=pb.Resource(name="orders"), body=b"half")
            message.system_properties.message_id = "01" + "AB" * 16
            message.system_properties.message_type = pb.TRANSACTION
            message.system_properties.body_encoding = pb.IDENTITY
            sent = client.call("SendMessage", pb.SendMessageRequest(messages=[message]), pb.SendMessageResponse)
            assert sent.status.code == pb.OK, sent
            command = stream.next().recover_orphaned_transaction_command
            assert command.message.body == b"half"
            assert command.transaction_id == sent.entries[0].transaction_id
            stream.close()
        # The proxy dies, and the client opens a stream again: it gets the next check.
        os.kill(server.proxy_pid(), signal.SIGKILL)
        older.close()

        def asked_again() -> bool:
            renewed = client.telemetry(producing("orders"))
            try:
                renewed.next()
                return renewed.next().recover_orphaned_transaction_command.message.body == b"half"
            except grpc.RpcError:
                return False
            finally:
                renewed.close()

        wait_until(asked_again, 15.0, "a check through the new proxy")


def test_a_stop_ends_the_streams_and_exits_with_0(tmp_path: Path) -> None:
    with serving(tmp_path / "data", grpc=True) as server, grpc_client(server.proxy) as client:
        stream = client.telemetry(producing("t"))
        stream.next()
        queue = client.route("t").message_queues[0]
        send(client, "t")
        request = pb.ReceiveMessageRequest(
            group=pb.Resource(name="g"), message_queue=queue, batch_size=1, invisible_duration=Duration(seconds=20)
        )
        request.long_polling_timeout.FromSeconds(15)
        list(client.stream("ReceiveMessage", request, pb.ReceiveMessageResponse))  # creates the group at the end
        waiting = client.stream("ReceiveMessage", request, pb.ReceiveMessageResponse)
        time.sleep(0.5)
        pid = server.proxy_pid()
        began_s = time.monotonic()
        os.kill(pid, signal.SIGTERM)
        with pytest.raises(grpc.RpcError) as caught:
            stream.next()
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
        assert caught.value.details() == "the proxy is stopping"
        assert [answer.status.code for answer in waiting if answer.HasField("status")] == [pb.MESSAGE_NOT_FOUND]
        wait_until(lambda: "proxy exited and is being restarted" in server.log(), 15.0, "the end of the proxy")
        assert time.monotonic() - began_s < 8
        assert "exit code 0" in server.log()
        stream.close()
