"""Many records that lie end to end, checked together: what `check_record` does to one."""

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
    bounds = np.array(_bounds(buffer, at, limit, count), np.int64)
    starts, ends = bounds[:-1], bounds[1:]
    offsets = starts + (physical_offset - at)
    read = Numbers(buffer, limit)
    parts = lay_out(read, starts, ends)
    # What follows looks at each record's own bytes, so only at those whose parts lie where they can.
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


def _leading(good: Bools) -> int:
    """How many are good before the first that is not."""
    return len(good) if good.all() else int(good.argmin())


def _cut_out(buffer: Buffer, starts: Ints, ends: Ints) -> list[bytes]:
    return [bytes(buffer[start:end]) for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]


def _crcs(buffer: Buffer, starts: Ints, ends: Ints) -> Ints:
    crc32 = zlib.crc32
    with memoryview(buffer) as view:
        crcs = [crc32(view[start:end]) for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
    return np.array(crcs, np.int64) & CRC_MASK


def _well_formed_lead(texts: list[bytes]) -> int:
    """How many texts are well formed before the first that is not; most often one look at all of them tells."""
    if well_formed(_SEPARATOR.join(texts)):
        return len(texts)
    return next(number for number, text in enumerate(texts) if not well_formed(text))
