"""Records built in advance: everything but their place in log and queue and their store time, which come last."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from latermq.message.record import PHYSICAL_OFFSET_AT, QUEUE_OFFSET_AT

Ints = npt.NDArray[np.int64]


@dataclass(slots=True)
class Block:
    """Several records laid end to end, of any topics and queues."""

    data: bytes | memoryview
    sizes: Ints
    store_timestamp_at: Ints  # where in each record the store time stands; IPv6 hosts move it
    tags: Ints
    queues: list[tuple[str, int]]
    queue_of: npt.NDArray[np.intp]  # for each record the index of its queue in `queues`
    keys: list[tuple[str, bytes]]  # topic and properties of each record, for the key index
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
        return Block(
            memoryview(self.data)[first:last],
            self.sizes[start:end],
            self.store_timestamp_at[start:end],
            self.tags[start:end],
            self.queues,
            self.queue_of[start:end],
            self.keys[start:end],
            self.level,
            self.entries[start:end],
        )

    def rows(self, rows: npt.NDArray[np.intp]) -> "Block":
        """Some of the records, by their rows, as a block with bytes of its own."""
        ends = np.cumsum(self.sizes)[rows]
        view = memoryview(self.data)
        spans = zip((ends - self.sizes[rows]).tolist(), ends.tolist(), strict=True)
        return Block(
            b"".join(view[start:end] for start, end in spans),
            self.sizes[rows],
            self.store_timestamp_at[rows],
            self.tags[rows],
            self.queues,
            self.queue_of[rows],
            [self.keys[row] for row in rows.tolist()],
            self.level,
            self.entries[rows],
        )

    def patched(
        self, at: int, next_offsets: list[int], store_timestamp_ms: int
    ) -> tuple[bytearray, Ints, list[npt.NDArray[np.intp]]]:
        """The bytes as they go to log offset `at`, the records' physical offsets, and each used queue's rows."""
        data = bytearray(self.data)
        starts = np.zeros(len(self.sizes), np.int64)
        np.cumsum(self.sizes[:-1], out=starts[1:])
        rows = [np.flatnonzero(self.queue_of == number) for number in np.unique(self.queue_of).tolist()]
        queue_offsets = np.empty(len(self.sizes), np.int64)
        for own, next_offset in zip(rows, next_offsets, strict=True):
            queue_offsets[own] = np.arange(next_offset, next_offset + len(own))
        # A view of eight bytes at every byte: one assignment patches a field in all records.
        fields_at_any_byte = np.ndarray((len(data) - 7,), ">i8", data, strides=(1,))
        fields_at_any_byte[starts + QUEUE_OFFSET_AT] = queue_offsets
        fields_at_any_byte[starts + PHYSICAL_OFFSET_AT] = starts + at
        fields_at_any_byte[starts + self.store_timestamp_at] = store_timestamp_ms
        return data, starts + at, rows
