"""The rules of RFC 9113 for frames, streams and requests, with raw frames of a peer."""

import struct

import pytest

from latermq.errors import ConfigError
from latermq.protocol.http2.connection import ServerConnection
from latermq.protocol.http2.frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HAS_PRIORITY,
    HEADER_TABLE_SIZE,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    PADDED,
    PING,
    PREFACE,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    SETTINGS_ACK,
    WINDOW_UPDATE,
    ErrorCode,
    frame,
    goaway_frame,
    reset_frame,
    settings_frame,
    window_update,
)
from latermq.protocol.http2.header_cache import HeaderCache
from latermq.protocol.http2.hpack.encoder import encode_fields
from latermq.protocol.http2.limits import Limits
from latermq.protocol.http2.outbox import Block
from tests.unit.protocol.http2.raw_peer import (
    GET,
    GET_BLOCK,
    OK_BLOCK,
    POST,
    POST_BLOCK,
    RawPeer,
    continuation,
    data_frame,
    headers,
)

KIB = 1024
PROTOCOL_ERROR = ErrorCode.PROTOCOL_ERROR
FRAME_SIZE_ERROR = ErrorCode.FRAME_SIZE_ERROR
FLOW_CONTROL_ERROR = ErrorCode.FLOW_CONTROL_ERROR


def test_the_server_greets_before_the_client_does() -> None:
    peer = RawPeer(Limits(max_streams=7, max_held_bytes=100_000), greet=False)
    settings, window = peer.greeting
    assert settings.kind == SETTINGS
    values = dict(struct.iter_unpack(">HI", settings.payload))
    assert values == {HEADER_TABLE_SIZE: 0, 3: 7, INITIAL_WINDOW_SIZE: 1024 * KIB, 5: 16_384, 6: 64 * KIB}
    assert (window.kind, window.stream_id, int.from_bytes(window.payload, "big")) == (
        WINDOW_UPDATE,
        0,
        100_000 - 65_535,
    )


def test_windows_below_the_protocols_default_are_refused() -> None:
    with pytest.raises(ConfigError):
        Limits(stream_window_bytes=65_534)
    with pytest.raises(ConfigError):
        Limits(max_held_bytes=65_534)


def test_a_request_arrives_byte_by_byte() -> None:
    peer = RawPeer(greet=False)
    data = PREFACE + settings_frame({}) + headers(1, POST_BLOCK, end=False) + data_frame(1, b"hello", end=True)
    seen = [stream for byte in data for stream in peer.send(bytes((byte,)))]
    assert len(set(seen)) == 1
    stream = seen[0]
    assert (stream.request.method, stream.request.path) == (b"POST", b"/a")
    assert stream.request.authority == b"localhost"
    assert stream.is_ended
    assert stream.take_data() == b"hello"


def test_requests_in_one_piece_are_listed_once_each() -> None:
    peer = RawPeer()
    news = peer.send(*(headers(n, POST_BLOCK, end=False) + data_frame(n, b"x", end=True) for n in (1, 3, 5)))
    assert [(stream.id, stream.pieces, stream.is_ended) for stream in news] == [(n, [b"x"], True) for n in (1, 3, 5)]


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n\r\n", b"\0" * 24, b"PRX"])
def test_another_preface_is_refused(data: bytes) -> None:
    assert RawPeer(greet=False).connection_error(data) == PROTOCOL_ERROR


@pytest.mark.parametrize("first", [SETTINGS_ACK, headers(1), frame(PING, 0, 0, b"x" * 8), frame(99, 0, 0, b"")])
def test_the_first_frame_must_be_settings(first: bytes) -> None:
    assert RawPeer(greet=False).connection_error(PREFACE, first) == PROTOCOL_ERROR


