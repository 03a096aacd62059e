"""The timers that are due anyway, with those that are added, as pieces of work in the order of their due times."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from latermq.client import Density
from latermq.http.api.near_forecast import spans_of
from latermq.http.what_if.fluid_queue import Piece

MAX_STEPS = 20_000
_TAIL_STEPS = 5_000  # at least, after the last added timer


class Addition(NamedTuple):
    """Timers that are added: all due at one time, or evenly over a span from then on."""

    timers: int
    at_s: float
    over_s: float


class Rates:
    """How many timers are due per second at a time, near and far."""

    def __init__(self, density: Density, far_from_ms: int, far_span_ms: int, far: Mapping[int, int]) -> None:
        near = [(at_ms, span_ms, timers * 1000 / span_ms) for at_ms, span_ms, timers in spans_of(density) if timers]
        self._near = {(at_ms, span_ms): rate for at_ms, span_ms, rate in near}
        self._start_ms = density.start_ms
        self._far_from_ms, self._far_span_ms, self._far = far_from_ms, far_span_ms, far

    def at(self, time_s: float) -> float:
        """Return the timers per second. Of a minute or an hour, they are spread evenly."""
        time_ms = int(time_s * 1000)
        since_ms = time_ms - self._start_ms
        span_ms = 1_000 if since_ms < 3_600_000 else 60_000 if since_ms < 86_400_000 else 3_600_000
        near = self._near.get((self._start_ms + since_ms // span_ms * span_ms, span_ms), 0.0)
        number = (time_ms - self._far_from_ms) // self._far_span_ms
        return near + self._far.get(number, 0) * 1000 / self._far_span_ms


def pieces_of(added: Addition, begin_s: float, rate: Callable[[float], float]) -> list[Piece]:
    """Return the pieces from a time on, until long after the last added timer.

    A step is a second, or more if the timers are added over more than some hours.
    """
    end_s = added.at_s + added.over_s
    step_s = max(1.0, (end_s - begin_s) / (MAX_STEPS - _TAIL_STEPS))
    pieces: list[Piece] = []
    at_s = begin_s
    while len(pieces) < MAX_STEPS:
        following_s = at_s + step_s
        for border_s in (added.at_s, end_s):
            if at_s < border_s < following_s:
                following_s = border_s
        if at_s == added.at_s and not added.over_s:
            pieces.append(Piece(at_s, at_s, added.timers, added.timers))
        span_s = following_s - at_s
        marked = added.timers * span_s / added.over_s if added.over_s and added.at_s <= at_s < end_s else 0.0
        pieces.append(Piece(at_s, following_s, rate(at_s) * span_s + marked, marked))
        at_s = following_s
    return pieces
