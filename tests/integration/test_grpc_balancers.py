"""A gRPC listener behind load balancers: addresses of their clients, limits, and headers from others."""

import contextlib
import socket
import ssl
from collections.abc import Iterator
from ipaddress import ip_network
from pathlib import Path

import pytest

from latermq.clock import SimulatedClock, SystemClock
from latermq.protocol.http2.frames import PREFACE, ErrorCode
from latermq.server.http2.transport_limits import TransportLimits
from latermq.tls.certificates import self_signed
from latermq.tls.contexts import server_context
from tests.integration.test_grpc_transport import SocketClient, connected, framed, pass_s, wait_until
from tests.support.http2_server import HOST, RunningListener, running_listener

BEHIND = TransportLimits(balancers=(ip_network("127.0.0.0/8"),), max_connections_per_address=2)
ELSEWHERE = TransportLimits(balancers=(ip_network("10.0.0.0/8"), ip_network("::1/128")))


def v1(ip: str, port: int = 5000) -> bytes:
    return f"PROXY TCP4 {ip} 10.9.9.9 {port} 8081\r\n".encode()


V2 = bytes.fromhex("0d0a0d0a000d0a515549540a 21 11 000c 0a010203 c0a8000b dc04 1f91")
LOCAL = bytes.fromhex("0d0a0d0a000d0a515549540a 20 00 0000")


@pytest.fixture
def server() -> Iterator[RunningListener]:
    with running_listener(BEHIND) as running:
        yield running


def peers(server: RunningListener) -> list[str]:
    return sorted(connection.peer_name for connection in server.listener._accepted)


@contextlib.contextmanager
def called_through(server: RunningListener, header: bytes) -> Iterator[SocketClient]:
    """A client behind a balancer that has made a call."""
    with connected(server, greet=False) as client:
        client.send(header)
        client = SocketClient(client.sock)
        client.request(1, "Echo", b"x")
        assert client.answer(1)[1] == framed(b"x")
        yield client


def test_the_address_of_the_client_is_the_one_in_the_header(server: RunningListener) -> None:
    with called_through(server, v1("10.7.7.7", 1234)), called_through(server, V2):
        assert server.call(lambda: peers(server)) == ["10.1.2.3:56324", "10.7.7.7:1234"]
    with called_through(server, LOCAL):
        wait_until(lambda: server.statistics()["connections"] == 1, "the others are forgotten")
        assert server.call(lambda: peers(server))[0].startswith("127.0.0.1:")


def test_a_header_may_arrive_byte_by_byte(server: RunningListener) -> None:
    for header in (v1("10.7.7.7"), V2):
        with connected(server, greet=False) as client:
            for byte in header + PREFACE[:5]:
                client.send(bytes((byte,)))
            client.send(PREFACE[5:])
            assert next(client.frames())[0] == 4


def test_tls_follows_the_header(tmp_path: Path) -> None:
    files = self_signed(tmp_path, SystemClock().now_ms())
    trusting = ssl.create_default_context(cafile=str(files.certificate))
    with running_listener(BEHIND, tls=server_context(str(files.certificate), str(files.key))) as server:
        raw = socket.create_connection((HOST, server.port))
        raw.sendall(V2)
        with trusting.wrap_socket(raw, server_hostname="localhost") as sock:
            client = SocketClient(sock)
            client.request(1, "Echo", b"x")
            assert client.answer(1)[1] == framed(b"x")
            assert server.call(lambda: peers(server)) == ["10.1.2.3:56324"]


def test_the_limit_per_address_applies_to_clients_and_not_to_their_balancer(server: RunningListener) -> None:
    with contextlib.ExitStack() as stack:
        for number in range(4):
            stack.enter_context(called_through(server, v1(f"10.7.7.{number // 2}")))
        assert server.statistics()["address_connections"] == 2
        with connected(server, greet=False) as client:
            client.send(v1("10.7.7.1") + PREFACE)
            assert client.is_closed()
        assert server.statistics()["refused_by_address"] == 1
    wait_until(lambda: server.statistics()["connections"] == 0, "all are forgotten")
    assert server.statistics()["address_connections"] == 0
    with called_through(server, v1("10.7.7.1")):
        pass


@pytest.mark.parametrize(
    "data",
    [
        PREFACE,
        b"\x16\x03\x01",
        b"PROXY TCP4 nonsense\r\n",
        b"PROXY " + b"x" * 200,
        LOCAL[:12] + b"\x20\0\xff\xff",
        b"\0" * 50,
    ],
    ids=["no header", "TLS", "malformed", "too long", "too large", "zeros"],
)
def test_a_balancer_must_send_a_valid_header(server: RunningListener, data: bytes) -> None:
    with connected(server, greet=False) as client:
        client.send(data)
        assert client.is_closed()
    wait_until(lambda: server.statistics()["connections"] == 0, "it is forgotten")
    assert server.statistics()["failed_proxy_header"] == 1


@pytest.mark.parametrize("header", [v1("10.7.7.7"), V2])
def test_no_other_client_may_state_an_address(header: bytes) -> None:
    for limits in (TransportLimits(), ELSEWHERE):
        with running_listener(limits) as server, connected(server, greet=False) as client:
            client.send(header + PREFACE)
            assert client.error() == ErrorCode.PROTOCOL_ERROR


def test_an_incomplete_header_is_cut_off() -> None:
    clock = SimulatedClock()
    with running_listener(BEHIND, clock=clock) as server, connected(server, greet=False) as client:
        client.send(V2[:-1])
        wait_until(lambda: server.statistics()["connections"] == 1, "the connection is accepted")
        pass_s(server, clock, 9)
        assert server.statistics()["connections"] == 1
        pass_s(server, clock, 1)
        assert client.is_closed()
        assert server.statistics()["failed_timeout"] == 1
