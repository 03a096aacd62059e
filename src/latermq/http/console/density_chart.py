"""The density of pending timers as bars on a logarithmic axis, from a second to ten years."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from latermq.http.api.density import EDGES_MS, DensityReport

_PER_DECADE = 10
_LEAST_HEIGHT = 1.5  # % of the plot: a single timer among millions can still be seen
_HEADROOM = 1.08
_UNITS = ((365 * 86_400_000, "years"), (86_400_000, "days"), (3_600_000, "h"), (60_000, "min"), (0, "s"))
_TICKS = (
    (1_000, "1 s", True), (10_000, "10 s", False), (60_000, "1 min", True), (600_000, "10 min", False),
    (3_600_000, "1 h", True), (6 * 3_600_000, "6 h", False), (86_400_000, "1 day", True),
    (7 * 86_400_000, "1 week", False), (30 * 86_400_000, "1 month", False), (365 * 86_400_000, "1 year", True),
    (3_650 * 86_400_000, "10 years", False),
)  # fmt: skip


class Bar(NamedTuple):
    """One span of due time. Positions and sizes are percentages of the plot; `y` and `far_y` are upper edges."""

    x: float
    width: float
    near: int
    far: int
    y: float
    height: float
    far_y: float
    far_height: float
    from_ms: int  # absolute times
    until_ms: int
    label: str


class Tick(NamedTuple):
    """A mark on an axis, at a percentage of its length. A minor one is left out on small screens."""

    at: float
    text: str
    is_major: bool = True


class DensityChart(NamedTuple):
    """What the template draws."""

    bars: list[Bar]
    ticks: list[Tick]
    levels: list[Tick]


def density_chart(density: DensityReport, far: Sequence[int]) -> DensityChart:
    """Return the chart. `far` has the timers on Spark in the spans of `EDGES_MS`."""
    totals = [bucket.timers + own for bucket, own in zip(density.buckets, far, strict=True)]
    top = _rounded_up(max(totals, default=0) * _HEADROOM)
    step = 100 / len(EDGES_MS)
    bars = []
    for at, bucket in enumerate(density.buckets):
        if not totals[at]:
            continue
        near_height = _height(bucket.timers, top)
        far_height = _height(far[at], top)
        bars.append(
            Bar(
                round(at * step + step * 0.08, 3),
                round(step * 0.84, 3),
                bucket.timers,
                far[at],
                round(100 - near_height, 3),
                near_height,
                round(100 - near_height - far_height, 3),
                far_height,
                density.now_ms + bucket.from_ms,
                density.now_ms + bucket.until_ms,
                _label(bucket.timers, far[at], bucket.from_ms, bucket.until_ms),
            )
        )
    ticks = [
        Tick(round((1 + _PER_DECADE * math.log10(ms / 1000)) * step, 3), text, major) for ms, text, major in _TICKS
    ]
    levels = [Tick(round(100 - 100 * share, 3), f"{top * share:,.0f}") for share in (0.5, 1.0)] if top >= 2 else []
    return DensityChart(bars, ticks, levels)


def far_by_bucket(now_ms: int, spans: Sequence[tuple[int, int, int]]) -> list[int]:
    """Return far timers by the spans of `EDGES_MS`, from (start, end, timers). A count on an edge is divided."""
    edges = (0, *EDGES_MS)
    counts = [0.0] * len(EDGES_MS)
    for start_ms, end_ms, timers in spans:
        begin, end = max(0, start_ms - now_ms), max(1, end_ms - now_ms)
        for at in range(len(counts)):
            part = min(end, edges[at + 1]) - max(begin, edges[at])
            if part > 0:
                counts[at] += timers * part / (end - begin)
    rounded, total, given = [], 0.0, 0
    for count in counts:
        total += count
        rounded.append(round(total) - given)
        given = round(total)
    return rounded


def _height(timers: int, top: float) -> float:
    return round(max(_LEAST_HEIGHT, 100 * timers / top), 3) if timers else 0.0


def _rounded_up(value: float) -> float:
    """Return the next number with a simple first digit."""
    if value <= 0:
        return 1
    unit: float = 10 ** math.floor(math.log10(value))
    return next(unit * digit for digit in (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10) if unit * digit >= value)


def _label(near: int, far: int, from_ms: int, until_ms: int) -> str:
    where = f" ({near:,} on brokers, {far:,} on Spark)" if near and far else " on Spark" if far else ""
    noun = "timer" if near + far == 1 else "timers"
    return f"{near + far:,} {noun}{where} due in {_short(from_ms)} to {_short(until_ms)}"


def _short(span_ms: int) -> str:
    """Write a span in one unit, with two digits."""
    unit_ms, unit = next(one for one in _UNITS if span_ms >= one[0])
    return f"{span_ms / (unit_ms or 1_000):.2g} {unit}"