@pytest.mark.parametrize(
    ("error", "data"),
    [
        (FRAME_SIZE_ERROR, b"\x00\x40\x01\x00\x00\x00\x00\x00\x01"),  # longer than MAX_FRAME_SIZE
        (PROTOCOL_ERROR, data_frame(0, b"x")),
        (PROTOCOL_ERROR, data_frame(1, b"x")),  # idle
        (PROTOCOL_ERROR, data_frame(2, b"x")),
        (PROTOCOL_ERROR, headers(1, end=False) + frame(DATA, PADDED, 1, b"\x05abcd")),
        (FRAME_SIZE_ERROR, headers(1, end=False) + frame(DATA, PADDED, 1, b"")),
        (PROTOCOL_ERROR, headers(0)),
        (PROTOCOL_ERROR, headers(2)),
        (PROTOCOL_ERROR, headers(5) + headers(3)),  # skipped
        (PROTOCOL_ERROR, frame(HEADERS, END_HEADERS | PADDED, 1, b"\xff" + GET_BLOCK)),
        (FRAME_SIZE_ERROR, frame(HEADERS, END_HEADERS | HAS_PRIORITY, 1, b"abc")),
        (PROTOCOL_ERROR, frame(HEADERS, END_HEADERS | HAS_PRIORITY, 1, b"\x80\0\0\1\0" + GET_BLOCK)),  # on itself
        (PROTOCOL_ERROR, frame(HEADERS, 0, 0, GET_BLOCK)),
        (PROTOCOL_ERROR, frame(HEADERS, 0, 1, GET_BLOCK) + frame(PING, 0, 0, b"x" * 8)),
        (PROTOCOL_ERROR, frame(HEADERS, 0, 1, GET_BLOCK) + frame(99, 0, 1, b"")),
        (PROTOCOL_ERROR, frame(HEADERS, 0, 1, GET_BLOCK) + headers(3)),
        (PROTOCOL_ERROR, frame(HEADERS, 0, 1, GET_BLOCK) + continuation(3, b"", end=True)),
        (PROTOCOL_ERROR, continuation(1, b"", end=True)),
        (PROTOCOL_ERROR, headers(1) + continuation(1, b"", end=True)),
        (ErrorCode.COMPRESSION_ERROR, headers(1, b"\xff\xff")),
        (ErrorCode.COMPRESSION_ERROR, headers(1, b"\xbe")),
        (PROTOCOL_ERROR, frame(PRIORITY, 0, 0, b"\0\0\0\0\1")),
        (FRAME_SIZE_ERROR, frame(PRIORITY, 0, 1, b"\0\0\0\0")),
        (PROTOCOL_ERROR, frame(PRIORITY, 0, 3, b"\0\0\0\3\1")),
        (PROTOCOL_ERROR, reset_frame(0, 8)),
        (PROTOCOL_ERROR, reset_frame(1, 8)),  # idle
        (FRAME_SIZE_ERROR, headers(1) + frame(RST_STREAM, 0, 1, b"\0\0\0")),
        (PROTOCOL_ERROR, frame(SETTINGS, 0, 1, b"")),
        (FRAME_SIZE_ERROR, frame(SETTINGS, ACK, 0, b"\0\0\0\0\0\0")),
        (FRAME_SIZE_ERROR, frame(SETTINGS, 0, 0, b"\0\0\0")),
        (PROTOCOL_ERROR, settings_frame({2: 2})),
        (FLOW_CONTROL_ERROR, settings_frame({4: 1 << 31})),
        (PROTOCOL_ERROR, settings_frame({5: 16_383})),
        (PROTOCOL_ERROR, settings_frame({5: 1 << 24})),
        (PROTOCOL_ERROR, frame(PUSH_PROMISE, END_HEADERS, 1, b"\0\0\0\2" + GET_BLOCK)),
        (PROTOCOL_ERROR, frame(PING, 0, 1, b"x" * 8)),
        (FRAME_SIZE_ERROR, frame(PING, 0, 0, b"x" * 7)),
        (PROTOCOL_ERROR, frame(GOAWAY, 0, 1, b"\0" * 8)),
        (FRAME_SIZE_ERROR, frame(GOAWAY, 0, 0, b"\0" * 7)),
        (PROTOCOL_ERROR, window_update(0, 0)),
        (PROTOCOL_ERROR, window_update(1, 1)),  # idle
        (FRAME_SIZE_ERROR, frame(WINDOW_UPDATE, 0, 0, b"\0\0\0")),
        (FLOW_CONTROL_ERROR, window_update(0, (1 << 31) - 1)),
        (FLOW_CONTROL_ERROR, headers(1) + window_update(1, (1 << 31) - 65_536) + settings_frame({4: 65_536})),
    ],
)  # fmt: skip
def test_a_connection_error_is_answered_with_its_code(error: ErrorCode, data: bytes) -> None:
    assert RawPeer().connection_error(data) == error


