"""Prebuilt records: complete except for their positions in log and queue and their store time."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from latermq.arrays import Indices, Ints, Ints32
from latermq.message.record_writer import set_places, set_queue_ids

# The cost of a key, compared with copied bytes: it takes 0.3 µs to add it to the index, and 12 bytes until then.
KEY_COST = 64


@dataclass(slots=True)
class Block:
    """Several concatenated records of any topics and queues."""

    data: bytearray | memoryview
    sizes: Ints
    store_timestamp_at: Ints  # position of the store time in each record; IPv6 hosts shift it
    tags: Ints
    queues: list[tuple[str, int]]
    queue_of: Indices  # for each record, the index of its queue in `queues`
    key_hashes: Ints32  # for the key index
    key_rows: Ints  # the record of each key, in order
    level: int  # the level whose entries these records replace
    entries: Ints  # the replaced entries
    is_far: bool = False  # whether these timers came from Spark

    @property
    def size(self) -> int:
        """The size of the records in bytes."""
        return len(self.data)

    @property
    def starts(self) -> Ints:
        """The start of each record in `data`."""
        starts: Ints = np.cumsum(self.sizes) - self.sizes
        return starts

    @property
    def costs(self) -> Ints:
        """The cost of each record where bytes limit the work: its size, or more if it has very many keys."""
        if len(self.key_rows) * KEY_COST <= self.size:
            return self.sizes
        return np.maximum(self.sizes, KEY_COST * np.bincount(self.key_rows, minlength=len(self)))

    @property
    def cost(self) -> int:
        return int(self.costs.sum())

    def __len__(self) -> int:
        return len(self.sizes)

    def rows_by_queue(self) -> dict[int, Indices]:
        """Return the rows of each queue that has records, by the queue's index in `queues`."""
        counts = np.bincount(self.queue_of, minlength=len(self.queues))
        rows = np.split(np.argsort(self.queue_of, kind="stable"), np.cumsum(counts)[:-1])
        return {number: rows[number] for number in np.flatnonzero(counts).tolist()}

    def part(self, start: int, end: int) -> "Block":
        """Return the records [start, end) as a block that shares this block's bytes."""
        ends = np.cumsum(self.sizes)
        first = int(ends[start - 1]) if start else 0
        last = int(ends[end - 1]) if end else 0
        keys = slice(*np.searchsorted(self.key_rows, (start, end)).tolist())
        return Block(
            memoryview(self.data)[first:last],
            self.sizes[start:end],
            self.store_timestamp_at[start:end],
            self.tags[start:end],
            self.queues,
            self.queue_of[start:end],
            self.key_hashes[keys],
            self.key_rows[keys] - start,
            self.level,
            self.entries[start:end],
            self.is_far,
        )

    def rows(self, rows: Indices) -> "Block":
        """Return a copy of the records in these rows, which must be in order."""
        ends = np.cumsum(self.sizes)[rows]
        view = memoryview(self.data)
        wanted = np.zeros(len(self), bool)
        wanted[rows] = True
        has_key = wanted[self.key_rows]
        spans = zip((ends - self.sizes[rows]).tolist(), ends.tolist(), strict=True)
        return Block(
            bytearray().join(view[start:end] for start, end in spans),
            self.sizes[rows],
            self.store_timestamp_at[rows],
            self.tags[rows],
            self.queues,
            self.queue_of[rows],
            self.key_hashes[has_key],
            np.searchsorted(rows, self.key_rows[has_key]),
            self.level,
            self.entries[rows],
            self.is_far,
        )

    def redirect(self, queue_ids: dict[int, int]) -> "Block":
        """Replace some queues, given by their index in `queues`, with other queues of their topics."""
        numbers = {queue: number for number, queue in enumerate(self.queues)}
        becomes = np.arange(len(self.queues))
        for number, queue_id in queue_ids.items():
            becomes[number] = numbers.setdefault((self.queues[number][0], queue_id), len(numbers))
        queue_of = becomes[self.queue_of]
        rows = np.flatnonzero(queue_of != self.queue_of)
        starts = (np.cumsum(self.sizes) - self.sizes)[rows]
        set_queue_ids(self.data, starts, np.array([queue_id for _, queue_id in numbers])[queue_of[rows]])
        return replace(self, queues=list(numbers), queue_of=queue_of)

    @staticmethod
    def join(blocks: "Sequence[Block]") -> "Block":
        """Join blocks of one level and one owner, in this order."""
        if len(blocks) == 1:
            return blocks[0]
        numbers: dict[tuple[str, int], int] = {}
        queue_of = []
        for block in blocks:
            own = [numbers.setdefault(queue, len(numbers)) for queue in block.queues]
            queue_of.append(np.array(own, np.intp)[block.queue_of])
        first_rows = np.cumsum([0, *map(len, blocks)]).tolist()
        return Block(
            bytearray().join(block.data for block in blocks),
            np.concatenate([block.sizes for block in blocks]),
            np.concatenate([block.store_timestamp_at for block in blocks]),
            np.concatenate([block.tags for block in blocks]),
            list(numbers),
            np.concatenate(queue_of),
            np.concatenate([block.key_hashes for block in blocks]),
            np.concatenate([block.key_rows + first for block, first in zip(blocks, first_rows, strict=False)]),
            blocks[0].level,
            np.concatenate([block.entries for block in blocks]),
            blocks[0].is_far,
        )

    def patch(self, at: int, rows: Iterable[Indices], next_offsets: Iterable[int], store_timestamp_ms: int) -> Ints:
        """Write the fields that depend on the log offset `at`, the queues' next offsets and the store time.

        Returns the records' physical offsets. A block that was patched but not appended may be patched again.
        """
        starts = np.cumsum(self.sizes) - self.sizes
        queue_offsets = np.empty(len(self.sizes), np.int64)
        for own, next_offset in zip(rows, next_offsets, strict=True):
            queue_offsets[own] = np.arange(next_offset, next_offset + len(own))
        set_places(self.data, starts, at, queue_offsets, self.store_timestamp_at, store_timestamp_ms)
        return starts + at


def pieces_of(sizes: Ints, max_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield spans of rows of at most `max_bytes`, or of one row: records that fit in one block, or in one segment."""
    ends = np.cumsum(sizes)
    start = 0
    while start < len(sizes):
        begin = int(ends[start - 1]) if start else 0
        end = max(start + 1, int(np.searchsorted(ends, begin + max_bytes, side="right")))
        yield start, end
        start = end
