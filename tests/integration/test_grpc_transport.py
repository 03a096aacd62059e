"""The gRPC listener on real sockets: TLS and plaintext on one port, timeouts, slow readers, the end of connections."""

import contextlib
import socket
import ssl
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from latermq.clock import SimulatedClock, SystemClock
from latermq.protocol.http2.frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_STREAM,
    GOAWAY,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    PING,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    SETTINGS_ACK,
    ErrorCode,
    frame,
    reset_frame,
    settings_frame,
    window_update,
)
from latermq.protocol.http2.grpc.messages import message_prefix
from latermq.protocol.http2.hpack.decoder import FieldCache, HeaderDecoder
from latermq.protocol.http2.hpack.encoder import encode_fields
from latermq.protocol.http2.limits import Limits
from latermq.server.http2.transport_limits import TransportLimits
from latermq.tls.certificates import CertificateFiles, self_signed
from latermq.tls.contexts import server_context
from tests.support.http2_server import HOST, RunningListener, body_handler, running_listener

MIB = 1024 * 1024
TIMEOUT_S = 20.0


def grpc_block(method: str, *fields: tuple[bytes, bytes]) -> bytes:
    return encode_fields(
        [
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":path", b"/test.Service/" + method.encode()),
            (b":authority", b"localhost"),
            (b"content-type", b"application/grpc"),
            *fields,
        ]
    )


def framed(message: bytes) -> bytes:
    return message_prefix(message) + message


class SocketClient:
    """A client that writes raw frames."""

    def __init__(self, sock: socket.socket, settings: dict[int, int] | None = None, greet: bool = True) -> None:
        self.sock = sock
        self.sock.settimeout(TIMEOUT_S)
        self.decoder = HeaderDecoder(FieldCache(), 1 << 20)
        self._buffer = b""
        if greet:
            self.send(PREFACE + settings_frame(settings or {}) + SETTINGS_ACK)

    def send(self, *data: bytes) -> None:
        self.sock.sendall(b"".join(data))

    def request(self, stream_id: int, method: str, message: bytes, *fields: tuple[bytes, bytes]) -> None:
        self.send(frame(HEADERS, 4, stream_id, grpc_block(method, *fields)), frame(DATA, 1, stream_id, framed(message)))

    def frames(self) -> Iterator[tuple[int, int, int, bytes]]:
        """Frames until the server closes."""
        while True:
            while len(self._buffer) >= 9:
                stop = 9 + int.from_bytes(self._buffer[:3], "big")
                if len(self._buffer) < stop:
                    break
                one, self._buffer = self._buffer[:stop], self._buffer[stop:]
                yield one[3], one[4], int.from_bytes(one[5:9], "big"), one[9:]
            data = self.sock.recv(65_536)
            if not data:
                assert not self._buffer, "the last frame is complete"
                return
            self._buffer += data

    def answer(self, stream_id: int) -> tuple[dict[bytes, bytes], bytes]:
        """The headers and trailers of an answer, and its data."""
        fields: dict[bytes, bytes] = {}
        body = bytearray()
        for kind, flags, number, payload in self.frames():
            assert kind != GOAWAY, payload
            if number == stream_id and kind == HEADERS:
                fields.update(pair for pair, _, _ in self.decoder.decode(payload) or [])
            elif number == stream_id and kind == DATA:
                body += payload
            if number == stream_id and kind in (HEADERS, DATA) and flags & END_STREAM:
                return fields, bytes(body)
        raise AssertionError("the server closed the connection")

    def error(self) -> ErrorCode:
        """The code of the last GOAWAY frame before the server closes."""
        codes = [payload[4:8] for kind, _, _, payload in self.frames() if kind == GOAWAY]
        return ErrorCode(int.from_bytes(codes[-1], "big"))

    def is_closed(self) -> bool:
        """Wait for the server to close, with or without a reset."""
        with contextlib.suppress(ConnectionError):
            while self.sock.recv(65_536):
                pass
        return True


@contextlib.contextmanager
def connected(server: RunningListener, **options: object) -> Iterator[SocketClient]:
    with socket.create_connection((HOST, server.port)) as sock:
        yield SocketClient(sock, **options)  # type: ignore[arg-type]


