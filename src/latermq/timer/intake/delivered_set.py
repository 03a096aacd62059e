"""The set of timers delivered beyond the marks of the checkpoint, as arrays, because deliveries come in any order."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from latermq.arrays import Bools, Ints
from latermq.store.ranges import as_ranges
from latermq.timer.sorted_entries import contains


class _Run(NamedTuple):
    entries: Ints  # sorted
    wakes: Ints


class Delivered:
    """Entries of the timer topic that are delivered or renewed, each with its wake time.

    Entries covered by the marks are dropped. The rest is kept in sorted runs. A run is merged with the one before it if
    that is not much larger, so adding and searching take logarithmic time.
    """

    def __init__(self) -> None:
        self._added: list[_Run] = []  # unordered, added since the last search
        self._runs: list[_Run] = []
        self.rows = 0

    def add(self, entries: Ints, wakes: Ints) -> None:
        """Add delivered entries."""
        if len(entries):
            self._added.append(_Run(entries, wakes))
            self.rows += len(entries)

    def _settle(self) -> None:
        if self._added:
            self._runs.append(self._merge(self._added))
            self._added = []
        while len(self._runs) > 1 and len(self._runs[-2].entries) <= 2 * len(self._runs[-1].entries):
            self._runs[-2:] = [self._merge(self._runs[-2:])]

    @staticmethod
    def _merge(runs: Sequence[_Run]) -> _Run:
        entries = np.concatenate([run.entries for run in runs])
        order = np.argsort(entries, kind="stable")  # a stable sort merges sorted runs
        return _Run(entries[order], np.concatenate([run.wakes for run in runs])[order])

    def drop(self, is_covered: Callable[[Ints, Ints], Bools]) -> None:
        """Drop entries that the marks cover; `is_covered` decides from entries and wake times."""
        kept = []
        for run in (*self._runs, *self._added):
            stays = ~is_covered(run.entries, run.wakes)
            if stays.any():
                kept.append(_Run(run.entries[stays], run.wakes[stays]))
        self._runs, self._added = [], kept
        self.rows = sum(len(run.entries) for run in kept)
        self._settle()

    def contains(self, entries: Ints) -> Bools:
        """Which of these entries are delivered."""
        found = np.zeros(len(entries), bool)
        if not self.rows or not len(entries):
            return found
        self._settle()
        first, last = int(entries.min()), int(entries.max())
        for run in self._runs:
            if run.entries[0] <= last and run.entries[-1] >= first:
                found |= contains(run.entries, entries)
        return found

    def ranges(self) -> list[tuple[int, int]]:
        """Return the entries as ranges, for the checkpoint."""
        if not self.rows:
            return []
        self._settle()
        return as_ranges(self._merge(self._runs).entries)
