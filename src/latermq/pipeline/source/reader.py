"""The work of one task: pull a part of a queue and yield it as Arrow batches."""

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from latermq.arrays import Ints
from latermq.handover.ownership import Ownership
from latermq.message.timer_code import CUT
from latermq.pipeline.driver.link import BrokerLink, QueueRange
from latermq.pipeline.source.options import SourceOptions
from latermq.pipeline.source.ranges import QueuePart
from latermq.pipeline.source.records import RecordBlock
from latermq.pipeline.timeline.ownership import far_timers

# Bytes of records sorted at once. All are in memory, and twice during the sort.
SORTED_BYTES = 32 << 20
BATCH_BYTES = 8 << 20


def read_part(
    part: QueuePart, columns: Sequence[str], options: SourceOptions, due_ms: tuple[int, int] | None = None
) -> Iterator[pa.RecordBatch]:
    """The records of a part. With `due_ms`, only those due in [low, high)."""
    place = part.place
    range_ = QueueRange(options.topic, place.queue_id, part.start, part.end, options.epoch)
    with BrokerLink(place.address) as link:
        pieces = link.pull_all(range_, options.max_bytes_per_pull)
        for group in _groups(pieces, SORTED_BYTES if options.timeline else 0):
            block = RecordBlock(
                group,
                broker=place.broker,
                is_timer_topic=options.is_timer_topic,
                precision_ms=options.import_precision_ms,
            )
            chosen = None if due_ms is None else _due_rows(block, *due_ms)
            if options.timeline:
                yield from _slices(timeline_batch(block, columns, part.ownership, chosen), block.size_bytes)
            else:
                yield block.batch(columns, chosen)


def timeline_batch(
    block: RecordBlock, columns: Sequence[str], ownership: Ownership, chosen: Ints | None = None
) -> pa.RecordBatch:
    """Timer topic entries as timeline rows: in due order and without cuts. Covers all rows or the chosen ones.

    Only far timers keep their record.
    """
    dues, _ = block.dues
    kept = far_timers(block, ownership)
    rows = np.arange(len(block)) if chosen is None else chosen
    rows = rows[block.kinds[rows] != CUT]
    return block.batch(columns, rows[np.argsort(dues[rows], kind="stable")], ~kept)


def _due_rows(block: RecordBlock, low: int, high: int) -> Ints:
    dues, present = block.dues
    # The bounds may exceed 64 bits, which numpy cannot compare. No due time needs 62 bits.
    low, high = (min(max(bound, -(1 << 62)), 1 << 62) for bound in (low, high))
    return np.flatnonzero(present & (dues >= low) & (dues < high))


def _groups(pieces: Iterator[bytearray], size_bytes: int) -> Iterator[list[bytearray]]:
    """Group pieces up to a size; with size 0, one by one."""
    held: list[bytearray] = []
    held_bytes = 0
    for piece in pieces:
        if held and held_bytes + len(piece) > size_bytes:
            yield held
            held, held_bytes = [], 0
        held.append(piece)
        held_bytes += len(piece)
    if held:
        yield held


def _slices(batch: pa.RecordBatch, size_bytes: int) -> Iterator[pa.RecordBatch]:
    """Split a batch, because Spark holds each batch in memory as a whole."""
    count = -(-size_bytes // BATCH_BYTES)
    rows = -(-batch.num_rows // count)
    for at in range(0, batch.num_rows, max(1, rows)):
        yield batch.slice(at, rows)