def wait_until(happened: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + TIMEOUT_S
    while not happened():
        assert time.monotonic() < deadline_s, what
        time.sleep(0.02)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> CertificateFiles:
    return self_signed(tmp_path_factory.mktemp("tls"), SystemClock().now_ms())


@pytest.fixture(scope="module")
def context(files: CertificateFiles) -> ssl.SSLContext:
    return server_context(str(files.certificate), str(files.key))


@pytest.fixture(scope="module")
def server(context: ssl.SSLContext) -> Iterator[RunningListener]:
    with running_listener(tls=context) as running:
        yield running


def test_plaintext_and_tls_share_a_port(server: RunningListener, files: CertificateFiles) -> None:
    with connected(server) as client:
        client.request(1, "Echo", b"plain")
        assert client.answer(1) == (
            {b":status": b"200", b"content-type": b"application/grpc", b"grpc-status": b"0"},
            framed(b"plain"),
        )
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        trusting = ssl.create_default_context(cafile=str(files.certificate))
        trusting.set_alpn_protocols(["h2", "http/1.1"])
        trusting.minimum_version = trusting.maximum_version = version
        raw = socket.create_connection((HOST, server.port))
        with trusting.wrap_socket(raw, server_hostname="localhost") as sock:
            assert sock.selected_alpn_protocol() == "h2"
            client = SocketClient(sock)
            client.request(1, "Echo", b"x" * 16_000)
            assert client.answer(1)[1] == framed(b"x" * 16_000)


def test_old_tls_and_clear_nonsense_are_refused(server: RunningListener) -> None:
    before = server.statistics().get("failed_tls", 0)
    for nonsense in (b"\x16\x03\x01\x00\x05hello", b"\x16" * 100):
        with connected(server, greet=False) as client:
            client.send(nonsense)
            assert client.is_closed()
    with connected(server, greet=False) as client:
        client.send(b"GET / HTTP/1.1\r\n\r\n")
        assert client.error() == ErrorCode.PROTOCOL_ERROR
    assert server.statistics()["failed_tls"] >= before + 1


def test_tls_bytes_to_a_server_without_a_certificate_are_a_protocol_error() -> None:
    with running_listener() as plain, connected(plain, greet=False) as client:
        client.send(b"\x16\x03\x01\x00\x05hello")
        assert client.error() == ErrorCode.PROTOCOL_ERROR


def test_a_connection_that_arrives_byte_by_byte(server: RunningListener) -> None:
    with connected(server, greet=False) as client:
        data = PREFACE + settings_frame({}) + frame(HEADERS, 4, 1, grpc_block("Echo")) + frame(DATA, 1, 1, framed(b"x"))
        for byte in data:
            client.send(bytes((byte,)))
        assert client.answer(1)[1] == framed(b"x")


def test_the_answers_to_one_read_leave_in_order(server: RunningListener) -> None:
    with connected(server) as client:
        client.send(
            *(
                frame(HEADERS, 4, number, grpc_block("Echo")) + frame(DATA, 1, number, framed(b"%d" % number))
                for number in range(1, 200, 2)
            )
        )
        ends = [number for kind, flags, number, _ in _some(client, 301) if kind == HEADERS and flags & END_STREAM]
        assert ends == list(range(1, 200, 2))


def _some(client: SocketClient, count: int) -> list[tuple[int, int, int, bytes]]:
    """This many frames, without those of the greeting."""
    found: list[tuple[int, int, int, bytes]] = []
    for one in client.frames():
        if one[2]:
            found.append(one)
        if len(found) == count - 1:
            return found
    return found


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ([b""], b"12"),  # no message
        ([framed(b"a"), framed(b"b")], b"12"),
        ([framed(b"abc")[:6]], b"13"),
        ([framed(b"abc")[:3]], b"13"),
        ([b"\1\0\0\0\0"], b"13"),
        ([b"\0\xff\xff\xff\xff"], b"8"),
        ([framed(b"abc")[:3], framed(b"abc")[3:]], b"0"),
        ([framed(b"abc"), b""], b"0"),
    ],
)
def test_a_unary_call_takes_exactly_one_message(server: RunningListener, body: list[bytes], status: bytes) -> None:
    with connected(server) as client:
        client.send(frame(HEADERS, 4, 1, grpc_block("Echo")))
        for number, piece in enumerate(body, 1):
            client.send(frame(DATA, number == len(body), 1, piece))
        assert client.answer(1)[0][b"grpc-status"] == status


