"""How late deliveries were, and how long timers were asked to wait: counts at or below fixed bounds, for monitoring."""

from typing import NamedTuple

import numpy as np

from latermq.arrays import Ints

LATENESS_BOUNDS_MS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 5_000, 60_000)
# RocketMQ's own for rocketmq_delay_message_latency: 1 min, 10 min, 1 h, 12 h, 1 d, 3 d.
DELAY_BOUNDS_MS = (60_000, 600_000, 3_600_000, 43_200_000, 86_400_000, 259_200_000)
PUNCTUAL_MS = 1_000  # what is later than this is overdue: it yields to what falls due now


class Counts(NamedTuple):
    """A distribution as it stood at one moment."""

    bounds_ms: tuple[int, ...]
    upto: list[int]  # for each bound, how many lie at or below it
    total: int
    sum_ms: int


class Distribution:
    """Counts times in whole milliseconds. A batch costs one sort and one search, 2 µs for one and 40 for 20,000."""

    def __init__(self, bounds_ms: tuple[int, ...]) -> None:
        self._bounds_ms = bounds_ms
        # Times are whole: at or below a bound is below the next number. The first edge parts what is negative.
        self._edges = np.array((0, *(bound + 1 for bound in bounds_ms)), np.int64)
        self._below = np.zeros(len(self._edges), np.int64)
        self.total = 0
        self._sum_ms = 0

    def add(self, times_ms: Ints) -> None:
        """Count these."""
        self._below += np.searchsorted(np.sort(times_ms), self._edges)
        self.total += len(times_ms)
        self._sum_ms += int(times_ms.sum())

    @property
    def negative(self) -> int:
        """How many were below zero: of latenesses, those that were early."""
        return int(self._below[0])

    def counts(self) -> Counts:
        """What was counted so far."""
        return Counts(self._bounds_ms, self._below[1:].tolist(), self.total, self._sum_ms)
