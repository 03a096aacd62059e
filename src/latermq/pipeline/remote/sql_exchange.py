"""What a command and the driver exchange about one SQL query: a request, and a stream of frames. Imports no Spark.

A frame is its length in four bytes, and a message in MessagePack. MessagePack has times and bytes, which JSON lacks.
"""

from collections.abc import Iterator
from typing import Any, Protocol

import msgspec

from latermq.errors import ConfigError, LaterMQError

PATH = "/sql"
MAX_ROWS = 10_001  # of one answer, which the driver holds in memory: 10,000, and one that shows that there are more
MAX_FRAME_BYTES = 1 << 30
_LENGTH_BYTES = 4


class SqlRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A query over the tables of one timeline."""

    query: str
    timeline: str
    namesrv: str
    limit: int
    version: int | None = None
    timestamp: str | None = None
    allow_partial: bool = False


class Progress(msgspec.Struct, tag="progress", array_like=True):
    """Spark's tasks. Sent at least every second while a query runs, so a silent driver is a dead one."""

    done: int
    total: int
    running: int


class Failure(msgspec.Struct, tag="failure", array_like=True):
    """The query was refused or failed."""

    message: str
    hint: str
    excerpt: str
    is_mistake: bool  # in what the user wrote


class ResultRow(msgspec.Struct, tag="row", array_like=True):
    """One row of the result."""

    values: list[Any]


class End(msgspec.Struct, tag="end", array_like=True):
    """The result is complete. `absent` describes the stores that it lacks."""

    columns: list[str]
    absent: list[str]


Frame = Progress | Failure | ResultRow | End


class Readable(Protocol):
    """A stream that returns fewer bytes than asked for only at its end."""

    def read(self, size: int, /) -> bytes: ...


_encoder = msgspec.msgpack.Encoder(enc_hook=str)
_decoder: msgspec.msgpack.Decoder[Frame] = msgspec.msgpack.Decoder(Frame)


def encode_frame(frame: Frame) -> bytes:
    body = _encoder.encode(frame)
    return len(body).to_bytes(_LENGTH_BYTES, "big") + body


def read_frames(stream: Readable) -> Iterator[Frame]:
    """The frames of a stream. Raises EOFError if the stream ends within a frame, and ValueError for anything else."""
    while prefix := stream.read(_LENGTH_BYTES):
        length = int.from_bytes(prefix, "big")
        if length > MAX_FRAME_BYTES:
            raise ValueError(f"a frame of {length} bytes")
        body = stream.read(length)
        if len(prefix) < _LENGTH_BYTES or len(body) < length:
            raise EOFError("the stream ended within a frame")
        yield _decoder.decode(body)


def failure(error: LaterMQError) -> Failure:
    return Failure(error.message, error.hint, getattr(error, "excerpt", ""), isinstance(error, ConfigError))