def test_a_request_that_is_not_grpc_gets_an_http_status(server: RunningListener) -> None:
    with connected(server) as client:
        fields = [(b":method", b"GET"), (b":scheme", b"http"), (b":path", b"/")]
        client.send(frame(HEADERS, 5, 1, encode_fields(fields)))
        assert client.answer(1) == ({b":status": b"415"}, b"")
        client.send(frame(HEADERS, 5, 3, encode_fields([*fields, (b"content-type", b"application/grpc")])))
        assert client.answer(3)[0][b":status"] == b"405"


def test_an_unknown_encoding_is_refused_with_those_that_are_known(server: RunningListener) -> None:
    with connected(server) as client:
        client.request(1, "Echo", b"x", (b"grpc-encoding", b"snappy"))
        fields, _ = client.answer(1)
        assert fields[b"grpc-status"] == b"12"
        assert fields[b"grpc-accept-encoding"] == b"identity,gzip"


def test_a_handler_that_fails_when_it_is_cancelled_harms_no_other_call(server: RunningListener) -> None:
    def fail() -> None:
        raise ValueError("as asked")

    with connected(server) as client:
        server.service.waiting.clear()
        client.request(1, "Wait", b"")
        wait_until(lambda: len(server.service.waiting) == 1, "the call waits")
        server.service.waiting[0].on_cancel = fail
        client.send(reset_frame(1, ErrorCode.CANCEL))
        client.request(3, "Echo", b"still here")
        assert client.answer(3)[1] == framed(b"still here")


def test_a_call_that_is_refused_early_does_not_end_its_connection(server: RunningListener) -> None:
    with connected(server) as client:
        client.send(frame(HEADERS, 4, 1, grpc_block("Unknown")))
        assert client.answer(1)[0][b"grpc-status"] == b"12"
        client.send(*(frame(DATA, 0, 1, b"x" * 16_384) for _ in range(3)), frame(DATA, 1, 1, b""))
        client.request(3, "Echo", b"still here")
        assert client.answer(3)[1] == framed(b"still here")


def test_a_finished_answer_that_waits_for_a_window_is_not_a_new_call(server: RunningListener) -> None:
    with connected(server, settings={INITIAL_WINDOW_SIZE: 5}) as client:
        client.send(
            frame(HEADERS, 4, 1, grpc_block("Chat")), frame(DATA, 0, 1, framed(b"0123456789") + framed(b"fail"))
        )
        client.send(frame(DATA, 0, 1, framed(b"more")))
        client.send(frame(PING, 0, 0, b"12345678"))
        before = b"".join(payload for kind, _, _, payload in _until_ping(client) if kind == DATA)
        client.send(window_update(1, 1000))
        fields, body = client.answer(1)
        assert fields[b"grpc-status"] == b"10"
        assert before + body == framed(b"0123456789")


def _until_ping(client: SocketClient) -> Iterator[tuple[int, int, int, bytes]]:
    for one in client.frames():
        yield one
        if one[0] == PING:
            return


def test_a_fault_is_explained_before_the_connection_closes(server: RunningListener) -> None:
    with connected(server) as client:
        client.send(frame(PING, 0, 1, b"12345678"), b"x" * 300_000)  # more than the server reads before it answers
        assert client.error() == ErrorCode.PROTOCOL_ERROR


def test_a_lost_connection_cancels_its_calls(server: RunningListener) -> None:
    server.service.cancelled.clear()
    with connected(server) as client:
        client.request(1, "Wait", b"")
        client.send(frame(HEADERS, 4, 3, grpc_block("Chat")), frame(DATA, 0, 3, framed(b"hello")))
        client.send(frame(PING, 0, 0, b"12345678"))
        for _ in _until_ping(client):
            pass
    expected = ["/test.Service/Chat", "/test.Service/Wait"]
    wait_until(lambda: sorted(server.service.cancelled) == expected, "both calls are cancelled")


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock()


