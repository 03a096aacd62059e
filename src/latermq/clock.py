"""Time as an argument: the core asks a Clock, tests hand it one they turn by hand."""

import time
from typing import Protocol


class Clock(Protocol):
    """Where the core takes its time from."""

    def now_ms(self) -> int:
        """Wall time in epoch milliseconds; it may step."""
        ...

    def monotonic_s(self) -> float:
        """Seconds that only grow; for waiting, never for due times."""
        ...


class SystemClock:
    """The machine's own clocks."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        return time.monotonic()


class SimulatedClock:
    """A clock that moves only when it is told to."""

    def __init__(self, now_ms: int = 1_800_000_000_000) -> None:
        self._now_ms = now_ms
        self._monotonic_s = 0.0

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic_s(self) -> float:
        return self._monotonic_s

    def advance(self, by_ms: int) -> None:
        """Let time pass on both clocks."""
        self._now_ms += by_ms
        self._monotonic_s += by_ms / 1000

    def step(self, by_ms: int) -> None:
        """Step the wall clock alone, as an operator or NTP would."""
        self._now_ms += by_ms