def test_headers_on_a_closed_stream_end_the_connection() -> None:
    peer = RawPeer()
    stream = peer.open(GET_BLOCK, end=True)
    peer.connection.outbox.headers(stream, OK_BLOCK, end_stream=True)
    assert peer.connection_error(headers(1)) == ErrorCode.STREAM_CLOSED


@pytest.mark.parametrize(
    ("error", "data"),
    [
        (ErrorCode.STREAM_CLOSED, headers(1) + data_frame(1, b"x")),
        (ErrorCode.STREAM_CLOSED, headers(1) + headers(1)),
        (PROTOCOL_ERROR, headers(1, POST_BLOCK, end=False) + headers(1, b"", end=False)),
        (PROTOCOL_ERROR, headers(1, POST_BLOCK, end=False) + headers(1, encode_fields([(b":path", b"/")]))),
        (PROTOCOL_ERROR, headers(1, POST_BLOCK, end=False) + headers(1, encode_fields([(b"A", b"b")]))),
        (PROTOCOL_ERROR, headers(1) + window_update(1, 0)),
        (FLOW_CONTROL_ERROR, headers(1) + window_update(1, (1 << 31) - 1)),
    ],
)
def test_a_stream_error_resets_the_stream_with_its_code(error: ErrorCode, data: bytes) -> None:
    assert RawPeer().stream_error(data) == error


@pytest.mark.parametrize(
    "fields",
    [
        GET[1:],
        [GET[0], *GET[2:]],
        [*GET[:2], GET[3]],
        [*GET[:2], (b":path", b"")],
        [*GET, (b":path", b"/b")],
        [*GET[:3], (b"a", b"b"), GET[3]],
        [*GET[:3], (b"content-length", b"0"), GET[3]],
        [*GET, (b":status", b"200")],
        [*GET, (b":unknown", b"1")],
        [*GET, (b"Upper", b"1")],
        [*GET, (b"connection", b"keep-alive")],
        [*GET, (b"te", b"trailers, deflate")],
        [*GET, (b"a", b"b\r\nc: d")],
        [*GET, (b"content-length", b"1")],  # without a body
        [*GET, (b"content-length", b"0"), (b"content-length", b"1")],
    ],
)
def test_a_malformed_request_resets_its_stream(fields: list[tuple[bytes, bytes]]) -> None:
    peer = RawPeer()
    assert peer.stream_error(headers(1, encode_fields(fields))) == PROTOCOL_ERROR
    (stream,) = peer.send(headers(3))
    assert stream.reset is None


@pytest.mark.parametrize("bodies", [[b"12345"], [b"123"], [b"12", b"1"], [b"1234"], []])
def test_a_body_must_have_the_announced_length(bodies: list[bytes]) -> None:
    peer = RawPeer()
    block = encode_fields([*POST, (b"content-length", b"4"), (b"content-length", b"4")])
    frames = [data_frame(1, body) for body in bodies]
    end = headers(1, encode_fields([(b"checksum", b"1")]))
    if b"".join(bodies) == b"1234":
        (stream,) = peer.send(headers(1, block, end=False), *frames, end)
        assert stream.is_ended
        assert stream.trailers == [(b"checksum", b"1")]
    else:
        assert peer.stream_error(headers(1, block, end=False), *frames, end) == PROTOCOL_ERROR