@pytest.fixture
def timed(clock: SimulatedClock) -> Iterator[RunningListener]:
    """A listener with the default timeouts, on the simulated clock."""
    with running_listener(TransportLimits(linger_s=0.1), clock=clock) as running:
        yield running


def pass_s(server: RunningListener, clock: SimulatedClock, seconds: float) -> None:
    """Advance the clock, and let the listener look at its connections."""

    def advance() -> None:
        clock.advance(int(seconds * 1000))
        server.listener.sweep()

    server.call(advance)


def test_an_idle_connection_is_closed_gracefully(timed: RunningListener, clock: SimulatedClock) -> None:
    with connected(timed) as client:
        client.request(1, "Wait", b"")
        wait_until(lambda: len(timed.service.waiting) == 1, "the call waits")
        for _ in range(3):
            pass_s(timed, clock, 3600)  # a call is not idleness, however long it takes
        timed.call(lambda: timed.service.waiting[0].reply(b"done"))
        assert client.answer(1)[1] == framed(b"done")
        pass_s(timed, clock, 0)
        pass_s(timed, clock, 119)
        assert all(kind != GOAWAY for kind, *_ in _frames_now(client))
        pass_s(timed, clock, 1)
        assert client.error() == ErrorCode.NO_ERROR


@pytest.mark.parametrize("start", [b"", PREFACE[:10], PREFACE], ids=["nothing", "part of the preface", "no SETTINGS"])
def test_a_silent_connection_is_closed(timed: RunningListener, clock: SimulatedClock, start: bytes) -> None:
    with connected(timed, greet=False) as client:
        client.send(start)
        wait_until(lambda: timed.statistics()["connections"] == 1, "the connection is accepted")
        pass_s(timed, clock, 9)
        assert timed.statistics()["connections"] == 1
        pass_s(timed, clock, 1)
        assert client.is_closed()
        assert timed.statistics()["failed_timeout"] == 1


def test_headers_that_never_end_do_not_keep_a_connection_open(timed: RunningListener, clock: SimulatedClock) -> None:
    with connected(timed) as client:
        client.send(frame(HEADERS, 0, 1, grpc_block("Echo")[:20]))
        for _ in _until(client, SETTINGS_ACK):
            pass
        for _ in range(11):
            client.send(frame(CONTINUATION, 0, 1, b"\0"))  # never more than a byte, and never in time
            pass_s(timed, clock, 10)
        assert timed.statistics()["connections"] == 1
        pass_s(timed, clock, 10)
        assert client.error() == ErrorCode.NO_ERROR
        client.sock.close()
    wait_until(lambda: timed.statistics()["connections"] == 0, "the connection is gone")


def _until(client: SocketClient, last: bytes) -> Iterator[tuple[int, int, int, bytes]]:
    for one in client.frames():
        yield one
        if frame(*one) == last:
            return


def test_a_request_that_never_ends_is_refused(timed: RunningListener, clock: SimulatedClock) -> None:
    with connected(timed) as client:
        client.send(frame(HEADERS, 4, 1, grpc_block("Echo")), frame(DATA, 0, 1, framed(b"abc")))
        client.send(frame(HEADERS, 4, 3, grpc_block("Chat")))
        for _ in _frames_now(client):
            pass
        pass_s(timed, clock, 59)
        assert all(kind != HEADERS for kind, *_ in _frames_now(client))
        pass_s(timed, clock, 1)
        assert client.answer(1)[0][b"grpc-status"] == b"4"
        client.send(frame(DATA, 1, 3, framed(b"a bidirectional call may wait")))
        assert client.answer(3)[0][b"grpc-status"] == b"0"


def test_a_peer_that_opens_no_window_is_cut_off(timed: RunningListener, clock: SimulatedClock) -> None:
    with connected(timed, settings={INITIAL_WINDOW_SIZE: 0}) as client:
        client.request(1, "Echo", b"x")
        wait_until(lambda: timed.statistics()["unsent_bytes"] > 0, "an answer waits for a window")
        pass_s(timed, clock, 59)
        assert timed.statistics()["connections"] == 1
        pass_s(timed, clock, 1)
        assert client.is_closed()
        assert timed.statistics()["failed_stalled"] == 1


