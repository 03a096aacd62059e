"""The clock of POP consumption: a step of the wall clock does not change how long messages stay in flight."""

from collections.abc import Callable

from latermq.clock import Clock

STEP_MS = 1_000  # smaller steps are left until they add up to it
_READ_TOGETHER_MS = 100  # a process that is suspended between two reads sees a step that there was not


class PopClock:
    """The wall clock, which handles show to clients. It reports its steps before it returns a time after them.

    Only setting the clock changes the difference between it and the machine's uptime.
    """

    def __init__(self, clock: Clock, on_step: Callable[[int], None]) -> None:
        """`on_step` moves all times in flight by some milliseconds."""
        self._wall_ms = clock.now_ms
        self.boot_s = clock.boot_s
        self._on_step = on_step
        self._offset_ms = self._offset_now_ms()
        self.monotonic_s = clock.monotonic_s
        self.boot_id = clock.boot_id

    def now_ms(self) -> int:
        now_ms = self._wall_ms()
        if not -STEP_MS < now_ms - self.boot_s() * 1000 - self._offset_ms < STEP_MS:
            self._follow()
            return self._wall_ms()
        return now_ms

    def _follow(self) -> None:
        offset_ms = self._offset_now_ms()
        step_ms = offset_ms - self._offset_ms
        if not -STEP_MS < step_ms < STEP_MS:
            self._offset_ms = offset_ms
            self._on_step(step_ms)

    def _offset_now_ms(self) -> int:
        while True:
            before_ms = round(self.boot_s() * 1000)
            now_ms = self._wall_ms()
            if round(self.boot_s() * 1000) - before_ms < _READ_TOGETHER_MS:
                return now_ms - before_ms