def test_padding_and_priority_are_stripped() -> None:
    peer = RawPeer()
    (stream,) = peer.send(
        frame(HEADERS, END_HEADERS | PADDED | HAS_PRIORITY, 1, b"\x03\0\0\0\0\x10" + POST_BLOCK + b"\0\0\0"),
        frame(PRIORITY, 0, 1, b"\0\0\0\3\x10"),
        frame(PRIORITY, 0, 7, b"\0\0\0\3\x10"),
        frame(DATA, PADDED, 1, b"\x05hello" + b"\0" * 5),
        frame(DATA, PADDED, 1, b"\x00"),
        frame(DATA, PADDED | END_STREAM, 1, b"\x00!"),
    )
    assert stream.request.path == b"/a"
    assert stream.take_data() == b"hello!"
    assert peer.connection.held_bytes == 6


def test_a_header_block_continues_in_other_frames() -> None:
    peer = RawPeer()
    assert peer.send(frame(HEADERS, END_STREAM, 1, GET_BLOCK[:3]), continuation(1, GET_BLOCK[3:7])) == []
    (stream,) = peer.send(continuation(1, GET_BLOCK[7:], end=True))
    assert stream.request.path == b"/a"
    assert stream.is_ended


def test_unknown_frames_and_settings_are_ignored() -> None:
    peer = RawPeer()
    assert peer.send(frame(0x2A, 0xFF, 1, b"anything"), settings_frame({0xFFFF: 7}), goaway_frame(0, 0, b"bye")) == []
    assert [answer.kind for answer in peer.read()] == [SETTINGS]
    assert peer.open().request.path == b"/a"


def test_a_ping_is_answered_with_its_payload() -> None:
    peer = RawPeer()
    peer.send(frame(PING, 0, 0, b"12345678"), frame(PING, ACK, 0, b"abcdefgh"))
    (answer,) = peer.read()
    assert answer == (PING, ACK, 0, b"12345678")


def test_a_reset_of_the_peer_closes_the_stream() -> None:
    peer = RawPeer()
    stream = peer.open()
    peer.send(data_frame(1, b"x" * 1000))
    peer.connection.outbox.headers(stream, OK_BLOCK, end_stream=False)
    peer.connection.outbox.data(stream, b"y" * 70_000)
    (reset,) = peer.send(reset_frame(1, ErrorCode.CANCEL))
    assert reset is stream
    assert stream.is_closed
    assert stream.reset == ErrorCode.CANCEL
    assert peer.connection.held_bytes == 0
    peer.connection.outbox.take()
    assert peer.connection.outbox.unsent_bytes == 0
    assert peer.send(window_update(0, 100_000), window_update(1, 10), reset_frame(1, 8)) == []
    assert peer.read() == []


def test_a_request_that_is_reset_in_the_same_piece_is_never_begun() -> None:
    (stream,) = RawPeer().send(headers(1), reset_frame(1, ErrorCode.CANCEL))
    assert stream.reset == ErrorCode.CANCEL


def test_late_frames_of_a_stream_that_we_reset_are_ignored() -> None:
    peer = RawPeer()
    stream = peer.open()
    peer.connection.reset(stream, ErrorCode.CANCEL)
    assert [answer.kind for answer in peer.read()] == [RST_STREAM]
    assert peer.send(data_frame(1, b"late"), headers(1, b""), window_update(1, 5), reset_frame(1, 5)) == []
    assert peer.read() == []
    assert not peer.connection.is_ended


def test_an_early_response_asks_the_peer_to_stop_sending() -> None:
    peer = RawPeer()
    stream = peer.open()
    peer.connection.outbox.headers(stream, OK_BLOCK, end_stream=True)
    head, reset = peer.read()
    assert (head.kind, head.flags) == (HEADERS, END_HEADERS | END_STREAM)
    assert reset == (RST_STREAM, 0, 1, (0).to_bytes(4, "big"))
    assert peer.send(data_frame(1, b"late", end=True)) == []
    assert peer.read() == []


# Flow control


