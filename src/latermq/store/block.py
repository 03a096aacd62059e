"""Records built in advance: everything but their place in log and queue and their store time, which come last."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from latermq.message.record import PHYSICAL_OFFSET_AT, QUEUE_OFFSET_AT

Ints = npt.NDArray[np.int64]


@dataclass(slots=True)
class Block:
    """Several records laid end to end, of any topics and queues."""

    data: bytearray | memoryview
    sizes: Ints
    store_timestamp_at: Ints  # where in each record the store time stands; IPv6 hosts move it
    tags: Ints
    queues: list[tuple[str, int]]
    queue_of: npt.NDArray[np.intp]  # for each record the index of its queue in `queues`
    key_hashes: npt.NDArray[np.int32]  # for the key index,
    key_rows: Ints  # and of which record each is, in order
    level: int  # whose entries these records replace,
    entries: Ints  # and which

    @property
    def size(self) -> int:
        """How many bytes the records take."""
        return len(self.data)

    def __len__(self) -> int:
        return len(self.sizes)

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
        )

    def rows(self, rows: npt.NDArray[np.intp]) -> "Block":
        """Some of the records, by their rows in order, as a block with bytes of its own."""
        ends = np.cumsum(self.sizes)[rows]
        view = memoryview(self.data)
        has_key = np.isin(self.key_rows, rows)
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
        )

    def patch(
        self, at: int, next_offsets: list[int], store_timestamp_ms: int
    ) -> tuple[Ints, list[npt.NDArray[np.intp]]]:
        """Write what log offset `at` brings into the bytes; the records' physical offsets, and each used queue's rows.

        A block that was patched and not appended may be patched again.
        """
        starts = np.cumsum(self.sizes) - self.sizes
        rows = [np.flatnonzero(self.queue_of == number) for number in np.unique(self.queue_of).tolist()]
        queue_offsets = np.empty(len(self.sizes), np.int64)
        for own, next_offset in zip(rows, next_offsets, strict=True):
            queue_offsets[own] = np.arange(next_offset, next_offset + len(own))
        # A view of eight bytes at every byte: one assignment patches a field in all records.
        fields_at_any_byte = np.ndarray((self.size - 7,), ">i8", self.data, strides=(1,))
        fields_at_any_byte[starts + QUEUE_OFFSET_AT] = queue_offsets
        fields_at_any_byte[starts + PHYSICAL_OFFSET_AT] = starts + at
        fields_at_any_byte[starts + self.store_timestamp_at] = store_timestamp_ms
        return starts + at, rows