def answered(server: RunningListener, client: SocketClient) -> list[bool]:
    """Answer a call, and return the list that `when_read` fills."""
    client.request(1, "Wait", b"")
    wait_until(lambda: len(server.service.waiting) == 1, "the call waits")
    reads: list[bool] = []

    def answer() -> None:
        call = server.service.waiting[0]
        call.reply(b"done")
        call.when_read(reads.append)

    server.call(answer)
    return reads


def next_ping(client: SocketClient) -> bytes:
    return next(payload for kind, flags, _, payload in client.frames() if kind == PING and not flags & ACK)


def test_a_peer_that_answers_a_ping_has_read_what_was_sent_before(
    timed: RunningListener, clock: SimulatedClock
) -> None:
    with connected(timed) as client:
        reads = answered(timed, client)
        client.send(frame(PING, ACK, 0, b"any data"))
        pass_s(timed, clock, 1)
        payload = next_ping(client)
        assert not reads
        client.send(frame(PING, ACK, 0, payload))
        wait_until(lambda: reads == [True], "the answer is known to be read")


@pytest.mark.parametrize("is_probed", [False, True])
def test_an_answer_whose_stream_the_peer_resets_before_it_answers_the_ping_has_not_been_read(
    timed: RunningListener, clock: SimulatedClock, is_probed: bool
) -> None:
    """A client whose deadline passes while the answer is on its way resets the stream, and ignores the answer."""
    with connected(timed) as client:
        reads = answered(timed, client)
        if is_probed:
            pass_s(timed, clock, 1)
            payload = next_ping(client)
            client.send(reset_frame(1, ErrorCode.CANCEL), frame(PING, ACK, 0, payload))
        else:
            client.send(reset_frame(1, ErrorCode.CANCEL))
        wait_until(lambda: bool(reads), "the fate of the answer is known")
        assert reads == [False]


def test_an_answer_that_still_waits_for_a_window_when_the_peer_resets_its_stream_has_not_been_read(
    timed: RunningListener, clock: SimulatedClock
) -> None:
    with connected(timed, settings={INITIAL_WINDOW_SIZE: 0}) as client:
        reads = answered(timed, client)
        client.send(reset_frame(1, ErrorCode.CANCEL))
        wait_until(lambda: timed.statistics()["unsent_bytes"] == 0, "the answer is dropped")
        wait_until(lambda: reads == [False], "the answer counts as lost")


def test_a_connection_that_ends_before_the_answer_to_a_ping_may_have_lost_what_was_sent(
    timed: RunningListener, clock: SimulatedClock
) -> None:
    with connected(timed) as client:
        reads = answered(timed, client)
        pass_s(timed, clock, 1)
    wait_until(lambda: reads == [False], "the answer counts as lost")


def test_a_peer_that_never_answers_a_ping_is_cut_off(timed: RunningListener, clock: SimulatedClock) -> None:
    with connected(timed) as client:
        reads = answered(timed, client)
        pass_s(timed, clock, 1)
        pass_s(timed, clock, 59)
        assert not reads
        pass_s(timed, clock, 1)
        wait_until(lambda: reads == [False], "the answer counts as lost")
        assert timed.statistics()["failed_stalled"] == 1


def test_a_peer_that_does_not_read_cannot_fill_the_memory() -> None:
    http2 = Limits(max_unsent_bytes=2 * MIB)
    with running_listener(TransportLimits(http2=http2), new_handler=body_handler(b"x" * 100_000)) as server:
        with connected(server, settings={INITIAL_WINDOW_SIZE: MIB}) as client:
            client.send(window_update(0, (1 << 31) - 1 - 65_535))
            block = encode_fields([(b":method", b"GET"), (b":scheme", b"http"), (b":path", b"/")])
            with contextlib.suppress(ConnectionError):
                for number in range(1, 2001, 2):
                    client.send(frame(HEADERS, 5, number, block))
                    assert server.statistics()["unsent_bytes"] <= 3 * MIB
        wait_until(lambda: server.statistics().get("failed_enhance_your_calm") == 1, "the connection is cut off")
        assert server.statistics()["unsent_bytes"] == 0


