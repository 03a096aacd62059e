"""Many records that lie end to end, checked together: what `check_record` does to one."""

import zlib
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from latermq.message.properties import MAX_PROPERTIES_BYTES, well_formed
from latermq.message.record import (
    BORN_HOST_AT,
    MAGIC,
    MAGIC_LONG_TOPIC,
    MIN_RECORD_BYTES,
    PHYSICAL_OFFSET_AT,
    QUEUE_ID_AT,
    QUEUE_OFFSET_AT,
    SIZE_AND_MAGIC,
    SYSFLAG_AT,
    SYSFLAG_BORN_V6,
    SYSFLAG_STORE_V6,
    Buffer,
)

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
_CRC_AT = 8
_SEPARATOR = b"\x02"


class RecordBatch(NamedTuple):
    """Whole records, one after the other: what of them the files derived from the log are made of."""

    offsets: Ints
    sizes: Ints
    sysflags: Ints
    queue_ids: Ints
    queue_offsets: Ints
    store_timestamps_ms: Ints
    prepared_transaction_offsets: Ints
    topics: list[bytes]
    properties: list[bytes]

    def __len__(self) -> int:
        return len(self.topics)


def check_records(buffer: Buffer, at: int, limit: int, physical_offset: int, count: int) -> RecordBatch:
    """The whole and undamaged records from `at` on, which belongs at `physical_offset`; at most `count`.

    It ends before the first of which `check_record` would say None.
    """
    starts = np.array(_starts(buffer, at, limit, count), np.int64)
    sizes = np.diff(starts)
    starts = starts[:-1]
    offsets = starts + (physical_offset - at)
    read = _Reader(buffer, limit)
    sysflags = read.u32(starts + SYSFLAG_AT)
    timestamps_at = starts + BORN_HOST_AT + np.where(sysflags & SYSFLAG_BORN_V6, 20, 8)
    body_lengths_at = timestamps_at + 20 + np.where(sysflags & SYSFLAG_STORE_V6, 20, 8)
    bodies_at = body_lengths_at + 4
    has_long_topic = read.u32(starts + 4) == MAGIC_LONG_TOPIC
    ends = starts + sizes
    # A length that leads out of its record is not followed: it would lead anywhere.
    good = bodies_at + 3 + has_long_topic <= ends
    topic_lengths_at = np.where(good, bodies_at + read.u32(np.where(good, body_lengths_at, starts)), starts)
    topics_at = topic_lengths_at + 1 + has_long_topic
    good &= topics_at + 2 <= ends
    topic_lengths_at[~good] = starts[~good]
    topics_end = topics_at + np.where(has_long_topic, read.u16(topic_lengths_at), read.u8(topic_lengths_at))
    good &= (topics_end > topics_at) & (topics_end + 2 <= ends)
    property_lengths = read.u16(np.where(good, topics_end, starts))
    good &= (property_lengths <= MAX_PROPERTIES_BYTES) & (topics_end + 2 + property_lengths == ends)
    good &= read.i64(starts + PHYSICAL_OFFSET_AT) == offsets
    # What follows looks at each record's own bytes, so only at those whose parts lie where they can.
    whole = _leading(good)
    starts, ends, bodies_at, topic_lengths_at, topics_at, topics_end = (
        column[:whole] for column in (starts, ends, bodies_at, topic_lengths_at, topics_at, topics_end)
    )
    topics = _cut_out(buffer, topics_at, topics_end)
    properties = _cut_out(buffer, topics_end + 2, ends)
    whole = min(
        _leading(_crcs(buffer, bodies_at, topic_lengths_at) == read.u32(starts + _CRC_AT)),
        _well_formed_lead(topics),
        _well_formed_lead(properties),
    )
    return RecordBatch(
        offsets[:whole],
        sizes[:whole],
        sysflags[:whole],
        read.u32(starts[:whole] + QUEUE_ID_AT),
        read.i64(starts[:whole] + QUEUE_OFFSET_AT),
        read.i64(timestamps_at[:whole]),
        read.i64(bodies_at[:whole] - 12),
        topics[:whole],
        properties[:whole],
    )


def _starts(buffer: Buffer, at: int, limit: int, count: int) -> list[int]:
    """Where records start, as far as their sizes and magic numbers lead, and where the last of them ends."""
    unpack_from = SIZE_AND_MAGIC.unpack_from
    starts = [at]
    while len(starts) <= count and at + MIN_RECORD_BYTES <= limit:
        size, magic = unpack_from(buffer, at)
        if (magic != MAGIC and magic != MAGIC_LONG_TOPIC) or size < MIN_RECORD_BYTES or at + size > limit:
            break
        at += size
        starts.append(at)
    return starts


class _Reader:
    """Reads one number at each of many places."""

    def __init__(self, buffer: Buffer, limit: int) -> None:
        self._buffer = buffer
        self._limit = limit

    def _numbers(self, at: Ints, dtype: str, size: int) -> Ints:
        at_any_byte = np.ndarray((max(0, self._limit - size + 1),), dtype, self._buffer, strides=(1,))
        return at_any_byte[at].astype(np.int64)

    def u8(self, at: Ints) -> Ints:
        return self._numbers(at, "u1", 1)

    def u16(self, at: Ints) -> Ints:
        return self._numbers(at, ">u2", 2)

    def u32(self, at: Ints) -> Ints:
        return self._numbers(at, ">u4", 4)

    def i64(self, at: Ints) -> Ints:
        return self._numbers(at, ">i8", 8)


def _leading(good: Bools) -> int:
    """How many are good before the first that is not."""
    return len(good) if good.all() else int(good.argmin())


def _cut_out(buffer: Buffer, starts: Ints, ends: Ints) -> list[bytes]:
    return [bytes(buffer[start:end]) for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]


def _crcs(buffer: Buffer, starts: Ints, ends: Ints) -> Ints:
    crc32 = zlib.crc32
    with memoryview(buffer) as view:
        crcs = [crc32(view[start:end]) for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
    return np.array(crcs, np.int64) & 0x7FFFFFFF


def _well_formed_lead(texts: list[bytes]) -> int:
    """How many texts are well formed before the first that is not; most often one look at all of them tells."""
    if well_formed(_SEPARATOR.join(texts)):
        return len(texts)
    return next(number for number, text in enumerate(texts) if not well_formed(text))
