"""Many timers at once, in columns that numpy and Arrow read and write without conversion."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from latermq.arrays import Bools, Ints, UInts16
from latermq.message.properties import (
    DELAY_LEVEL,
    KEYS,
    OWN_PREFIX,
    REAL_QUEUE_ID,
    REAL_TOPIC,
    START_DELIVER_TIME,
    TAGS,
    TIMER_PREFIX,
    UNIQUE_KEY,
)

# The properties that a row may not contain: it has a column for the value, or the broker sets it.
RESERVED_PROPERTIES = (UNIQUE_KEY, KEYS, TAGS, DELAY_LEVEL, REAL_TOPIC, REAL_QUEUE_ID, START_DELIVER_TIME)
RESERVED_PREFIXES = (TIMER_PREFIX, OWN_PREFIX)


class RowLimits(NamedTuple):
    """What a broker accepts in rows."""

    max_body_bytes: int
    max_delay_ms: int
    creates_topics: bool


class RowReceiver(NamedTuple):
    """A broker as a sender of rows sees it."""

    limits: RowLimits
    instance: str  # of its process


@dataclass(slots=True)
class Column:
    """Values of any length: value n is `data[offsets[n]:offsets[n + 1]]`."""

    data: bytes
    offsets: Ints

    @staticmethod
    def of(values: Iterable[bytes]) -> "Column":
        """Build a column of these values."""
        listed = list(values)
        sizes = np.fromiter(map(len, listed), np.int64, len(listed))
        return Column(b"".join(listed), np.concatenate(([0], np.cumsum(sizes))))

    @staticmethod
    def empty(rows: int) -> "Column":
        """Build a column of empty values."""
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
        """Return the index of the value that this byte belongs to."""
        return int(np.searchsorted(self.offsets, position, side="right")) - 1


@dataclass(slots=True)
class RowBatch:
    """Timers to schedule: row n of each column belongs to the same timer."""

    topics: list[str]
    topic_of: UInts16  # the index of the topic of each row
    times_ms: Ints  # due times, or delays from now
    from_now: Bools  # whether the time is a delay
    unique_keys: Column
    bodies: Column
    keys: Column  # message keys of a row, separated by spaces
    tags: Column
    properties: Column  # additional properties in their wire format

    def __len__(self) -> int:
        return len(self.times_ms)
