"""Which timers are delivered, beyond the marks of the checkpoint: arrays, because they go in any order."""

from collections.abc import Sequence

import numpy as np

from latermq.store.ranges import RangeSet
from latermq.timer.engine import Bools, Ints


def not_in(entries: Ints, ordered: Ints) -> Bools:
    """For each of these entries whether it is not among the ordered ones, of which there is at least one."""
    at = np.minimum(np.searchsorted(ordered, entries), len(ordered) - 1)
    return np.not_equal(ordered[at], entries)


class Done:
    """Entries of the timer topic that are delivered or rolled, each with the time at which it woke.

    What lies below both marks (put into the engine, and waking before T) is known to be done without being kept here.
    """

    def __init__(self) -> None:
        self._entries: list[Ints] = []
        self._wakes: list[Ints] = []
        self._sorted: Ints | None = None
        self.rows = 0

    def add(self, entries: Ints, wakes: Ints) -> None:
        """These are done."""
        self._entries.append(entries)
        self._wakes.append(wakes)
        self._sorted = None
        self.rows += len(entries)

    def prune(self, put_upto: int, wake_ms: int) -> None:
        """Drop those that the marks tell of."""
        if not self.rows:
            return
        entries, wakes = np.concatenate(self._entries), np.concatenate(self._wakes)
        kept = (entries >= put_upto) | (wakes >= wake_ms)
        self._entries, self._wakes, self._sorted = [entries[kept]], [wakes[kept]], None
        self.rows = int(np.count_nonzero(kept))

    def missing(self, entries: Ints) -> Bools:
        """For each of these entries whether it is not done."""
        if not self.rows:
            return np.ones(len(entries), bool)
        if self._sorted is None:
            self._sorted = np.sort(np.concatenate(self._entries))
        return not_in(entries, self._sorted)

    def ranges(self) -> Sequence[tuple[int, int]]:
        """The entries as ranges, for the checkpoint."""
        ranges = RangeSet()
        if self.rows:
            ranges.add_all(np.concatenate(self._entries))
        return ranges.ranges()
