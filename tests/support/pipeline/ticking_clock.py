"""A broker's clock that runs as fast as the real one and can be set forward, so that far timers fall due in seconds."""

import contextlib
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.fifo_clock import FifoClock

_TICK_S = 0.02
LEAP_MS = 30 * 60_000  # below clock.max_step, beyond which a broker does not believe its clock


class TickingClock:
    """Drives the clock of one broker process at a time. Lateness by this clock is lateness in real time."""

    def __init__(self, path: Path, now_ms: int) -> None:
        self._fifo = FifoClock(path)
        self._ahead_ms = now_ms - time.time_ns() // 1_000_000
        self._is_stopped = threading.Event()
        self._thread = threading.Thread(target=self._tick, name="ticking-clock", daemon=True)

    @property
    def settings(self) -> tuple[str, ...]:
        """The command-line options for a broker with this clock."""
        return self._fifo.settings

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000 + self._ahead_ms

    def leap_to(self, due_ms: int) -> None:
        """Set the clock forward, in steps that a broker believes."""
        while (left_ms := due_ms - self.now_ms()) > 0:
            self._ahead_ms += min(left_ms, LEAP_MS)
            time.sleep(10 * _TICK_S)  # the broker reads each step

    def _tick(self) -> None:
        while not self._is_stopped.wait(_TICK_S):
            # A broker that starts or stops does not read.
            with contextlib.suppress(AssertionError, OSError):
                if not self._fifo._unread_bytes():
                    self._fifo.advance_to(self.now_ms())

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._is_stopped.set()
        self._thread.join()
        self._fifo.__exit__(kind, error, at)
