"""Abuse: floods and greedy peers end with the proper error code, and the memory that they take is bounded."""

import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count

import pytest

from latermq.protocol.http2.frames import (
    ACK,
    DATA,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    PADDED,
    PING,
    PRIORITY,
    RST_STREAM,
    SETTINGS_ACK,
    ErrorCode,
    frame,
    goaway_frame,
    reset_frame,
    settings_frame,
    window_update,
)
from latermq.protocol.http2.hpack.encoder import encode_fields
from latermq.protocol.http2.limits import Limits, Rate
from latermq.protocol.http2.outbox import Block
from tests.unit.protocol.http2.raw_peer import (
    GET,
    GET_BLOCK,
    OK_BLOCK,
    POST_BLOCK,
    RawPeer,
    continuation,
    data_frame,
    headers,
)

CALM = ErrorCode.ENHANCE_YOUR_CALM
KIB = 1024
MIB = 1024 * KIB
HEAD = Block(OK_BLOCK, end_stream=False)
TAIL = Block(encode_fields([(b"grpc-status", b"0")]), end_stream=True)
TRAILERS = encode_fields([(b"a", b"b")])
PING_FRAME = frame(PING, 0, 0, b"12345678")


@contextmanager
def at_most(limit_bytes: int) -> Iterator[None]:
    """What happens inside must not take more memory than this at any time."""
    tracemalloc.start()
    try:
        yield
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes <= limit_bytes


def frames_until_the_end(peer: RawPeer, next_frame: Callable[[], bytes], most: int) -> int:
    """Send frames until the connection ends, and return how many it took. The peer reads all answers."""
    for number in range(1, most + 1):
        peer.send(next_frame())
        if peer.connection.is_ended:
            assert peer.connection.fault is not None
            assert peer.connection.fault.error == CALM
            return number
        peer.read()
    raise AssertionError(f"{most} frames were accepted")


def rapid_resets() -> Callable[[], bytes]:
    ids = count(1, 2)

    def one() -> bytes:
        number = next(ids)
        return headers(number) + reset_frame(number, ErrorCode.CANCEL)

    return one


def forced_resets() -> Callable[[], bytes]:
    """The peer makes us reset its streams: each gets a WINDOW_UPDATE of 0."""
    ids = count(1, 2)

    def one() -> bytes:
        number = next(ids)
        return headers(number) + window_update(number, 0)

    return one


def malformed_requests() -> Callable[[], bytes]:
    ids = count(1, 2)
    block = encode_fields([*GET, (b"connection", b"close")])
    return lambda: headers(next(ids), block)


def late_data() -> Callable[[], bytes]:
    """DATA on a stream that was closed in the ordinary way."""
    return lambda: data_frame(1, b"x")


@pytest.mark.parametrize("attack", [rapid_resets, forced_resets, malformed_requests])
def test_resets_faster_than_their_rate_end_the_connection(attack: Callable[[], Callable[[], bytes]]) -> None:
    peer = RawPeer(Limits(resets=Rate(50, 10)))
    with at_most(MIB):
        assert frames_until_the_end(peer, attack(), 100) == 51


def test_data_on_closed_streams_counts_as_a_reset() -> None:
    peer = RawPeer(Limits(resets=Rate(50, 10), max_remembered_resets=0))
    stream = peer.open(GET_BLOCK, end=True)
    peer.connection.outbox.headers(stream, OK_BLOCK, end_stream=True)
    assert frames_until_the_end(peer, late_data(), 100) == 51


LATE = {
    "empty data": data_frame(1, b""),
    "ends": data_frame(1, b"", end=True),
    "headers without an end": headers(1, TRAILERS, end=False),
}


@pytest.mark.parametrize("name", LATE)
def test_floods_on_a_stream_that_was_reset_end_the_connection(name: str) -> None:
    rate = Rate(50, 10)
    peer = RawPeer(Limits(resets=rate, empty_data=rate, ignored_frames=rate))
    peer.connection.reset(peer.open(), ErrorCode.CANCEL)
    assert frames_until_the_end(peer, lambda: LATE[name], 110) >= 50