def test_a_response_waits_for_the_windows_and_trailers_follow_it() -> None:
    peer = RawPeer(settings={INITIAL_WINDOW_SIZE: 10})
    stream = peer.open(GET_BLOCK, end=True)
    peer.connection.outbox.respond(stream, Block(OK_BLOCK, False), b"ab", b"c" * 23, Block(b"\x88", True))
    assert [(answer.kind, len(answer.payload)) for answer in peer.read()] == [(HEADERS, 1), (DATA, 10)]
    assert peer.connection.outbox.unsent_bytes == 15
    peer.send(settings_frame({INITIAL_WINDOW_SIZE: 0}))  # the window is 10 below zero
    peer.send(window_update(1, 10))
    assert [answer.kind for answer in peer.read()] == [SETTINGS]
    peer.send(window_update(1, 1))
    assert [answer.payload for answer in peer.read()] == [b"c"]
    peer.send(settings_frame({INITIAL_WINDOW_SIZE: 100}))
    _, data, trailers = peer.read()
    assert data.payload == b"c" * 14
    assert (trailers.kind, trailers.flags) == (HEADERS, END_HEADERS | END_STREAM)
    assert stream.is_closed
    assert peer.connection.outbox.unsent_bytes == 0


def test_a_stream_whose_window_falls_below_zero_stops_sending() -> None:
    peer = RawPeer(settings={INITIAL_WINDOW_SIZE: 100_000})
    stream = peer.open(GET_BLOCK, end=True)
    peer.connection.outbox.headers(stream, OK_BLOCK, end_stream=False)
    peer.connection.outbox.data(stream, b"x" * 80_000)  # the connection's window ends first
    peer.read()
    peer.send(settings_frame({INITIAL_WINDOW_SIZE: 0}), window_update(0, 100_000))
    assert [answer.kind for answer in peer.read()] == [SETTINGS]
    peer.send(window_update(1, 65_536))
    assert [len(answer.payload) for answer in peer.read()] == [1]


def test_streams_share_the_connections_window_in_turns() -> None:
    peer = RawPeer(settings={INITIAL_WINDOW_SIZE: 1 << 20})
    streams = [peer.open(GET_BLOCK, end=True) for _ in range(3)]
    for stream in streams:
        peer.connection.outbox.headers(stream, OK_BLOCK, end_stream=False)
        peer.connection.outbox.data(stream, b"x" * 100_000)
        peer.connection.outbox.end(stream, b"")
    assert sum(len(answer.payload) for answer in peer.read() if answer.kind == DATA) == 65_535
    peer.send(window_update(0, 6 * 16_384))
    assert [answer.stream_id for answer in peer.read()] == [1, 3, 5, 1, 3, 5]
    peer.send(window_update(0, 1 << 20))
    answers = peer.read()
    assert sorted(answer.stream_id for answer in answers if answer.flags & END_STREAM) == [1, 3, 5]
    assert peer.connection.streams == {}


def test_a_paused_outbox_keeps_its_data() -> None:
    peer = RawPeer()
    stream = peer.open(GET_BLOCK, end=True)
    peer.connection.outbox.pause()
    peer.connection.outbox.respond(stream, Block(OK_BLOCK, False), b"", b"body", Block(b"\x88", True))
    assert [answer.kind for answer in peer.read()] == [HEADERS]
    peer.connection.outbox.resume()
    assert [answer.kind for answer in peer.read()] == [DATA, HEADERS]


def test_a_long_header_block_is_split() -> None:
    peer = RawPeer()
    stream = peer.open(GET_BLOCK, end=True)
    block = encode_fields([(b":status", b"200"), (b"a", b"x" * 40_000)])
    peer.connection.outbox.headers(stream, block, end_stream=True)
    answers = peer.read()
    assert [(answer.kind, answer.flags) for answer in answers] == [
        (HEADERS, END_STREAM),
        (CONTINUATION, 0),
        (CONTINUATION, END_HEADERS),
    ]
    assert b"".join(answer.payload for answer in answers) == block


def test_a_peer_that_exceeds_a_streams_window_loses_the_stream() -> None:
    peer = RawPeer(Limits(stream_window_bytes=65_535))
    peer.open()
    peer.send(*(data_frame(1, b"x" * 16_384) for _ in range(3)), data_frame(1, b"x" * 16_383))
    assert peer.stream_error(data_frame(1, b"x")) == FLOW_CONTROL_ERROR
    assert peer.connection.held_bytes == 0


