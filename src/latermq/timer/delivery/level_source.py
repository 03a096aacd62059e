"""A level's queue as a source: its entries in due order, each once."""

import heapq
import itertools
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from latermq.arrays import Ints
from latermq.message.names import SCHEDULE_TOPIC
from latermq.store.message_store import MessageStore
from latermq.store.queues.consume_queue import ENTRY_DTYPE, ConsumeQueue
from latermq.store.ranges import RangeSet
from latermq.timer.delivery.level_runs import Run, join_small

MANY_RUNS = 1_000  # above this number small runs are joined
_NONE: Ints = np.empty(0, np.int64)


class Batch(NamedTuple):
    """The next due entries of a source, in due order. Each array has one row per entry."""

    offsets: Ints  # in the queue where they wait
    dues: Ints
    physical_offsets: Ints  # where their records start in the log
    sizes: Ints  # sizes of these records
    is_renewal: bool = False  # whether they are written into the timer topic again
    raw: bytes | None = None  # their records end to end, if they are not in the log


class LevelSource:
    """Entries of a level's queue, from some of its runs.

    All entries of a level wait equally long, so their queue is naturally in due order. A changed level table or a clock
    set back breaks that order. A new run begins there, and the runs are merged by their next entries. So a clock step
    costs as much as was stored since, not as much as is pending. A run without entries due soon costs one small object.
    If the clock steps back all the time, many small runs are joined into one, which is sorted when it is due.
    """

    def __init__(self, store: MessageStore, level: int, runs: Iterable[Run], last_due_ms: int = 0) -> None:
        """The last run may be a growing one. `last_due_ms` is the due time of the queue's last entry."""
        self._store = store
        self.level = level
        self._runs: list[Run] = []
        self._heap: list[tuple[int, int, Run]] = []  # runs that are not empty, by the due time of their next entry
        self._numbers = itertools.count()
        self._join_above = MANY_RUNS
        self._last_due_ms = last_due_ms
        self._is_growing_queued = False
        for run in runs:
            self._add(run)

    def _add(self, run: Run) -> None:
        self._runs.append(run)
        self._push(run)
        if len(self._runs) > self._join_above:
            before = {id(one) for one in self._runs}
            self._runs = join_small(self._runs)
            for one in self._runs:
                if id(one) not in before:
                    self._push(one)
            self._heap = [entry for entry in self._heap if not entry[2].is_gone]
            heapq.heapify(self._heap)
            self._join_above = max(MANY_RUNS, 2 * len(self._runs))

    def _push(self, run: Run) -> None:
        heapq.heappush(self._heap, (run.head_due_ms, next(self._numbers), run))
        if run.end is None:
            self._is_growing_queued = True

    def note(self, due_ms: int, offset: int) -> None:
        """Note that an entry was appended to the queue."""
        growing = self._runs[-1]
        if due_ms < self._last_due_ms and (growing.next < offset or not growing.is_drained):
            growing.end = offset
            self._add(Run(offset, None, due_ms))
        elif not self._is_growing_queued:
            growing.first_due_ms = due_ms
            self._push(growing)
        self._last_due_ms = due_ms

    @property
    def run_count(self) -> int:
        return len(self._runs)

    def head_due_ms(self) -> int | None:
        """Return when the next entry is due; None if none waits."""
        queue = self._queue()
        if queue is None:
            return None
        while self._heap:
            due_ms, _, run = self._heap[0]
            if not run.is_drained:
                return due_ms
            heapq.heappop(self._heap)
            self._load(queue, run)
        return None

    def _load(self, queue: ConsumeQueue, run: Run) -> None:
        """Load more of a drained run; push it to the heap again if it is not empty."""
        run.load(queue, self._store.waiting.delivered.get(self.level, RangeSet()))
        if not run.is_drained:
            self._push(run)
        elif run.end is None:
            self._is_growing_queued = False
        else:
            run.is_gone = True

    def pop(self, until_ms: int, max_count: int, max_bytes: int) -> Batch:
        """Return the next entries due at or before `until_ms`: at least one if any, whatever its record's size."""
        queue = self._queue()
        runs: list[Run] = []
        while (due_ms := self.head_due_ms()) is not None and due_ms <= until_ms:
            runs.append(heapq.heappop(self._heap)[2])
        if queue is None or not runs:
            return Batch(_NONE, _NONE, _NONE, _NONE)
        for run in runs:
            known_ms = run.known_until_ms(queue) if len(runs) > 1 else None
            until_ms = until_ms if known_ms is None else min(until_ms, known_ms)
        ends = [int(np.searchsorted(run.dues, until_ms, side="right")) for run in runs]
        ends = [max(run.at, min(end, run.at + max_count)) for run, end in zip(runs, ends, strict=True)]
        dues = np.concatenate([run.dues[run.at : end] for run, end in zip(runs, ends, strict=True)])
        offsets = np.concatenate([run.offsets[run.at : end] for run, end in zip(runs, ends, strict=True)])
        whose = np.repeat(np.arange(len(runs)), [end - run.at for run, end in zip(runs, ends, strict=True)])
        if len(runs) > 1:
            order = np.lexsort((offsets, dues))[:max_count]
            dues, offsets, whose = dues[order], offsets[order], whose[order]
        physical, sizes = self._records(queue, offsets)
        fitting = int(np.searchsorted(np.cumsum(sizes), max_bytes, side="right"))
        count = min(len(offsets), max(1, fitting))
        for run, popped in zip(runs, np.bincount(whose[:count], minlength=len(runs)).tolist(), strict=True):
            run.at += popped
            if run.is_drained:
                self._load(queue, run)
            else:
                self._push(run)
        return Batch(offsets[:count], dues[:count], physical[:count], sizes[:count])

    def _records(self, queue: ConsumeQueue, offsets: Ints) -> tuple[Ints, Ints]:
        """Return the physical offsets and sizes of the records of these entries."""
        order = np.argsort(offsets, kind="stable")
        entries = np.empty(len(offsets), ENTRY_DTYPE)
        entries[order] = queue.gather(offsets[order])
        return entries["offset"].astype(np.int64), entries["size"].astype(np.int64)

    def _queue(self) -> ConsumeQueue | None:
        return self._store.queues.find(SCHEDULE_TOPIC, self.level - 1)
