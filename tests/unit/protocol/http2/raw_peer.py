"""A peer that writes raw frames to a connection and splits what it answers into frames."""

import itertools
from typing import NamedTuple

from hpack import Decoder

from latermq.protocol.http2.connection import ServerConnection
from latermq.protocol.http2.frames import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    SETTINGS_ACK,
    ErrorCode,
    frame,
    settings_frame,
    window_update,
)
from latermq.protocol.http2.header_cache import HeaderCache
from latermq.protocol.http2.hpack.encoder import encode_fields
from latermq.protocol.http2.limits import Limits
from latermq.protocol.http2.stream import Stream

GET = [(b":method", b"GET"), (b":scheme", b"http"), (b":path", b"/a"), (b":authority", b"localhost")]
POST = [(b":method", b"POST"), *GET[1:]]
GET_BLOCK = encode_fields(GET)
POST_BLOCK = encode_fields(POST)
OK_BLOCK = encode_fields([(b":status", b"200")])


class Frame(NamedTuple):
    kind: int
    flags: int
    stream_id: int
    payload: bytes


def frames_of(data: bytes) -> list[Frame]:
    """Split bytes into frames; they must be complete."""
    found = []
    at = 0
    while at < len(data):
        length = int.from_bytes(data[at : at + 3], "big")
        stop = at + 9 + length
        assert stop <= len(data), "the last frame is incomplete"
        found.append(
            Frame(data[at + 3], data[at + 4], int.from_bytes(data[at + 5 : at + 9], "big"), data[at + 9 : stop])
        )
        at = stop
    return found


class RawPeer:
    """A connection after its greeting, with the calls of its peer. The simulated time advances only on request."""

    def __init__(
        self, limits: Limits | None = None, settings: dict[int, int] | None = None, greet: bool = True
    ) -> None:
        self.now_s = 1000.0
        self.connection = ServerConnection(limits or Limits(), HeaderCache(), self.now_s)
        self.decoder = Decoder()
        self._ids = itertools.count(1, 2)
        self.greeting = frames_of(self.connection.outbox.take())
        if greet:
            assert self.send(PREFACE + settings_frame(settings or {}) + SETTINGS_ACK) == []
            assert [answer.kind for answer in self.read()] == [SETTINGS]

    def send(self, *data: bytes) -> list[Stream]:
        return self.connection.receive(b"".join(data), self.now_s)

    def read(self) -> list[Frame]:
        return frames_of(self.connection.outbox.take())

    def open(self, block: bytes = POST_BLOCK, end: bool = False) -> Stream:
        """Open the next stream."""
        (stream,) = self.send(headers(next(self._ids), block, end))
        return stream

    def connection_error(self, *data: bytes) -> ErrorCode:
        """Send bytes that must end the connection, and return the error code of the GOAWAY frame."""
        self.send(*data)
        assert self.connection.is_ended, "the connection did not end"
        last = self.read()[-1]
        assert last.kind == GOAWAY
        assert self.connection.streams == {}
        assert self.connection.held_bytes == 0
        assert self.send(PREFACE, b"anything") == []
        assert self.read() == []
        return ErrorCode(int.from_bytes(last.payload[4:8], "big"))

    def stream_error(self, *data: bytes) -> ErrorCode:
        """Send bytes that must reset one stream, and return the error code."""
        self.send(*data)
        assert not self.connection.is_ended, self.connection.fault
        (reset,) = [answer for answer in self.read() if answer.kind == RST_STREAM]
        assert reset.stream_id not in self.connection.streams
        return ErrorCode(int.from_bytes(reset.payload, "big"))


def headers(stream_id: int, block: bytes = GET_BLOCK, end: bool = True) -> bytes:
    return frame(HEADERS, END_HEADERS | (END_STREAM if end else 0), stream_id, block)


def data_frame(stream_id: int, data: bytes, end: bool = False) -> bytes:
    return frame(DATA, END_STREAM if end else 0, stream_id, data)


def continuation(stream_id: int, block: bytes, end: bool = False) -> bytes:
    return frame(CONTINUATION, END_HEADERS if end else 0, stream_id, block)


__all__ = [
    "GET",
    "GET_BLOCK",
    "OK_BLOCK",
    "POST",
    "POST_BLOCK",
    "Frame",
    "RawPeer",
    "continuation",
    "data_frame",
    "frames_of",
    "headers",
    "window_update",
]
