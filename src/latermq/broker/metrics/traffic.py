"""Counters of messages in and out, and their rates over the last seconds."""

from collections import deque
from dataclasses import dataclass, field

_SAMPLES = 610  # one per second: just over ten minutes


@dataclass(slots=True)
class Traffic:
    """Plain counters for hot paths. `sample` computes rates from them."""

    messages_in: int = 0
    messages_out: int = 0
    # The counters at the beginning of this day and of the previous day, or at the start of the broker.
    this_morning: tuple[int, int] = (0, 0)
    yesterday_morning: tuple[int, int] = (0, 0)
    _day: int | None = None
    _history: deque[tuple[float, int, int]] = field(default_factory=lambda: deque(maxlen=_SAMPLES))

    def sample(self, now_s: float) -> None:
        """Take a sample of the counters. Call it about once per second."""
        self._history.append((now_s, self.messages_in, self.messages_out))

    def begin_day(self, day: int) -> None:
        """Set the number of the current day, at least once per day. A new day moves the daily marks."""
        if self._day is not None and day != self._day:
            self.yesterday_morning = self.this_morning
            self.this_morning = (self.messages_in, self.messages_out)
        self._day = day

    def rates(self, over_s: float) -> tuple[float, float]:
        """Messages in and out per second, over about this long."""
        if not self._history:
            return 0.0, 0.0
        now_s, now_in, now_out = self._history[-1]
        then_s, then_in, then_out = next(
            (sample for sample in self._history if sample[0] >= now_s - over_s), self._history[0]
        )
        elapsed_s = now_s - then_s
        if elapsed_s <= 0:
            return 0.0, 0.0
        return (now_in - then_in) / elapsed_s, (now_out - then_out) / elapsed_s
