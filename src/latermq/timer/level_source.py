"""A level's queue as a source of due entries: in the order of their due times, each entry once."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from latermq.message.names import SCHEDULE_TOPIC
from latermq.store.consume_queue import ConsumeQueue
from latermq.store.message_store import MessageStore
from latermq.store.ranges import RangeSet

Ints = npt.NDArray[np.int64]
CHUNK = 4096
_NONE: Ints = np.empty(0, np.int64)


class Batch(NamedTuple):
    """Entries of a source that are due next, in due order: a row of each array an entry."""

    offsets: Ints  # in the queue where they wait
    dues: Ints
    physical_offsets: Ints  # where their records lie in the log,
    sizes: Ints  # and how long they are
    is_roll: bool = False  # whether they are written into the timer topic again
    raw: bytes | None = None  # their records end to end, where they do not lie in the log


class LevelSource:
    """Entries of a level's queue from `start` on, up to `stop` or without end.

    All entries of a level wait equally long, so their queue is in due order by itself and is read a chunk at a time. A
    table that was changed or a clock that stepped back breaks that order; then everything that waits is loaded and
    sorted, until the queue has run empty.
    """

    def __init__(self, store: MessageStore, level: int, start: int, stop: int | None = None) -> None:
        self._store = store
        self.level = level
        self._next = start
        self._stop = stop
        self._dues = self._offsets = _NONE
        self._at = 0
        self._last_due_ms = 0
        self._is_ordered = True

    def note(self, due_ms: int) -> None:
        """An entry was appended to the queue."""
        if due_ms < self._last_due_ms:
            self._is_ordered = False
        else:
            self._last_due_ms = due_ms

    def check_order(self) -> None:
        """Look once through all that waits, after a start."""
        queue = self._queue()
        offset = self._next
        while queue is not None and offset < self._end(queue):
            dues = queue.array(offset, min(1 << 16, self._end(queue) - offset))["tags"].astype(np.int64)
            if dues[0] < self._last_due_ms or (np.diff(dues) < 0).any():
                self._is_ordered = False
            self._last_due_ms = max(self._last_due_ms, int(dues.max()))
            offset += len(dues)

    @property
    def is_ordered(self) -> bool:
        return self._is_ordered

    def head_due_ms(self) -> int | None:
        """When the next entry is due, None where none waits."""
        self._load()
        return int(self._dues[self._at]) if self._at < len(self._dues) else None

    def take(self, until_ms: int, max_count: int, max_bytes: int) -> Batch:
        """The next entries due at or before `until_ms`: at least one, if there is any, whatever its record's size."""
        self._load()
        end = int(np.searchsorted(self._dues, until_ms, side="right"))
        end = max(self._at, min(end, self._at + max_count))
        offsets = self._offsets[self._at : end]
        physical, sizes = self._records(offsets)
        fitting = int(np.searchsorted(np.cumsum(sizes), max_bytes, side="right"))
        count = min(len(offsets), max(1, fitting))
        batch = Batch(offsets[:count], self._dues[self._at : self._at + count], physical[:count], sizes[:count])
        self._at += count
        return batch

    def _records(self, offsets: Ints) -> tuple[Ints, Ints]:
        """Physical offsets and sizes of the records of these entries."""
        queue = self._queue()
        if queue is None or not len(offsets):
            return _NONE, _NONE
        found = []
        # Nearly always one run: only what came out of order, or was delivered out of order, breaks it.
        for run in np.split(offsets, np.flatnonzero(np.diff(offsets) != 1) + 1):
            start, end = int(run[0]), int(run[-1]) + 1
            while start < end:
                entries = queue.array(start, end - start)
                assert len(entries), f"level {self.level} has no entry {start}"
                found.append(entries)
                start += len(entries)
        entries = np.concatenate(found)
        return entries["offset"].astype(np.int64), entries["size"].astype(np.int64)

    def _queue(self) -> ConsumeQueue | None:
        return self._store.find_queue(SCHEDULE_TOPIC, self.level - 1)

    def _end(self, queue: ConsumeQueue) -> int:
        return queue.next_offset if self._stop is None else min(self._stop, queue.next_offset)

    def _load(self) -> None:
        """Read on where the queue is in order and all read entries are taken, or where it is not in order."""
        drained = self._at >= len(self._dues)
        if not drained and self._is_ordered:
            return
        queue = self._queue()
        if queue is None:
            return
        self._next = max(self._next, queue.min_offset)
        end = self._end(queue)
        if drained and self._next >= end:
            # Nothing waits, so whatever comes next is in order again.
            self._is_ordered, self._last_due_ms = True, 0
            return
        while self._next < end and (not self._is_ordered or self._at >= len(self._dues)):
            count = min(end - self._next, CHUNK if self._is_ordered else 1 << 16)
            self._add(queue, count)

    def _add(self, queue: ConsumeQueue, count: int) -> None:
        dues = queue.array(self._next, count)["tags"].astype(np.int64)
        offsets = np.arange(self._next, self._next + len(dues), dtype=np.int64)
        self._next += len(dues)
        fresh = self._store.delivered.get(self.level, RangeSet()).missing(offsets)
        self._dues = np.concatenate((self._dues[self._at :], dues[fresh]))
        self._offsets = np.concatenate((self._offsets[self._at :], offsets[fresh]))
        self._at = 0
        if not self._is_ordered:
            order = np.argsort(self._dues, kind="stable")
            self._dues, self._offsets = self._dues[order], self._offsets[order]
