"""Floods against the gRPC server in its own process: it keeps its size and serves an honest client meanwhile."""

import contextlib
import itertools
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from random import Random

import grpc
import pytest

from latermq.protocol.http2.frames import (
    DATA,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    PING,
    PREFACE,
    PRIORITY,
    SETTINGS_ACK,
    frame,
    reset_frame,
    settings_frame,
    window_update,
)
from latermq.protocol.http2.hpack.encoder import encode_fields
from tests.interop.ports import HOST, free_port
from tests.security.attacker import resident_bytes
from tests.support.http2_server import server_process

MIB = 1024 * 1024
CONNECTIONS = 12
BYTES_EACH = 2 * MIB  # what an attacker tries to send on a connection
FIELDS = [
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/test.Service/Flood"),
    (b"content-type", b"application/grpc"),
]
BLOCK = encode_fields(FIELDS)

Attack = Callable[[], Iterator[bytes]]


def rapid_resets() -> Iterator[bytes]:
    for number in itertools.count(1, 2):
        yield frame(HEADERS, 4, number, BLOCK) + reset_frame(number, 8)


def forced_resets() -> Iterator[bytes]:
    for number in itertools.count(1, 2):
        yield frame(HEADERS, 4, number, BLOCK) + window_update(number, 0)


def continuations() -> Iterator[bytes]:
    yield frame(HEADERS, 0, 1, BLOCK)
    yield from itertools.repeat(frame(9, 0, 1, b"\x00\x01a\x01b" * 1000))


def incomplete_messages() -> Iterator[bytes]:
    for number in itertools.count(1, 2):
        yield frame(HEADERS, 4, number, BLOCK) + frame(DATA, 0, number, b"\0\0\x7f\xff\xff" + b"x" * 16_000)


def answers_that_nobody_reads() -> Iterator[bytes]:
    """Streams of 100 MB each, with large windows, to a peer that does not read."""
    yield settings_frame({INITIAL_WINDOW_SIZE: (1 << 31) - 1}) + window_update(0, (1 << 31) - 65_536)
    for number in itertools.count(1, 2):
        yield frame(HEADERS, 4, number, BLOCK) + frame(DATA, 1, number, b"\0\0\0\0\x0510000")


def answers_without_a_window() -> Iterator[bytes]:
    yield settings_frame({INITIAL_WINDOW_SIZE: 0})
    for number in itertools.count(1, 2):
        yield frame(HEADERS, 4, number, BLOCK) + frame(DATA, 1, number, b"\0\0\0\0\x0510000")


def many_header_fields() -> Iterator[bytes]:
    for number in itertools.count(1, 2):
        yield frame(HEADERS, 5, number, BLOCK + b"\x00\x01a\x00" * 4000)


def new_header_fields() -> Iterator[bytes]:
    """Each request has fields that no cache has seen."""
    dice = Random(1)
    for number in itertools.count(1, 2):
        fields = [(b"x-%d" % n, dice.randbytes(200).hex().encode()) for n in range(30)]
        yield frame(HEADERS, 5, number, encode_fields([*FIELDS, *fields]))


def tiny_windows() -> Iterator[bytes]:
    yield settings_frame({INITIAL_WINDOW_SIZE: 0})
    yield frame(HEADERS, 4, 1, BLOCK) + frame(DATA, 1, 1, b"\0\0\0\0\x0510000")
    yield from itertools.repeat(window_update(1, 1))


def empty_data() -> Iterator[bytes]:
    yield frame(HEADERS, 4, 1, BLOCK)
    yield from itertools.repeat(frame(DATA, 0, 1, b""))


def repeated(flood: bytes) -> Attack:
    return lambda: itertools.repeat(flood)


ATTACKS: dict[str, Attack] = {
    "rapid resets": rapid_resets,
    "forced resets": forced_resets,
    "continuations": continuations,
    "incomplete messages": incomplete_messages,
    "answers that nobody reads": answers_that_nobody_reads,
    "answers without a window": answers_without_a_window,
    "many header fields": many_header_fields,
    "new header fields": new_header_fields,
    "tiny windows": tiny_windows,
    "empty data": empty_data,
    "windows": repeated(window_update(0, 1)),
    "pings": repeated(frame(PING, 0, 0, b"12345678")),
    "settings": repeated(settings_frame({INITIAL_WINDOW_SIZE: 1})),
    "priorities": repeated(frame(PRIORITY, 0, 7, b"\0\0\0\3\x10")),
    "unknown frames": repeated(frame(0xF7, 0, 7, b"x" * 100)),
}


@pytest.fixture(scope="module")
def port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def server(port: int) -> "Iterator[subprocess.Popen[str]]":
    with server_process(port) as process:
        yield process


def run_attack(port: int, attack: Attack) -> None:
    """Send one flood on several connections that stay open to the end. Answers are not read."""
    with contextlib.ExitStack() as open_ones:
        for _ in range(CONNECTIONS):
            sock = open_ones.enter_context(socket.create_connection((HOST, port)))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
            sock.settimeout(2.0)
            sent_bytes = 0
            frames = attack()
            with contextlib.suppress(OSError):  # the server closes, or does not read any more
                sock.sendall(PREFACE + settings_frame({}) + SETTINGS_ACK)
                while sent_bytes < BYTES_EACH:
                    data = b"".join(itertools.islice(frames, 200))
                    sock.sendall(data)
                    sent_bytes += len(data)


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS.keys())
def test_a_flood_neither_bloats_nor_stops_the_server(
    server: "subprocess.Popen[str]", port: int, attack: Attack
) -> None:
    with grpc.insecure_channel(f"{HOST}:{port}", (("grpc.use_local_subchannel_pool", 1),)) as channel:
        echo = channel.unary_unary("/test.Service/Echo")
        assert echo(b"before", timeout=60) == b"before"
        before_bytes = resident_bytes(server.pid)
        attacker = threading.Thread(target=run_attack, args=(port, attack))
        attacker.start()
        served = 0
        peak_bytes = 0
        while attacker.is_alive() or served < 10:
            assert echo(b"during", timeout=60) == b"during"
            served += 1
            peak_bytes = max(peak_bytes, resident_bytes(server.pid))
        attacker.join()
        assert server.poll() is None
        # The connections together may hold 256 MiB, and Python's allocator some more.
        assert peak_bytes - before_bytes < 350 * MIB
