"""Runs of a level's queue: stretches in due order, each read independently, one chunk at a time."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from latermq.arrays import Ints
from latermq.store.queues.consume_queue import ConsumeQueue
from latermq.store.ranges import RangeSet

CHUNK = 4096
SCAN = 1 << 16  # entries scanned at once, and the maximum size of a joined, unordered run: 1 MiB when loaded
_NONE: Ints = np.empty(0, np.int64)


@dataclass(slots=True, eq=False)
class Run:
    """Entries [next, end) of a queue that are not read yet, and earlier entries that are read but not popped.

    `end` is None for the newest run, which grows. No entry is due before `first_due_ms`.
    """

    next: int
    end: int | None
    first_due_ms: int
    is_ordered: bool = True
    is_touched: bool = False  # true after the first read
    is_gone: bool = False  # joined with others, or empty
    dues: Ints = field(default_factory=lambda: _NONE)
    offsets: Ints = field(default_factory=lambda: _NONE)
    at: int = 0  # number of loaded entries that are popped

    @property
    def is_drained(self) -> bool:
        """Whether all loaded entries are popped."""
        return self.at >= len(self.dues)

    @property
    def head_due_ms(self) -> int:
        """When its next entry is due: exact if entries are loaded, otherwise a lower bound."""
        return self.first_due_ms if self.is_drained else int(self.dues[self.at])

    def upto(self, queue: ConsumeQueue) -> int:
        """Return the end of the run, or for a growing run its current end."""
        return queue.next_offset if self.end is None else min(self.end, queue.next_offset)

    def load(self, queue: ConsumeQueue, delivered: RangeSet) -> None:
        """Read on until an undelivered entry is loaded, or nothing is left to read."""
        self.is_touched = True
        self.next = max(self.next, queue.min_offset)
        end = self.upto(queue)
        pieces: list[tuple[Ints, Ints]] = []
        # An unordered run must be read completely to find its first entry.
        while self.next < end and (not pieces or not self.is_ordered):
            dues = queue.array(self.next, min(end - self.next, CHUNK))["tags"].astype(np.int64)
            offsets = np.arange(self.next, self.next + len(dues), dtype=np.int64)
            self.next += len(dues)
            fresh = ~delivered.covers(offsets)
            if fresh.any():
                pieces.append((dues[fresh], offsets[fresh]))
        self.dues = np.concatenate([dues for dues, _ in pieces]) if pieces else _NONE
        self.offsets = np.concatenate([offsets for _, offsets in pieces]) if pieces else _NONE
        self.at = 0
        if not self.is_ordered:
            order = np.argsort(self.dues, kind="stable")
            self.dues, self.offsets = self.dues[order], self.offsets[order]

    def known_until_ms(self, queue: ConsumeQueue) -> int | None:
        """Return a lower bound of the due times of unloaded entries; None if everything is loaded."""
        return int(self.dues[-1]) if self.next < self.upto(queue) else None


def find_runs(queue: ConsumeQueue, start: int) -> Iterator[Run]:
    """Yield the runs from `start` to the queue's end, the last one open. Reads every entry once."""
    offset = run_start = start
    first_ms = last_ms = 0
    while offset < queue.next_offset:
        dues = queue.array(offset, SCAN)["tags"].astype(np.int64)
        if offset == start:
            first_ms = last_ms = int(dues[0])
        for row in np.flatnonzero(np.diff(dues, prepend=last_ms) < 0).tolist():
            yield Run(run_start, offset + row, first_ms)
            run_start, first_ms = offset + row, int(dues[row])
        last_ms = int(dues[-1])
        offset += len(dues)
    yield Run(run_start, None, first_ms)


def split_run(run: Run, queue: ConsumeQueue, due_ms: int) -> tuple[Run | None, Run | None]:
    """Split an untouched ordered run into the part due at or before this time and the part due later."""
    low, high = run.next, run.upto(queue)
    while low < high:
        middle = (low + high) // 2
        entry = queue.entry(middle)
        assert entry is not None, f"{queue.topic} has no entry {middle}"
        if entry[2] > due_ms:
            high = middle
        else:
            low = middle + 1
    if low == run.next:
        return None, run
    early = Run(run.next, low, run.first_due_ms)
    if run.end is not None and low >= run.end:
        return early, None
    return early, Run(low, run.end, max(due_ms, run.first_due_ms))


def join_small(runs: list[Run]) -> list[Run]:
    """Return the same entries in fewer runs: untouched neighbours are joined into one unordered run."""
    joined: list[Run] = []
    for run in runs:
        if run.is_gone:
            continue
        last = joined[-1] if joined else None
        both = _join(last, run) if last is not None else None
        if last is None or both is None:
            joined.append(run)
        else:
            last.is_gone = run.is_gone = True
            joined[-1] = both
    return joined


def _join(last: Run, run: Run) -> Run | None:
    if last.is_touched or run.is_touched or last.end != run.next or run.end is None or run.end - last.next > SCAN:
        return None
    return Run(last.next, run.end, min(last.first_due_ms, run.first_due_ms), is_ordered=False)
