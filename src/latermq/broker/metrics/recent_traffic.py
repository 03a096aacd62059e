"""How many messages and timers came in and went out in each minute of the last hour."""

from collections import deque
from typing import NamedTuple

from latermq.broker.metrics.traffic import Traffic

MINUTES = 60
_MINUTE_MS = 60_000


class TrafficMinute(NamedTuple):
    """The counts of one minute: messages stored and read, timers scheduled and delivered."""

    start_ms: int
    messages_in: int
    messages_out: int
    timers_in: int
    timers_out: int


class RecentTraffic:
    """Compares the counters at the end of each minute with those at its begin."""

    def __init__(self, messages: Traffic, timers: Traffic) -> None:
        self._messages = messages
        self._timers = timers
        self._before = self._counts()
        self._start_ms: int | None = None
        self._minutes: deque[TrafficMinute] = deque()

    def sample(self, now_ms: int) -> None:
        """End the minute if it is over. Call it about once per second."""
        minute_ms = now_ms // _MINUTE_MS * _MINUTE_MS
        if self._start_ms is None:  # what recovery has counted came in before the start
            self._start_ms, self._before = minute_ms, self._counts()
        if minute_ms != self._start_ms:
            self._minutes.append(self._current())
            self._start_ms, self._before = minute_ms, self._counts()
        # A clock that was set back leaves minutes of the future, which end like all others.
        while self._minutes and (len(self._minutes) >= MINUTES or self._is_old(self._minutes[0], minute_ms)):
            self._minutes.popleft()

    def minutes(self) -> list[TrafficMinute]:
        """Return the minutes of the last hour, in order; the last one is not over."""
        return [*self._minutes, self._current()] if self._start_ms is not None else []

    def _current(self) -> TrafficMinute:
        # A broker that recovers may count what it had counted before.
        counts = (max(0, now - before) for now, before in zip(self._counts(), self._before, strict=True))
        return TrafficMinute(self._start_ms or 0, *counts)

    def _counts(self) -> tuple[int, int, int, int]:
        messages, timers = self._messages, self._timers
        return messages.messages_in, messages.messages_out, timers.messages_in, timers.messages_out

    @staticmethod
    def _is_old(minute: TrafficMinute, now_ms: int) -> bool:
        return not 0 <= now_ms - minute.start_ms < MINUTES * _MINUTE_MS
