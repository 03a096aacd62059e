"""How late timers and levels were delivered in each minute of the last hour."""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from latermq.timer.delivery.lateness import Distribution

MINUTES = 60
_MINUTE_MS = 60_000


class LateMinute(NamedTuple):
    """The deliveries of one minute: how many were at most so late, by bound and in all, and the latest."""

    start_ms: int
    upto: list[int]
    max_ms: int


class RecentLateness:
    """Compares the distributions at the end of each minute with those at its begin."""

    def __init__(self, distributions: Sequence[Distribution]) -> None:
        """`distributions` have the same bounds."""
        self._distributions = distributions
        self._before = self._upto()
        self._start_ms: int | None = None
        self._max_ms = 0
        self._minutes: deque[LateMinute] = deque()

    def sample(self, now_ms: int) -> None:
        """End the minute if it is over. Call it about once per second."""
        self._max_ms = max(self._max_ms, *(one.take_highest_ms() for one in self._distributions))
        minute_ms = now_ms // _MINUTE_MS * _MINUTE_MS
        if self._start_ms is None:
            self._start_ms = minute_ms
        if minute_ms != self._start_ms:
            current = self._current()
            if current.upto[-1]:
                self._minutes.append(current)
            self._start_ms, self._before, self._max_ms = minute_ms, self._upto(), 0
        # A clock that was set back leaves minutes of the future, which end like all others.
        while self._minutes and (len(self._minutes) >= MINUTES or self._is_old(self._minutes[0], minute_ms)):
            self._minutes.popleft()

    def minutes(self) -> list[LateMinute]:
        """Return the minutes of the last hour that had deliveries, in order; the last one may not be over."""
        current = self._current()
        return [*self._minutes, current] if current.upto[-1] else [*self._minutes]

    def _current(self) -> LateMinute:
        upto = [now - before for now, before in zip(self._upto(), self._before, strict=True)]
        return LateMinute(self._start_ms or 0, upto, self._max_ms)

    def _upto(self) -> list[int]:
        found = [one.counts() for one in self._distributions]
        return [sum(counts) for counts in zip(*([*one.upto, one.total] for one in found), strict=True)]

    @staticmethod
    def _is_old(minute: LateMinute, now_ms: int) -> bool:
        return not 0 <= now_ms - minute.start_ms < MINUTES * _MINUTE_MS