def test_a_streaming_handler_waits_for_a_slow_peer_and_learns_of_its_end(server: RunningListener) -> None:
    server.service.cancelled.clear()
    sent_bytes = server.service.sent_bytes
    with connected(server) as client:
        client.request(1, "Flood", b"10000")
        wait_until(lambda: server.service.sent_bytes - sent_bytes >= 200_000, "it sends until its buffer is full")
        for _ in range(3):
            assert any(kind == PING for kind, *_ in _frames_now(client)), "the loop has had a turn to send more"
        assert server.service.sent_bytes - sent_bytes < MIB
        client.send(reset_frame(1, ErrorCode.CANCEL))
        wait_until(lambda: not server.service.tasks, "the handler ends")
    assert server.service.cancelled == ["/test.Service/Flood"]


def test_a_stream_to_a_peer_with_large_windows_does_not_stall(server: RunningListener) -> None:
    """No frame of the peer wakes the handler: it continues when the socket has taken what it sent."""
    with connected(server, settings={INITIAL_WINDOW_SIZE: (1 << 31) - 1}) as client:
        client.send(window_update(0, (1 << 31) - 65_536))
        client.request(1, "Flood", b"3000")
        fields, body = client.answer(1)
        assert fields[b"grpc-status"] == b"0"
        assert len(body) == 3000 * 10_005


def test_incomplete_messages_cannot_fill_the_memory() -> None:
    http2 = Limits(max_held_bytes=4 * MIB)
    with running_listener(TransportLimits(http2=http2)) as server, connected(server) as client:
        start = b"\0" + (7 * MIB).to_bytes(4, "big")
        for number in range(1, 100, 2):
            client.send(frame(HEADERS, 4, number, grpc_block("Echo")), frame(DATA, 0, number, start))
            for _ in range(6):
                client.send(frame(DATA, 0, number, b"x" * 16_384))
        client.request(101, "Echo", b"still served")
        statuses = []
        for kind, flags, number, payload in client.frames():
            assert kind != GOAWAY
            if kind == HEADERS and flags & END_STREAM:
                statuses.append(dict(pair for pair, _, _ in client.decoder.decode(payload) or []))
                if number == 101:
                    break
        assert statuses[-1][b"grpc-status"] == b"0"
        assert {status[b"grpc-status"] for status in statuses[:-1]} == {b"8"}
        assert server.statistics()["request_bytes"] <= 2 * MIB


def test_the_largest_holder_is_cut_off_when_all_connections_hold_too_much() -> None:
    with running_listener(TransportLimits(max_held_bytes=2 * MIB)) as server, connected(server) as small:
        small.request(1, "Wait", b"x" * 16_000)
        with connected(server) as large:
            start = b"\0" + (7 * MIB).to_bytes(4, "big")
            large.send(frame(HEADERS, 4, 1, grpc_block("Echo")), frame(DATA, 0, 1, start))
            with contextlib.suppress(ConnectionError):
                for _ in range(150):
                    large.send(frame(DATA, 0, 1, b"x" * 16_384))
            assert large.is_closed()
        assert server.statistics()["let_go"] == 1
        server.call(lambda: server.service.waiting[0].reply(b"done"))
        assert small.answer(1)[1] == framed(b"done")
        assert server.statistics()["held_bytes"] == 0


def test_requests_that_are_being_served_keep_the_window_closed() -> None:
    http2 = Limits(max_held_bytes=4 * MIB)
    with running_listener(TransportLimits(http2=http2)) as server, connected(server) as client:
        message = b"x" * (MIB - 100)
        body = framed(message)
        for number in (1, 3, 5):
            client.send(frame(HEADERS, 4, number, grpc_block("Wait")))
            client.send(*(frame(DATA, 0, number, body[at : at + 16_384]) for at in range(0, len(body), 16_384)))
            client.send(frame(DATA, 1, number, b""))
        wait_until(lambda: len(server.service.waiting) == 3, "three calls wait")
        assert server.statistics()["request_bytes"] == 3 * len(body)
        assert all(
            kind != 8 or number or int.from_bytes(payload, "big") > 4 * MIB - 65_536
            for kind, _, number, payload in _frames_now(client)
        )
        for call in server.service.waiting:
            server.call(lambda call=call: call.reply(b"done"))  # type: ignore[misc]
        assert client.answer(5)[1] == framed(b"done")
        assert server.statistics()["request_bytes"] == 0


