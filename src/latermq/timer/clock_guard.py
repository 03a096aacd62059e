"""Watches the wall clock: a step back delivers nothing early, a great leap forward is not believed at once."""

from latermq.clock import Clock

HOLD_S = 60.0


class ClockGuard:
    """Says what time it is for deliveries, or that it is too early to say."""

    def __init__(self, clock: Clock, max_step_ms: int) -> None:
        self._clock = clock
        self._max_step_ms = max_step_ms
        self._last_ms = clock.now_ms()
        self._last_s = clock.monotonic_s()
        self._held_until_s: float | None = None
        self.alarm = ""

    def now_ms(self) -> int | None:
        """The time to deliver by; None while a leap is being held."""
        now_ms, now_s = self._clock.now_ms(), self._clock.monotonic_s()
        expected_ms = self._last_ms + (now_s - self._last_s) * 1000
        leap_ms = now_ms - expected_ms
        self._last_ms, self._last_s = now_ms, now_s
        if self._held_until_s is None:
            if leap_ms <= self._max_step_ms:
                return now_ms
            self._held_until_s = now_s + HOLD_S
            self.alarm = (
                f"the clock leapt forward by {leap_ms / 1000:.0f} s; deliveries are held for {HOLD_S:.0f} s "
                "in case it is set right again"
            )
            self._honest_ms = expected_ms
            self._honest_s = now_s
            return None
        honest_ms = self._honest_ms + (now_s - self._honest_s) * 1000
        if now_ms - honest_ms <= self._max_step_ms or now_s >= self._held_until_s:
            # Set right again, or it stayed: either way this is the time now.
            self._held_until_s = None
            self.alarm = ""
            return now_ms
        return None

    @property
    def is_holding(self) -> bool:
        return self._held_until_s is not None
