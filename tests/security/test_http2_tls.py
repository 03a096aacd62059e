"""TLS of the gRPC listener: old versions, nonsense within the handshake, and what its context forbids."""

import socket
import ssl
from collections.abc import Iterator

import pytest

from latermq.clock import SystemClock
from latermq.protocol.http2.frames import PREFACE
from latermq.server.http2.transport_limits import TransportLimits
from latermq.tls.certificates import self_signed
from latermq.tls.contexts import server_context
from tests.interop.waiting import wait_until
from tests.support.http2_server import HOST, RunningListener, running_listener

ALERT = 21
PROTOCOL_VERSION = 70


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> ssl.SSLContext:
    files = self_signed(tmp_path_factory.mktemp("tls"), SystemClock().now_ms())
    return server_context(str(files.certificate), str(files.key))


@pytest.fixture
def server(context: ssl.SSLContext) -> Iterator[RunningListener]:
    with running_listener(TransportLimits(linger_s=0.1), tls=context) as running:
        yield running


def answer_to(server: RunningListener, *pieces: bytes) -> bytes:
    """Everything that the server sends before it closes."""
    with socket.create_connection((HOST, server.port), timeout=20) as sock:
        received = b""
        try:
            for piece in pieces:
                sock.sendall(piece)
            while data := sock.recv(65_536):
                received += data
        except ConnectionError:
            pass
        return received


def old_hello(version: int) -> bytes:
    """A ClientHello of TLS 1.0 (0x301) or 1.1 (0x302), without extensions."""
    ciphers = bytes.fromhex("c013c014c009c00a002f0035")
    body = version.to_bytes(2, "big") + bytes(32) + b"\0" + len(ciphers).to_bytes(2, "big") + ciphers + b"\1\0"
    message = b"\1" + len(body).to_bytes(3, "big") + body
    return b"\x16\x03\x01" + len(message).to_bytes(2, "big") + message


def hello() -> bytes:
    """The ClientHello of Python's own client."""
    outgoing = ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


@pytest.mark.parametrize("version", [0x0301, 0x0302])
def test_versions_before_tls_1_2_are_refused(server: RunningListener, version: int) -> None:
    answer = answer_to(server, old_hello(version))
    assert (answer[0], answer[5:]) == (ALERT, bytes((2, PROTOCOL_VERSION)))
    assert server.statistics()["failed_tls"] == 1


def test_plaintext_after_a_hello_ends_the_connection(server: RunningListener) -> None:
    """It is neither taken for HTTP/2 nor answered."""
    answer = answer_to(server, hello(), PREFACE * 3)
    assert answer[0] == 0x16, "the server's part of the handshake"
    assert b"HTTP" not in answer
    assert server.statistics()["failed_tls"] == 1
    assert server.statistics()["finished_calls"] == 0


@pytest.mark.parametrize("cut", [1, 5, 6, 100])
def test_a_hello_in_pieces_is_read_and_a_damaged_one_is_refused(server: RunningListener, cut: int) -> None:
    start = hello()
    damaged = start[:cut] + bytes(byte ^ 0xFF for byte in start[cut:])
    answer_to(server, damaged[:cut], damaged[cut:] + bytes(70_000))
    assert server.statistics()["failed_tls"] == 1
    wait_until(lambda: server.statistics()["connections"] == 0, 20.0, "the connection to be gone")


def test_renegotiation_and_compression_are_off(context: ssl.SSLContext) -> None:
    assert context.options & ssl.OP_NO_RENEGOTIATION
    assert context.options & ssl.OP_NO_COMPRESSION
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