def test_a_stream_that_was_reset_has_trailers_once() -> None:
    peer = RawPeer()
    peer.connection.reset(peer.open(), ErrorCode.CANCEL)
    assert peer.connection_error(headers(1, TRAILERS), headers(1, TRAILERS)) == ErrorCode.STREAM_CLOSED


@pytest.mark.parametrize("end", [data_frame(1, b"x", end=True), headers(1, TRAILERS)])
def test_the_rest_of_a_request_may_be_late(end: bytes) -> None:
    peer = RawPeer()
    peer.connection.reset(peer.open(), ErrorCode.CANCEL)
    peer.read()
    assert peer.send(data_frame(1, b"x"), data_frame(1, b""), end, window_update(1, 9), reset_frame(1, 0)) == []
    assert peer.read() == []


def test_slow_resets_are_not_counted() -> None:
    peer = RawPeer(Limits(resets=Rate(5, 0.0)))
    for _ in range(100):
        stream = peer.open(GET_BLOCK, end=True)
        peer.now_s += 1.0
        peer.send(reset_frame(stream.id, ErrorCode.CANCEL))
    assert not peer.connection.is_ended


def test_many_waiting_calls_may_be_cancelled_at_once() -> None:
    peer = RawPeer()
    streams = [peer.open(GET_BLOCK, end=True) for _ in range(4096)]
    peer.now_s += 20
    peer.send(*(reset_frame(stream.id, ErrorCode.CANCEL) for stream in streams))
    assert not peer.connection.is_ended
    assert peer.connection.streams == {}


def test_resets_at_their_rate_are_accepted() -> None:
    peer = RawPeer(Limits(resets=Rate(50, 10)))
    attack = rapid_resets()
    for _ in range(500):
        peer.send(attack())
        peer.now_s += 0.1
    assert not peer.connection.is_ended


FLOODS = {
    "pings": PING_FRAME,
    "settings": settings_frame({INITIAL_WINDOW_SIZE: 100}),
    "empty settings": settings_frame({}),
    "acknowledged settings": SETTINGS_ACK,
    "acknowledged pings": frame(PING, ACK, 0, b"12345678"),
    "empty data": data_frame(1, b""),
    "padded empty data": frame(DATA, PADDED, 1, b"\xff" + b"\0" * 255),
    "priority": frame(PRIORITY, 0, 1, b"\0\0\0\3\x10"),
    "priority of idle streams": frame(PRIORITY, 0, 9999, b"\0\0\0\3\x10"),
    "unknown": frame(0xF0, 0, 1, b"x" * 100),
    "goaway": goaway_frame(0, 0),
    "window updates": window_update(0, 1),
    "window updates of a stream": window_update(1, 1),
    "resets of closed streams": reset_frame(3, ErrorCode.CANCEL),
}
RATE = Rate(50, 10)
STRICT = Limits(pings=RATE, settings=RATE, empty_data=RATE, window_updates=RATE, ignored_frames=RATE)


@pytest.mark.parametrize("flood", FLOODS.values(), ids=FLOODS.keys())
def test_a_flood_ends_the_connection(flood: bytes) -> None:
    peer = RawPeer(STRICT)
    peer.open()
    closed = peer.open(GET_BLOCK, end=True)
    peer.connection.outbox.headers(closed, OK_BLOCK, end_stream=True)
    with at_most(MIB):
        # The finished call has earned four frames, and the greeting may have used one.
        assert 50 <= frames_until_the_end(peer, lambda: flood, 100) <= 55


@pytest.mark.parametrize("flood", FLOODS.values(), ids=FLOODS.keys())
def test_the_same_frames_at_their_rate_are_accepted(flood: bytes) -> None:
    peer = RawPeer(STRICT)
    peer.open()
    peer.send(headers(3), reset_frame(3, ErrorCode.CANCEL))
    for _ in range(500):
        peer.send(flood)
        peer.now_s += 0.1
        peer.read()
    assert not peer.connection.is_ended


