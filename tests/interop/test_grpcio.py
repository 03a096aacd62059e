"""grpcio's client, which is built on gRPC core, against our HTTP/2 server: all kinds of calls, with and without TLS."""

import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from latermq.clock import SystemClock
from latermq.tls.certificates import self_signed
from latermq.tls.contexts import server_context
from tests.interop.waiting import wait_until
from tests.support.http2_server import RunningListener, running_listener


@pytest.fixture(scope="module", params=["plaintext", "TLS"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningListener]:
    files = self_signed(tmp_path_factory.mktemp("tls"), SystemClock().now_ms())
    with running_listener(tls=server_context(str(files.certificate), str(files.key))) as running:
        running.certificate = files.certificate if request.param == "TLS" else None
        yield running


@pytest.fixture
def channel(server: RunningListener) -> Iterator[grpc.Channel]:
    with open_channel(server) as opened:
        yield opened


def open_channel(server: RunningListener, *options: tuple[str, object]) -> grpc.Channel:
    options = (("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1), *options)
    certificate: Path | None = server.certificate
    if certificate is None:
        return grpc.insecure_channel(server.address, options=options)
    credentials = grpc.ssl_channel_credentials(certificate.read_bytes())
    return grpc.secure_channel(f"localhost:{server.port}", credentials, options=options)


def test_a_unary_call(channel: grpc.Channel) -> None:
    echo = channel.unary_unary("/test.Service/Echo")
    for size in (0, 1, 100, 16_379, 16_380, 70_000, 1_000_000, 8 * 1024 * 1024):
        message = b"x" * size
        assert echo(message, timeout=30) == message


def test_many_calls_at_once(channel: grpc.Channel) -> None:
    for path in ("/test.Service/Echo", "/test.Service/Later"):
        call = channel.unary_unary(path)
        futures = [call.future(b"%d" % number, timeout=30) for number in range(2000)]
        assert [future.result() for future in futures] == [b"%d" % number for number in range(2000)]


def test_many_large_calls_at_once(channel: grpc.Channel) -> None:
    echo = channel.unary_unary("/test.Service/Echo")
    futures = [echo.future(bytes((number,)) * 1_000_000, timeout=60) for number in range(12)]
    assert [future.result()[:1] for future in futures] == [bytes((number,)) for number in range(12)]


@pytest.mark.parametrize("compression", [grpc.Compression.Gzip, grpc.Compression.NoCompression])
def test_gzip_is_accepted(channel: grpc.Channel, compression: grpc.Compression) -> None:
    echo = channel.unary_unary("/test.Service/Echo")
    assert echo(b"abc" * 10_000, timeout=30, compression=compression) == b"abc" * 10_000


def test_other_compressions_are_refused(channel: grpc.Channel) -> None:
    assert error_of(channel, "Echo", b"abc" * 1000, compression=grpc.Compression.Deflate).code() == (
        grpc.StatusCode.UNIMPLEMENTED
    )


def test_metadata_and_the_deadline_arrive(channel: grpc.Channel) -> None:
    call = channel.unary_unary("/test.Service/Metadata")
    client_id, left_s = call(b"x-mq-client-id", metadata=(("x-mq-client-id", "c@1"),), timeout=3000).split()
    assert client_id == b"c@1"
    assert 2000 < int(left_s) <= 3010  # gRPC core rounds up: it sends 50M or 3010S
    assert call(b"x-bin", metadata=(("x-bin", b"\0\1\2"), ("a", "b"))) == b"AAEC -1"
    assert call(b"a", metadata=(("a", "b"), ("a", "c"))) == b"b,c -1"


def error_of(channel: grpc.Channel, method: str, message: bytes = b"", **options: object) -> grpc.RpcError:
    with pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary(f"/test.Service/{method}")(message, **{"timeout": 30, **options})
    return caught.value


@pytest.mark.parametrize("code", [code for code in grpc.StatusCode if code != grpc.StatusCode.OK])
def test_a_status_arrives_with_its_message(channel: grpc.Channel, code: grpc.StatusCode) -> None:
    error = error_of(channel, "Fail", b"%d" % code.value[0])
    assert error.code() == code
    assert error.details() == "as asked: ü%\n."


def test_what_a_handler_raises_is_an_internal_error(channel: grpc.Channel) -> None:
    error = error_of(channel, "Raise")
    assert (error.code(), error.details()) == (grpc.StatusCode.INTERNAL, "internal error")


def test_an_unknown_method_is_unimplemented(channel: grpc.Channel) -> None:
    assert error_of(channel, "Unknown").code() == grpc.StatusCode.UNIMPLEMENTED


def test_a_message_above_the_limit_is_refused(channel: grpc.Channel) -> None:
    error = error_of(channel, "Echo", b"x" * (8 * 1024 * 1024 + 1))
    assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED


def test_a_server_stream(channel: grpc.Channel) -> None:
    call = channel.unary_stream("/test.Service/Count")(b"5000", timeout=30)
    assert [int(message) for message in call] == list(range(5000))
    assert call.code() == grpc.StatusCode.OK
    assert dict(call.trailing_metadata())["x-count"] == "5000"
    assert list(channel.unary_stream("/test.Service/Count")(b"0", timeout=30)) == []


def test_a_long_stream_to_a_slow_client(channel: grpc.Channel, server: RunningListener) -> None:
    before = server.service.sent_bytes
    call = iter(channel.unary_stream("/test.Service/Flood")(b"6000", timeout=120))
    next(call)
    seen = [0]

    def is_waiting() -> bool:
        seen.append(server.call(lambda: server.service.sent_bytes))
        return seen[-1] == seen[-2]

    wait_until(is_waiting, 30, "the handler waits for its client", pause_s=0.3)
    assert seen[-1] - before < 50_000_000  # about 21 MB in a trial: the client's windows grow
    assert sum(len(message) for message in call) == 59_990_000


def test_a_bidirectional_call(channel: grpc.Channel) -> None:
    chat = channel.stream_stream("/test.Service/Chat")
    call = chat((b"%d" % number * 1000 for number in range(300)), timeout=30)
    assert list(call) == [b"%d" % number * 1000 for number in range(300)]
    assert dict(call.trailing_metadata())["x-end"] == "yes"


@pytest.mark.parametrize(
    ("message", "code"), [(b"fail", grpc.StatusCode.ABORTED), (b"raise", grpc.StatusCode.INTERNAL)]
)
def test_a_failing_bidirectional_call(channel: grpc.Channel, message: bytes, code: grpc.StatusCode) -> None:
    gate = threading.Event()

    def messages() -> Iterator[bytes]:
        yield b"first"
        yield message
        gate.wait(10)

    call = channel.stream_stream("/test.Service/Chat")(messages(), timeout=30)
    assert next(call) == b"first"
    with pytest.raises(grpc.RpcError) as caught:
        next(call)
    gate.set()
    assert caught.value.code() == code


def test_a_cancelled_call_is_reported_to_its_handler(channel: grpc.Channel, server: RunningListener) -> None:
    server.service.cancelled.clear()
    call = channel.unary_unary("/test.Service/Wait").future(b"")
    wait_until(lambda: server.service.waiting, 10, "the call waits")
    call.cancel()
    wait_until(lambda: server.service.cancelled == ["/test.Service/Wait"], 10, "the handler knows")
    server.service.waiting.pop().reply(b"too late")


def test_a_deadline_ends_a_call(channel: grpc.Channel, server: RunningListener) -> None:
    server.service.cancelled.clear()
    error = error_of(channel, "Wait", timeout=0.3)
    assert error.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    wait_until(lambda: server.service.cancelled == ["/test.Service/Wait"], 10, "the handler knows")


def test_keepalive_pings_without_calls_are_answered(server: RunningListener) -> None:
    options = (
        ("grpc.keepalive_time_ms", 100),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.keepalive_timeout_ms", 5000),
        ("grpc.http2.max_pings_without_data", 0),
    )
    with open_channel(server, *options) as channel:
        echo = channel.unary_unary("/test.Service/Echo")
        assert echo(b"a", timeout=30, wait_for_ready=True) == b"a"
        before = server.statistics()["accepted"]
        threading.Event().wait(2.5)
        assert echo(b"b", timeout=30) == b"b"
        assert server.statistics()["accepted"] == before


def test_calls_in_flight_finish_when_the_server_stops() -> None:
    with running_listener() as server:
        server.certificate = None
        with open_channel(server) as channel:
            call = channel.unary_unary("/test.Service/Wait").future(b"")
            wait_until(lambda: server.service.waiting, 10, "the call waits")
            stop = server.begin(lambda: server.listener.stop(grace_s=20))

            def is_refused() -> bool:
                try:
                    channel.unary_unary("/test.Service/Echo")(b"", timeout=10)
                except grpc.RpcError as error:
                    return bool(error.code() == grpc.StatusCode.UNAVAILABLE)
                return False

            wait_until(is_refused, 10, "a new call needs a new connection, which is refused")
            assert not stop.done()
            server.call(lambda: server.service.waiting[0].reply(b"answer"))
            assert call.result(timeout=10) == b"answer"
            stop.result(timeout=10)
