"""A set of offsets stored as ranges: delivered entries are nearly always all entries below some mark."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

import numpy as np

from latermq.arrays import Bools, Ints


def as_ranges(ordered: Ints) -> list[tuple[int, int]]:
    """Convert sorted offsets, at least one, to ranges [start, end)."""
    breaks = np.flatnonzero(np.diff(ordered) > 1)
    starts = ordered[np.append(0, breaks + 1)]
    ends = ordered[np.append(breaks, len(ordered) - 1)] + 1
    return list(zip(starts.tolist(), ends.tolist(), strict=True))


class RangeSet:
    """Disjoint ranges [start, end) in order. Adjacent ranges are joined."""

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        for start, end in ranges:
            self.add(start, end)

    def add(self, start: int, end: int) -> None:
        """Add all offsets in [start, end)."""
        if start >= end:
            return
        first = bisect_left(self._ends, start)
        last = bisect_right(self._starts, end)
        if first < last:
            start = min(start, self._starts[first])
            end = max(end, self._ends[last - 1])
        self._starts[first:last] = [start]
        self._ends[first:last] = [end]

    def add_ranges(self, other: "RangeSet") -> None:
        """Add all offsets of another set."""
        self.add_ordered(other.ranges())

    def add_all(self, offsets: Ints) -> None:
        """Add many offsets, in any order."""
        if len(offsets):
            self.add_ordered(as_ranges(np.sort(offsets)))

    def add_ordered(self, ranges: list[tuple[int, int]]) -> None:
        """Add sorted ranges: a few one by one, many at once, because they may be spread over the whole set."""
        if len(ranges) < 64 or not self._starts:
            for start, end in ranges:
                self.add(start, end)
            return
        starts = np.concatenate((np.array(self._starts), [start for start, _ in ranges]))
        ends = np.concatenate((np.array(self._ends), [end for _, end in ranges]))
        order = np.argsort(starts, kind="stable")
        starts, reached = starts[order], np.maximum.accumulate(ends[order])
        begins = np.append(True, starts[1:] > reached[:-1])
        self._starts = starts[begins].tolist()
        self._ends = reached[np.append(begins[1:], True)].tolist()

    def __contains__(self, offset: int) -> bool:
        index = bisect_right(self._starts, offset) - 1
        return index >= 0 and offset < self._ends[index]

    def __len__(self) -> int:
        """The number of ranges."""
        return len(self._starts)

    @property
    def end(self) -> int:
        """The first offset after all ranges."""
        return self._ends[-1] if self._ends else 0

    def end_of_run(self, start: int) -> int:
        """Return the first offset from `start` on that is not in the set."""
        index = bisect_right(self._starts, start) - 1
        return max(start, self._ends[index]) if index >= 0 else start

    def covers(self, offsets: Ints) -> Bools:
        """Return for each offset whether it is in the set."""
        if not self._starts:
            return np.zeros(len(offsets), bool)
        index = np.searchsorted(self._starts, offsets, side="right") - 1
        covered: Bools = (index >= 0) & (offsets < np.array(self._ends)[np.maximum(index, 0)])
        return covered

    def ranges(self) -> list[tuple[int, int]]:
        """Return the ranges, in order."""
        return list(zip(self._starts, self._ends, strict=True))

    def forget_below(self, offset: int) -> None:
        """Treat everything below `offset` as part of the set, because its entries are gone."""
        self.add(0, offset)