@pytest.mark.parametrize("flood", FLOODS.values(), ids=FLOODS.keys())
def test_a_default_limit_stops_every_flood(flood: bytes) -> None:
    peer = RawPeer(settings={INITIAL_WINDOW_SIZE: 0})
    peer.open()
    peer.send(headers(3), reset_frame(3, ErrorCode.CANCEL))
    with at_most(2 * MIB):
        assert frames_until_the_end(peer, lambda: flood * 50, 300) <= 201


def test_pings_are_earned_by_data() -> None:
    """gRPC's clients send a PING with each round trip of data, to measure the bandwidth."""
    peer = RawPeer(Limits(pings=Rate(10, 0.0)))
    peer.send(window_update(0, 1 << 30))
    for _ in range(1000):
        stream = peer.open(GET_BLOCK, end=True)
        peer.connection.outbox.respond(stream, HEAD, b"", b"x" * 200, TAIL)
        peer.send(PING_FRAME * 2)
        peer.read()
    assert not peer.connection.is_ended


def test_a_window_that_opens_byte_by_byte_is_a_flood() -> None:
    """Each byte would cost a frame of ten."""
    peer = RawPeer(settings={INITIAL_WINDOW_SIZE: 0})
    stream = peer.open(GET_BLOCK, end=True)
    peer.connection.outbox.headers(stream, OK_BLOCK, end_stream=False)
    peer.connection.outbox.data(stream, b"x" * MIB)
    assert frames_until_the_end(peer, lambda: window_update(1, 1), 20_000) <= 10_020


# Header blocks


@pytest.mark.parametrize("size", [0, 1, 1000, 16_384])
def test_continuations_without_end_are_cut_off(size: int) -> None:
    peer = RawPeer()
    block = b"\x00\x01a\x01b" * 4000
    peer.send(frame(HEADERS, 0, 1, GET_BLOCK))
    with at_most(MIB):
        assert frames_until_the_end(peer, lambda: continuation(1, block[:size]), 100) <= 17


def test_a_long_header_list_resets_its_stream_and_the_next_one_is_served() -> None:
    peer = RawPeer()
    block = encode_fields([*GET, *((b"a%d" % number, b"x" * 1000) for number in range(64))])
    pieces = [block[at : at + 16_384] for at in range(0, len(block), 16_384)]
    frames = [frame(HEADERS, 1, 1, pieces[0]), *(continuation(1, piece) for piece in pieces[1:-1])]
    assert peer.stream_error(*frames, continuation(1, pieces[-1], end=True)) == CALM
    (stream,) = peer.send(headers(3))
    assert stream.request.path == b"/a"


def test_a_small_block_that_decodes_to_much_is_dropped() -> None:
    peer = RawPeer(greet=False)
    peer.send(
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", settings_frame({})
    )  # SETTINGS are not acknowledged: there is a table
    large = encode_fields([(b"a", b"x" * 3900)])
    peer.send(headers(1, GET_BLOCK + b"\x40" + large[1:]))
    with at_most(MIB):
        assert peer.stream_error(headers(3, GET_BLOCK + b"\xbe" * 16_000)) == CALM


def test_a_cookie_bomb_of_many_small_fields_is_dropped() -> None:
    peer = RawPeer()
    with at_most(2 * MIB):
        for number in range(1, 20, 2):
            peer.send(headers(number, GET_BLOCK + b"\x00\x01a\x00" * 4000))
            assert [answer.kind for answer in peer.read()] == [RST_STREAM]


# Streams, data and answers


def test_streams_above_the_limit_are_refused() -> None:
    peer = RawPeer(Limits(max_streams=10))
    streams = [peer.open() for _ in range(10)]
    assert peer.stream_error(headers(21)) == ErrorCode.REFUSED_STREAM
    assert peer.stream_error(headers(23, POST_BLOCK, end=False), data_frame(23, b"late")) == ErrorCode.REFUSED_STREAM
    peer.connection.outbox.headers(streams[0], OK_BLOCK, end_stream=True)
    (stream,) = peer.send(headers(25))
    assert stream.reset is None


