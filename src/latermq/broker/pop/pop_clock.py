"""The clock of POP consumption: a step of the wall clock does not change how long messages stay in flight."""

from collections.abc import Callable
from hashlib import blake2b

from latermq.clock import Clock

STEP_MS = 1_000  # smaller steps are left until they add up to it
_READ_TOGETHER_MS = 100  # a process that is suspended between two reads sees a step that there was not


class PopClock:
    """The wall clock, which handles show to clients. It reports its steps before it returns a time after them.

    Only setting the clock changes the difference between it and the machine's uptime.
    """

    def __init__(
        self, clock: Clock, on_step: Callable[[int, int, int], None], known_boot: int = 0, known_offset_ms: int = 0
    ) -> None:
        """`on_step` moves all times in flight: it receives the boot, the new difference, and the step.

        The known values are those of the times in flight. If the machine has not been booted since, a step while the
        broker was down is reported now. After a boot of the machine, the wall clock is taken as it is.
        """
        self._wall_ms = clock.now_ms
        self.boot_s = clock.boot_s
        self._on_step = on_step
        self.monotonic_s = clock.monotonic_s
        self.boot_id = clock.boot_id
        self._boot = _boot_hash(clock.boot_id())
        if self._boot and self._boot == known_boot:
            self._offset_ms = known_offset_ms
            self._follow()
        else:
            self._offset_ms = self._offset_now_ms()
            on_step(self._boot, self._offset_ms, 0)

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
            self._on_step(self._boot, offset_ms, step_ms)

    def _offset_now_ms(self) -> int:
        while True:
            before_ms = round(self.boot_s() * 1000)
            now_ms = self._wall_ms()
            if round(self.boot_s() * 1000) - before_ms < _READ_TOGETHER_MS:
                return now_ms - before_ms


def _boot_hash(boot_id: str) -> int:
    return int.from_bytes(blake2b(boot_id.encode(), digest_size=8).digest(), "big") if boot_id else 0
