"""Which timers are delivered, beyond the marks of the checkpoint: arrays, because they go in any order."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from latermq.arrays import Bools, Ints
from latermq.store.ranges import as_ranges
from latermq.timer.sorted_entries import contains


class _Run(NamedTuple):
    entries: Ints  # in order
    wakes: Ints


class Delivered:
    """Entries of the timer topic that are delivered or renewed, each with the time at which it woke.

    What the marks tell is dropped here. The rest lies in sorted runs, of which a newer one is merged with the one
    before when that is not much larger: adding costs a logarithm of what is kept, and so does looking.
    """

    def __init__(self) -> None:
        self._added: list[_Run] = []  # in any order, since the last look
        self._runs: list[_Run] = []
        self.rows = 0

    def add(self, entries: Ints, wakes: Ints) -> None:
        """These are delivered."""
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
        order = np.argsort(entries, kind="stable")  # which merges what is sorted in runs
        return _Run(entries[order], np.concatenate([run.wakes for run in runs])[order])

    def drop(self, is_told: Callable[[Ints, Ints], Bools]) -> None:
        """Drop those of which the marks tell, given their entries and wakes."""
        kept = []
        for run in (*self._runs, *self._added):
            stays = ~is_told(run.entries, run.wakes)
            if stays.any():
                kept.append(_Run(run.entries[stays], run.wakes[stays]))
        self._runs, self._added = [], kept
        self.rows = sum(len(run.entries) for run in kept)
        self._settle()

    def contains(self, entries: Ints) -> Bools:
        """For each of these entries whether it is delivered."""
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
        """The entries as ranges, for the checkpoint."""
        if not self.rows:
            return []
        self._settle()
        return as_ranges(self._merge(self._runs).entries)
