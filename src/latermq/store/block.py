"""Records built in advance: everything but their place in log and queue and their store time, which come last."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from latermq.arrays import Indices, Ints, Ints32
from latermq.message.record_writer import set_places, set_queue_ids

# What a key counts beside bytes that are copied: it takes 0.3 µs to put it into the index, and 12 bytes until then.
KEY_COST = 64


@dataclass(slots=True)
class Block:
    """Several records laid end to end, of any topics and queues."""

    data: bytearray | memoryview
    sizes: Ints
    store_timestamp_at: Ints  # where in each record the store time stands; IPv6 hosts move it
    tags: Ints
    queues: list[tuple[str, int]]
    queue_of: Indices  # for each record the index of its queue in `queues`
    key_hashes: Ints32  # for the key index,
    key_rows: Ints  # and of which record each is, in order
    level: int  # whose entries these records replace,
    entries: Ints  # and which
    is_far: bool = False  # whether these were Spark's timers

    @property
    def size(self) -> int:
        """How many bytes the records take."""
        return len(self.data)

    @property
    def starts(self) -> Ints:
        """Where each record begins in `data`."""
        starts: Ints = np.cumsum(self.sizes) - self.sizes
        return starts

    @property
    def costs(self) -> Ints:
        """What each record counts where work is bounded by bytes: its own, or more where it has very many keys."""
        if len(self.key_rows) * KEY_COST <= self.size:
            return self.sizes
        return np.maximum(self.sizes, KEY_COST * np.bincount(self.key_rows, minlength=len(self)))

    @property
    def cost(self) -> int:
        return int(self.costs.sum())

    def __len__(self) -> int:
        return len(self.sizes)

    def rows_by_queue(self) -> dict[int, Indices]:
        """For each queue that has any, by its index in `queues`, the rows of its records."""
        counts = np.bincount(self.queue_of, minlength=len(self.queues))
        rows = np.split(np.argsort(self.queue_of, kind="stable"), np.cumsum(counts)[:-1])
        return {number: rows[number] for number in np.flatnonzero(counts).tolist()}

    def part(self, start: int, end: int) -> "Block":
        """The records [start, end) as a block that shares the bytes of this one."""
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
        """Some of the records, by their rows in order, as a block with bytes of its own."""
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
        """The same records where some queues, by their index in `queues`, are replaced by others of their topics."""
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
        """Several blocks of one level and one owner as one, in this order."""
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
        """Write what log offset `at` brings into the bytes, where each queue goes on at its next offset.

        Returns the records' physical offsets. A block that was patched but not appended may be patched again.
        """
        starts = np.cumsum(self.sizes) - self.sizes
        queue_offsets = np.empty(len(self.sizes), np.int64)
        for own, next_offset in zip(rows, next_offsets, strict=True):
            queue_offsets[own] = np.arange(next_offset, next_offset + len(own))
        set_places(self.data, starts, at, queue_offsets, self.store_timestamp_at, store_timestamp_ms)
        return starts + at
