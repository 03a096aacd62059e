"""Time as an argument: the core asks a Clock, tests hand it one they turn by hand."""

import time
from pathlib import Path
from typing import Protocol

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
# Linux stops CLOCK_MONOTONIC while the machine sleeps; elsewhere the monotonic clock goes on.
_BOOT_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock(Protocol):
    """Where the core takes its time from."""

    def now_ms(self) -> int:
        """Wall time in epoch milliseconds; it may step."""
        ...

    def monotonic_s(self) -> float:
        """Seconds that only grow; for waiting, never for due times."""
        ...

    def boot_s(self) -> float:
        """Seconds since the machine started, those included in which it slept."""
        ...

    def boot_id(self) -> str:
        """Names this run of the machine: `boot_s` of one can be compared. Empty where nobody knows."""
        ...


class SystemClock:
    """The machine's own clocks."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    monotonic_s = staticmethod(time.monotonic)  # as it is: connections ask twice for each read

    def boot_s(self) -> float:
        return time.clock_gettime(_BOOT_CLOCK)

    def boot_id(self) -> str:
        try:
            return _BOOT_ID.read_text().strip()
        except OSError:  # no Linux, or a container without /proc
            return ""


class SimulatedClock:
    """A clock that moves only when it is told to."""

    def __init__(self, now_ms: int = 1_800_000_000_000, boot_id: str = "boot 1") -> None:
        self._now_ms = now_ms
        self._monotonic_s = self._boot_s = 0.0
        self._boot_id = boot_id

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic_s(self) -> float:
        return self._monotonic_s

    def boot_s(self) -> float:
        return self._boot_s

    def boot_id(self) -> str:
        return self._boot_id

    def advance(self, by_ms: int) -> None:
        """Let time pass on all clocks."""
        self._now_ms += by_ms
        self._monotonic_s += by_ms / 1000
        self._boot_s += by_ms / 1000

    def sleep(self, by_ms: int) -> None:
        """Let the machine sleep: the monotonic clock stands still."""
        self._now_ms += by_ms
        self._boot_s += by_ms / 1000

    def reboot(self, after_ms: int) -> None:
        """Let the machine be off for a while."""
        self._now_ms += after_ms
        self._boot_s = 0.0
        self._boot_id += " and another"

    def step(self, by_ms: int) -> None:
        """Step the wall clock alone, as an operator or NTP would."""
        self._now_ms += by_ms