def test_a_peer_that_exceeds_the_connections_window_loses_the_connection() -> None:
    peer = RawPeer(Limits(max_held_bytes=65_535))
    peer.open()
    peer.send(*(data_frame(1, b"x" * 16_384) for _ in range(3)), data_frame(1, b"x" * 16_383))
    assert peer.read() == []
    assert peer.connection_error(data_frame(1, b"x")) == FLOW_CONTROL_ERROR


def test_windows_grow_again_when_data_is_consumed() -> None:
    peer = RawPeer(Limits(max_held_bytes=100_000, stream_window_bytes=80_000))
    stream = peer.open()
    for _ in range(50):
        peer.send(data_frame(1, b"x" * 10_000))
        assert len(stream.take_data()) == 10_000
        peer.connection.release(stream, 10_000)
        peer.connection.grant(stream, 10_000)
    assert not peer.connection.is_ended
    answers = peer.read()
    granted = dict.fromkeys((0, 1), 0)
    for answer in answers:
        assert answer.kind == WINDOW_UPDATE
        granted[answer.stream_id] += int.from_bytes(answer.payload, "big")
    assert 500_000 - 25_000 <= granted[0] <= 500_000
    assert 500_000 - 20_000 <= granted[1] <= 500_000
    assert len(answers) < 60


def test_padding_does_not_use_up_a_streams_window() -> None:
    peer = RawPeer(Limits(stream_window_bytes=65_535))
    stream = peer.open()
    for _ in range(1000):
        peer.send(frame(DATA, PADDED, 1, b"\xffx" + b"\0" * 255))
        stream.take_data()
        peer.connection.release(stream, 1)
        peer.connection.grant(stream, 1)
    assert not peer.connection.is_ended
    assert not stream.is_closed


# The end


def test_a_graceful_stop_serves_the_streams_that_are_under_way() -> None:
    peer = RawPeer()
    first = peer.open()
    peer.connection.leave()
    goaway, ping = peer.read()
    assert int.from_bytes(goaway.payload[:4], "big") == (1 << 31) - 1
    second = peer.open()
    peer.send(frame(PING, ACK, 0, ping.payload))
    (final,) = peer.read()
    assert final.kind == GOAWAY
    assert int.from_bytes(final.payload[:4], "big") == second.id
    assert peer.send(headers(5), headers(7, POST_BLOCK, end=False), data_frame(7, b"x", end=True)) == []
    for stream in (first, second):
        assert peer.send(data_frame(stream.id, b"x", end=True)) == [stream]
        peer.connection.outbox.headers(stream, OK_BLOCK, end_stream=True)
    assert [answer.stream_id for answer in peer.read()] == [1, 3]
    assert peer.connection.streams == {}
    assert not peer.connection.is_ended


def test_a_fault_reports_every_open_stream() -> None:
    peer = RawPeer()
    streams = {peer.open() for _ in range(3)}
    news = peer.send(headers(7), frame(PING, 0, 1, b"x" * 8))
    assert streams < set(news)
    assert len(news) == 4
    assert all(stream.reset == PROTOCOL_ERROR and stream.is_closed for stream in news)


def test_equal_blocks_of_stateless_peers_share_a_request() -> None:
    cache = HeaderCache(max_requests=2)
    requests = []
    for _ in range(2):
        connection = ServerConnection(Limits(), cache, 0.0)
        connection.receive(PREFACE + settings_frame({}), 0.0)
        before = connection.receive(headers(1), 0.0)[0].request
        connection.receive(SETTINGS_ACK, 0.0)
        requests.append(connection.receive(headers(3), 0.0)[0].request)
        assert requests[-1] == before
        assert requests[-1] is not before
    assert requests[0] is requests[1]
    for number in range(5):
        connection.receive(headers(5 + 2 * number, encode_fields([*GET, (b"n", b"%d" % number)])), 0.0)
        assert cache.statistics()["cached_requests"] <= 2
