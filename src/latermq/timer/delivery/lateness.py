"""Distributions of the lateness of deliveries and of the delay of timers: cumulative counts at fixed bounds."""

from typing import NamedTuple

import numpy as np

from latermq.arrays import Ints

LATENESS_BOUNDS_MS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 5_000, 60_000)
# RocketMQ's own bounds for rocketmq_delay_message_latency: 1 min, 10 min, 1 h, 12 h, 1 d, 3 d.
DELAY_BOUNDS_MS = (60_000, 600_000, 3_600_000, 43_200_000, 86_400_000, 259_200_000)
PUNCTUAL_MS = 1_000  # anything later is overdue and yields to records that fall due now


class Counts(NamedTuple):
    """A snapshot of a distribution."""

    bounds_ms: tuple[int, ...]
    upto: list[int]  # for each bound, how many values are at or below it
    total: int
    sum_ms: int


class Distribution:
    """Counts times in whole milliseconds.

    A batch costs one sort and one search: 2 µs for one time, 40 µs for 20,000.
    """

    def __init__(self, bounds_ms: tuple[int, ...]) -> None:
        self._bounds_ms = bounds_ms
        # Times are integers, so "at or below a bound" is "below the next integer". The first edge separates negative
        # times.
        self._edges = np.array((0, *(bound + 1 for bound in bounds_ms)), np.int64)
        self._below = np.zeros(len(self._edges), np.int64)
        self.total = 0
        self._sum_ms = 0
        self._highest_ms = 0

    def add(self, times_ms: Ints) -> None:
        """Count these times."""
        if not len(times_ms):
            return
        ordered = np.sort(times_ms)
        self._below += np.searchsorted(ordered, self._edges)
        self._highest_ms = max(self._highest_ms, int(ordered[-1]))
        self.total += len(times_ms)
        self._sum_ms += int(times_ms.sum())

    @property
    def negative(self) -> int:
        """Number of negative times; for lateness, the early deliveries."""
        return int(self._below[0])

    def take_highest_ms(self) -> int:
        """Return the highest time since the last call; 0 if there was none."""
        highest_ms, self._highest_ms = self._highest_ms, 0
        return highest_ms

    def counts(self) -> Counts:
        """Return the counts so far."""
        return Counts(self._bounds_ms, self._below[1:].tolist(), self.total, self._sum_ms)
