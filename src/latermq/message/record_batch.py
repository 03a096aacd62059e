"""Validation of many contiguous records at once, with the same checks as `check_record` for one."""

import zlib
from typing import NamedTuple

import numpy as np

from latermq.arrays import Bools, Ints
from latermq.message.properties import well_formed
from latermq.message.record_fields import (
    BODY_CRC_AT,
    CRC_MASK,
    MAGIC,
    MAGIC_LONG_TOPIC,
    MIN_RECORD_BYTES,
    PHYSICAL_OFFSET_AT,
    QUEUE_ID_AT,
    QUEUE_OFFSET_AT,
    SIZE_AND_MAGIC,
    Buffer,
)
from latermq.message.record_layouts import Numbers, lay_out

_SEPARATOR = b"\x02"


class RecordBatch(NamedTuple):
    """Contiguous records: the columns from which the broker derives its other files."""

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
    """The complete and undamaged records from `at` on, at most `count`. `at` corresponds to `physical_offset`.

    The batch ends before the first record for which `check_record` would return None.
    """
    bounds = np.array(_bounds(buffer, at, limit, count), np.int64)
    starts, ends = bounds[:-1], bounds[1:]
    offsets = starts + (physical_offset - at)
    read = Numbers(buffer, limit)
    parts = lay_out(read, starts, ends)
    # The next checks read the bytes of each record, so they are limited to records with a consistent layout.
    whole = _leading(parts.fits & (read.i64(starts + PHYSICAL_OFFSET_AT) == offsets))
    topics = _cut_out(buffer, parts.topics_at[:whole], parts.topics_end[:whole])
    properties = _cut_out(buffer, parts.properties_at[:whole], ends[:whole])
    crcs = _crcs(buffer, parts.bodies_at[:whole], parts.bodies_end[:whole])
    whole = min(
        _leading(crcs == read.u32(starts[:whole] + BODY_CRC_AT)),
        _well_formed_lead(topics),
        _well_formed_lead(properties),
    )
    starts = starts[:whole]
    return RecordBatch(
        offsets[:whole],
        ends[:whole] - starts,
        parts.sysflags[:whole],
        read.u32(starts + QUEUE_ID_AT),
        read.i64(starts + QUEUE_OFFSET_AT),
        read.i64(parts.store_timestamps_at[:whole]),
        read.i64(parts.prepared_at[:whole]),
        topics[:whole],
        properties[:whole],
    )


def _bounds(buffer: Buffer, at: int, limit: int, count: int) -> list[int]:
    """The starts of records, as far as sizes and magic numbers are valid, followed by the end of the last one."""
    unpack_from = SIZE_AND_MAGIC.unpack_from
    starts = [at]
    while len(starts) <= count and at + MIN_RECORD_BYTES <= limit:
        size, magic = unpack_from(buffer, at)
        if (magic != MAGIC and magic != MAGIC_LONG_TOPIC) or size < MIN_RECORD_BYTES or at + size > limit:
            break
        at += size
        starts.append(at)
    return starts


def _leading(good: Bools) -> int:
    """The number of true values before the first false one."""
    return len(good) if good.all() else int(good.argmin())


def _cut_out(buffer: Buffer, starts: Ints, ends: Ints) -> list[bytes]:
    return [bytes(buffer[start:end]) for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]


def _crcs(buffer: Buffer, starts: Ints, ends: Ints) -> Ints:
    crc32 = zlib.crc32
    with memoryview(buffer) as view:
        crcs = [crc32(view[start:end]) for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
    return np.array(crcs, np.int64) & CRC_MASK


def _well_formed_lead(texts: list[bytes]) -> int:
    """The number of well-formed texts before the first malformed one; usually one check of all of them suffices."""
    if well_formed(_SEPARATOR.join(texts)):
        return len(texts)
    return next(number for number, text in enumerate(texts) if not well_formed(text))