def test_open_streams_take_little_memory() -> None:
    limits = Limits()
    peer = RawPeer(limits)
    with at_most(limits.max_streams * 1500):
        for _ in range(limits.max_streams):
            peer.open()
    assert len(peer.connection.streams) == limits.max_streams


def test_held_data_never_exceeds_its_limit() -> None:
    """A peer that fills many streams stops at the connection's window."""
    limits = Limits(max_held_bytes=2 * MIB)
    peer = RawPeer(limits)
    with at_most(4 * MIB):
        room = limits.max_held_bytes
        for number in range(1, 1000, 2):
            peer.send(headers(number, POST_BLOCK, end=False))
            size = min(16_000, room)
            peer.send(data_frame(number, b"x" * size))
            room -= size
            assert peer.read() == []
        assert peer.connection.held_bytes == limits.max_held_bytes
        assert peer.connection_error(data_frame(1, b"x")) == ErrorCode.FLOW_CONTROL_ERROR


def test_data_in_tiny_frames_is_not_copied_again_and_again() -> None:
    peer = RawPeer()
    stream = peer.open()
    with at_most(8 * MIB):
        peer.send(data_frame(1, b"x") * 25_000)
        assert stream.take_data() == b"x" * 25_000


def test_unsent_answers_are_a_fault_above_their_limit() -> None:
    limits = Limits(max_unsent_bytes=MIB)
    peer = RawPeer(limits, settings={INITIAL_WINDOW_SIZE: 0})
    for _ in range(16):
        stream = peer.open(GET_BLOCK, end=True)
        peer.connection.outbox.respond(stream, HEAD, b"", b"x" * 64 * KIB, TAIL)
    peer.read()
    assert peer.connection.unread_fault(0) is None
    fault = peer.connection.unread_fault(1)
    assert fault is not None
    assert fault.error == CALM
    peer.connection.end(fault)
    assert peer.connection.outbox.queued_bytes == 0


def test_a_large_window_does_not_turn_all_data_into_frames_at_once() -> None:
    peer = RawPeer(settings={INITIAL_WINDOW_SIZE: (1 << 31) - 1})
    peer.send(window_update(0, (1 << 31) - 65_536))
    outbox = peer.connection.outbox
    body = b"x" * MIB
    with at_most(2 * MIB):
        for _ in range(200):
            stream = peer.open(GET_BLOCK, end=True)
            outbox.respond(stream, HEAD, b"", body, TAIL)
        assert outbox.unsent_bytes - outbox.queued_bytes < 300 * KIB
    for _ in range(200):
        stream = peer.open(GET_BLOCK, end=True)
        outbox.respond(stream, HEAD, b"", b"y" * 10_000, TAIL)
    assert outbox.unsent_bytes - outbox.queued_bytes < 310 * KIB
    sent_bytes = 0
    while outbox.has_frames:
        sent_bytes += sum(len(answer.payload) for answer in peer.read() if answer.kind == DATA)
        outbox.pump()
    assert sent_bytes == 200 * MIB + 200 * 10_000
    assert peer.connection.streams == {}


def test_settings_with_thousands_of_entries_change_the_windows_once() -> None:
    peer = RawPeer()
    streams = [peer.open() for _ in range(1000)]
    entries = b"".join(b"\0\4" + number.to_bytes(4, "big") for number in range(2700))
    peer.send(frame(4, 0, 0, entries))
    assert {stream.send_window_bytes for stream in streams} == {2699}


def test_remembered_resets_are_bounded() -> None:
    peer = RawPeer(Limits(max_remembered_resets=100))
    for _ in range(500):
        peer.connection.reset(peer.open(), ErrorCode.CANCEL)
        peer.read()
    assert len(peer.connection._reset_ids) == 100
    assert peer.send(data_frame(999, b"late")) == []  # the newest is known
    assert peer.read() == []
