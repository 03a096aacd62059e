"""Ownership of timers: the broker owns near timers, and Spark owns far timers. Both sides use this module.

A cut in the timer topic sets a frontier for the entries after it, up to the next cut. Timers due before the frontier
are near, all others are far. Only the broker reads cuts. The pipeline gets the frontiers from the broker's state.
"""

from collections.abc import Iterable

import numpy as np

from latermq.arrays import Bools, Ints, Ints8
from latermq.errors import CorruptStore
from latermq.handover.cut import FOREVER_MS, Cut
from latermq.message.timer_code import schedules
from latermq.model.pipeline_state import CutState

Row = tuple[int, int]  # an entry, and the frontier that applies from it on


def frontier_row(cut: Cut | CutState) -> Row:
    """The frontier of a cut. It applies from the entry after the cut's own on."""
    return cut.entry + 1, cut.frontier_ms


def _rows_from(first_entry: int, cuts: Iterable[Cut], default_ms: int) -> list[Row]:
    """The frontiers from an entry on. The first cut contains the one before it; without a cut, it is `default_ms`."""
    cuts = list(cuts)
    first_ms = cuts[0].last_frontier_ms if cuts else default_ms
    return [(first_entry, first_ms), *map(frontier_row, cuts)]


class Ownership:
    """The frontiers that apply from some entry on, in the order of the timer topic."""

    def __init__(self, rows: Iterable[Row] = ((0, FOREVER_MS),)) -> None:
        """`rows` must be in order and not empty. The owner of entries before the first row is unknown."""
        self._rows: list[Row] = []
        for start, frontier_ms in rows:
            self._append(start, frontier_ms)
        assert self._rows, "at least one frontier is required"
        self._index()

    @classmethod
    def from_cuts(cls, first_entry: int, cuts: Iterable[Cut]) -> "Ownership":
        """Build from all cuts from an entry on."""
        return cls(_rows_from(first_entry, cuts, FOREVER_MS))

    def _append(self, start: int, frontier_ms: int) -> None:
        """Append a frontier. Frontiers that apply to no timer are left out, so idle periods take no memory."""
        if self._rows:
            last_start, last_ms = self._rows[-1]
            if last_ms == frontier_ms:
                return
            if start == last_start or (start - 1 == last_start and len(self._rows) > 1):
                self._rows.pop()  # only the cut itself is in between
        self._rows.append((start, frontier_ms))

    def _index(self) -> None:
        self._starts, self._frontiers = (np.array(column, np.int64) for column in zip(*self._rows, strict=True))

    @property
    def known_from(self) -> int:
        """The first entry whose owner is known."""
        return self._rows[0][0]

    @property
    def frontier_ms(self) -> int:
        """U: the broker owns new timers that are due before it."""
        return self._rows[-1][1]

    @property
    def rows(self) -> list[Row]:
        return list(self._rows)

    def is_near(self, entries: Ints, dues: Ints) -> Bools:
        """Which of these timers the broker owns."""
        at = np.searchsorted(self._starts, entries, side="right") - 1
        if (at < 0).any():
            raise CorruptStore(
                f"the owner of entry {int(entries.min())} of the timer topic is unknown: frontiers are known from "
                f"entry {self.known_from}",
                hint="If the broker is older than the pipeline, upgrade the broker first",
            )
        frontiers = self._frontiers[at]
        near: Bools = (dues < frontiers) | (frontiers >= FOREVER_MS)
        return near

    def far_timers(self, kinds: Ints | Ints8, entries: Ints, dues: Ints) -> Bools:
        """Which of these entries of the timer topic are timers or moves that Spark owns."""
        far = schedules(kinds)
        far[far] = ~self.is_near(entries[far], dues[far])
        return far

    def add(self, cut: Cut) -> None:
        """Add a cut that follows all known ones."""
        start, frontier_ms = frontier_row(cut)
        assert start >= self._rows[-1][0], f"the log orders the cuts (invariant 4): {cut} after {self._rows[-1]}"
        self._append(start, frontier_ms)
        self._index()

    def learn_before(self, first_entry: int, cuts: Iterable[Cut]) -> None:
        """Extend the known range down to `first_entry`. `cuts` are all cuts from there to the range known so far."""
        assert first_entry <= self.known_from, f"the range grows down from {self.known_from}, not to {first_entry}"
        earlier = _rows_from(first_entry, cuts, self._rows[0][1])
        self._rows = Ownership([*earlier, *self._rows])._rows
        self._index()

    def forget_below(self, entry: int) -> None:
        """Drop the frontiers that only apply to entries below this one."""
        first = max(0, int(np.searchsorted(self._starts, entry, side="right")) - 1)
        start, frontier_ms = self._rows[first]
        if first or start < entry:
            self._rows = [(max(start, entry), frontier_ms), *self._rows[first + 1 :]]
            self._index()
