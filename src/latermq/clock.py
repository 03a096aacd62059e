"""Clocks. The core gets its time from a Clock that is passed in; tests pass in a simulated one."""

import time
from pathlib import Path
from typing import Protocol

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
# Linux stops CLOCK_MONOTONIC while the machine sleeps. On other systems the monotonic clock continues.
_BOOT_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock(Protocol):
    """The source of time for the core."""

    def now_ms(self) -> int:
        """Wall time in epoch milliseconds; it may step."""
        ...

    def monotonic_s(self) -> float:
        """Monotonic seconds, for timeouts and pauses, never for due times."""
        ...

    def boot_s(self) -> float:
        """Seconds since the machine started, including the time that it slept."""
        ...

    def boot_id(self) -> str:
        """Identifies the current boot. Values of `boot_s` are comparable only within one boot. Empty if unknown."""
        ...


class SystemClock:
    """The clocks of the machine."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    monotonic_s = staticmethod(time.monotonic)  # without a wrapper: connections call it twice per read

    def boot_s(self) -> float:
        return time.clock_gettime(_BOOT_CLOCK)

    def boot_id(self) -> str:
        try:
            return _BOOT_ID.read_text().strip()
        except OSError:  # not Linux, or a container without /proc
            return ""


class SimulatedClock:
    """A clock that advances only on request."""

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
        """Advance all clocks."""
        self._now_ms += by_ms
        self._monotonic_s += by_ms / 1000
        self._boot_s += by_ms / 1000

    def sleep(self, by_ms: int) -> None:
        """Simulate a sleep of the machine: the monotonic clock does not advance."""
        self._now_ms += by_ms
        self._boot_s += by_ms / 1000

    def reboot(self, after_ms: int) -> None:
        """Simulate a reboot of the machine after some downtime."""
        self._now_ms += after_ms
        self._boot_s = 0.0
        self._boot_id += " and another"

    def step(self, by_ms: int) -> None:
        """Step only the wall clock, as an operator or NTP would."""
        self._now_ms += by_ms
