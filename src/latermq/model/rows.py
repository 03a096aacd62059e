"""Many timers at once, in columns that numpy and Arrow read and write as they lie."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from latermq.arrays import Bools, Ints, UInts16


@dataclass(slots=True)
class Column:
    """Values of any length: value n is `data[offsets[n]:offsets[n + 1]]`."""

    data: bytes
    offsets: Ints

    @staticmethod
    def of(values: Iterable[bytes]) -> "Column":
        """A column of these values."""
        listed = list(values)
        sizes = np.fromiter(map(len, listed), np.int64, len(listed))
        return Column(b"".join(listed), np.concatenate(([0], np.cumsum(sizes))))

    @staticmethod
    def of_nothing(rows: int) -> "Column":
        """A column of empty values."""
        return Column(b"", np.zeros(rows + 1, np.int64))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def sizes(self) -> Ints:
        return np.diff(self.offsets)

    def values(self) -> list[bytes]:
        """All values; 0.1 µs each."""
        data, bounds = self.data, self.offsets.tolist()
        return [data[start:end] for start, end in pairwise(bounds)]

    def row_at(self, position: int) -> int:
        """Which value this byte belongs to."""
        return int(np.searchsorted(self.offsets, position, side="right")) - 1


@dataclass(slots=True)
class RowBatch:
    """Timers to schedule: row n of each column is of the same timer."""

    topics: list[str]
    topic_of: UInts16  # for each row the index of its topic
    times_ms: Ints  # when it is due, or how long it waits from now
    from_now: Bools  # which of the two
    unique_keys: Column
    bodies: Column
    keys: Column  # message keys of a row, parted by spaces
    tags: Column
    properties: Column  # further ones in the wire form of properties

    def __len__(self) -> int:
        return len(self.times_ms)
