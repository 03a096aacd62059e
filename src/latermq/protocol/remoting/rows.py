"""The body of SCHEDULE_ROWS: many timers in columns, which numpy and Arrow read and write without conversion.

All numbers are little-endian. A column of texts or bytes has the layout of an Arrow binary array: one more offset than
there are values, then the concatenated values (docs/protocol.md has the complete table).
"""

import hashlib
import struct
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from latermq.arrays import Ints
from latermq.config_json.numbers import Int64
from latermq.errors import MalformedRequest
from latermq.model.rows import Column, RowBatch, RowLimits, RowReceiver
from latermq.protocol.remoting.frames import Command

MAGIC = b"LMR1"
MAX_ROWS = 4_096  # per request: these block the broker's loop for about 20 ms
MAX_KEYS = 65_536  # message keys of all rows per request: they take as long again, since each is handled separately
ROWS_AT_ONCE = 2_000  # recommended batch for senders: large enough for the arrays, small enough for punctual timers
MAX_TOPICS = 4_096
MAX_BYTES = 8 << 20  # of a request with more than one row
KEY_SEPARATOR = b" "  # between the message keys of a row
UNIQUE_KEY_BYTES = 16

_HEAD = struct.Struct("<4sII")  # magic, rows, topics


def unique_key_of(job: str, key: str) -> str:
    """The unique key of a row. It depends only on the job and the key, so repeated sends get the same one."""
    return unique_keys_of(job, [key.encode()]).hex().upper()


def unique_keys_of(job: str, keys: Iterable[bytes]) -> bytes:
    """The unique keys of many rows before their conversion to hex, UNIQUE_KEY_BYTES each, in 0.8 µs each."""
    job_bytes = job.encode()
    prefix = len(job_bytes).to_bytes(4, "big") + job_bytes
    blake2b = hashlib.blake2b
    return b"".join([blake2b(prefix + key, digest_size=UNIQUE_KEY_BYTES).digest() for key in keys])


class _ReceiverFields(msgspec.Struct):
    """Header fields of the response to a request without rows."""

    instance: str
    maxBodyBytes: Int64
    maxDelayMs: Int64
    createsTopics: bool


def encode_receiver(receiver: RowReceiver) -> dict[str, str]:
    """The header fields of the response to a request without rows."""
    limits = receiver.limits
    return {
        "instance": receiver.instance, "maxBodyBytes": str(limits.max_body_bytes),
        "maxDelayMs": str(limits.max_delay_ms), "createsTopics": "true" if limits.creates_topics else "false",
    }  # fmt: skip


def decode_receiver(response: Command) -> RowReceiver:
    """What the response to a request without rows tells."""
    fields = response.header(_ReceiverFields)
    return RowReceiver(RowLimits(fields.maxBodyBytes, fields.maxDelayMs, fields.createsTopics), fields.instance)


def no_rows(topics: Sequence[str] = ()) -> RowBatch:
    """A batch that only asks. With topics, it is answered when everything stored so far is flushed."""
    empty = Column.empty(0)
    numbers = np.zeros(0, np.uint16), np.zeros(0, np.int64), np.zeros(0, np.bool_)
    return RowBatch(list(topics), *numbers, empty, empty, empty, empty, empty)


def encode_rows(batch: RowBatch) -> bytes:
    """Encode rows as a request body."""
    pieces = [_HEAD.pack(MAGIC, len(batch), len(batch.topics))]
    pieces += encode_column(Column.of(topic.encode() for topic in batch.topics))
    pieces += (batch.topic_of.astype("<u2").tobytes(), batch.times_ms.astype("<i8").tobytes())
    pieces.append(batch.from_now.astype(np.uint8).tobytes())
    for column in (batch.unique_keys, batch.bodies, batch.keys, batch.tags, batch.properties):
        pieces += encode_column(column)
    return b"".join(pieces)


def encode_column(column: Column) -> tuple[bytes, bytes]:
    """Encode a column: offsets, then values."""
    return column.offsets.astype("<u4").tobytes(), column.data


def decode_rows(body: bytes) -> RowBatch:
    """Decode the rows in a request body; raises MalformedRequest if it is not valid."""
    if len(body) < _HEAD.size:
        raise MalformedRequest(f"a batch of rows cannot have {len(body)} bytes")
    magic, rows, topics = _HEAD.unpack_from(body)
    if magic != MAGIC:
        raise MalformedRequest(
            f"the body starts with {magic!r} instead of {MAGIC!r}",
            hint="The broker and the pipeline must have the same version",
        )
    if rows > MAX_ROWS or topics > MAX_TOPICS:
        raise MalformedRequest(
            f"{rows} rows for {topics} topics are too many; the limits are {MAX_ROWS} rows and {MAX_TOPICS} topics",
            hint="Send several smaller requests",
        )
    if rows > 1 and len(body) > MAX_BYTES:
        raise MalformedRequest(
            f"{rows} rows of {len(body)} bytes are too many; a request with more than one row has up to {MAX_BYTES}",
            hint="Send several smaller requests",
        )
    reader = ColumnReader(body, _HEAD.size)
    names = reader.texts(topics)
    topic_of = reader.numbers("<u2", rows).astype(np.uint16)
    times_ms = reader.numbers("<i8", rows).astype(np.int64)
    from_now = reader.numbers("<u1", rows) != 0
    columns = [reader.column(rows) for _ in range(5)]
    reader.check_end()
    keys = columns[2].data.count(KEY_SEPARATOR) + rows
    if keys > MAX_KEYS:
        raise MalformedRequest(
            f"{rows} rows with {keys} message keys are too many; the limit is {MAX_KEYS} keys",
            hint="Send several smaller requests",
        )
    if rows and int(topic_of.max()) >= topics:
        raise MalformedRequest(f"row {int(topic_of.argmax())} refers to topic {int(topic_of.max())} of {topics}")
    return RowBatch(names, topic_of, times_ms, from_now, *columns)


class ColumnReader:
    """Reads a body column by column."""

    def __init__(self, body: bytes, at: int) -> None:
        self._body = body
        self.at = at

    def check_end(self) -> None:
        """Raise if there are bytes after the last column."""
        if self.at != len(self._body):
            raise MalformedRequest(f"a batch of rows has {len(self._body) - self.at} bytes after its last column")

    def texts(self, count: int) -> list[str]:
        """Read a column of topics."""
        try:
            return [topic.decode() for topic in self.column(count).values()]
        except UnicodeDecodeError:
            raise MalformedRequest("a topic is not UTF-8") from None

    def numbers(self, dtype: str, count: int) -> Ints:
        end = self.at + count * np.dtype(dtype).itemsize
        if end > len(self._body):
            raise MalformedRequest(f"a batch of rows is truncated: it has {len(self._body)} of at least {end} bytes")
        numbers: Ints = np.frombuffer(self._body, dtype, count, self.at)
        self.at = end
        return numbers

    def column(self, count: int) -> Column:
        offsets = self.numbers("<u4", count + 1).astype(np.int64)
        end = self.at + int(offsets[-1])
        if offsets[0] or (offsets[1:] < offsets[:-1]).any() or end > len(self._body):
            raise MalformedRequest(f"the offsets of a column before byte {self.at} do not match its values")
        column = Column(self._body[self.at : end], offsets)
        self.at = end
        return column