def _frames_now(client: SocketClient) -> Iterator[tuple[int, int, int, bytes]]:
    client.send(frame(PING, 0, 0, b"12345678"))
    return _until_ping(client)


def test_connections_above_the_limit_are_refused() -> None:
    limits = TransportLimits(max_connections=2)
    with running_listener(limits) as server, connected(server) as first, connected(server) as second:
        for client in (first, second):
            client.request(1, "Echo", b"x")
            client.answer(1)
        with connected(server, greet=False) as third:
            assert third.is_closed()
        assert server.statistics()["refused"] == 1
    with running_listener(TransportLimits(max_connections_per_address=1)) as server, connected(server) as first:
        first.request(1, "Echo", b"x")
        first.answer(1)
        with connected(server, greet=False) as second:
            assert second.is_closed()


def test_a_stop_without_calls_ends_at_once() -> None:
    with running_listener() as server, connected(server) as client:
        client.request(1, "Echo", b"x")
        client.answer(1)
        stopped = server.begin(lambda: server.listener.stop(grace_s=15))
        goaways = []
        for kind, flags, _, payload in client.frames():
            if kind == PING and not flags & ACK:
                client.send(frame(PING, ACK, 0, payload))
            if kind == GOAWAY:
                goaways.append(int.from_bytes(payload[:4], "big"))
        assert goaways == [(1 << 31) - 1, 1]
        client.sock.close()
        stopped.result(timeout=10)


def test_a_stop_aborts_calls_that_exceed_the_grace() -> None:
    with running_listener() as server, connected(server) as client:
        client.request(1, "Wait", b"")
        wait_until(lambda: len(server.service.waiting) == 1, "the call waits")
        server.run(lambda: server.listener.stop(grace_s=0.1))
        assert client.is_closed()
        assert server.service.cancelled == ["/test.Service/Wait"]


def test_statistics_count_calls_and_failures(server: RunningListener) -> None:
    before = server.statistics()
    with connected(server) as client:
        client.request(1, "Echo", b"x")
        client.answer(1)
        client.request(3, "Wait", b"x")
        wait_until(lambda: server.statistics()["calls"] == before["calls"] + 1, "a call is open")
        client.send(settings_frame({2: 7}))
        assert client.error() == ErrorCode.PROTOCOL_ERROR
    wait_until(lambda: server.statistics()["connections"] == before["connections"], "the connection is forgotten")
    after = server.statistics()
    assert after["finished_calls"] == before["finished_calls"] + 1
    assert after["failed_protocol_error"] == before.get("failed_protocol_error", 0) + 1


def test_a_self_signed_certificate_is_created_once_and_is_private(tmp_path: Path) -> None:
    folder = tmp_path / "tls"
    first = self_signed(folder, SystemClock().now_ms())
    contents = [path.read_bytes() for path in first]
    assert [path.read_bytes() for path in self_signed(folder, SystemClock().now_ms())] == contents
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in first)
    assert sorted(path.name for path in folder.iterdir()) == ["certificate.pem", "key.pem"]


def test_nothing_is_sent_before_the_first_byte(server: RunningListener) -> None:
    """The first byte decides between TLS and plaintext, so the server cannot greet before."""
    with connected(server, greet=False) as client:
        client.sock.settimeout(0.3)
        with pytest.raises(TimeoutError):
            client.sock.recv(1)
        client.sock.settimeout(TIMEOUT_S)
        client.send(PREFACE)
        assert next(client.frames())[0] == SETTINGS


def test_the_reset_of_a_finished_call_is_harmless(server: RunningListener) -> None:
    with connected(server) as client:
        client.request(1, "Echo", b"x")
        client.answer(1)
        client.send(reset_frame(1, ErrorCode.CANCEL))
        client.request(3, "Echo", b"y")
        assert client.answer(3)[1] == framed(b"y")
        assert all(kind != RST_STREAM for kind, *_ in _frames_now(client))
