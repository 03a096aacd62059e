"""Pending timers as a calendar: a row per day with its hours, or a row per month with its days, in the chosen zone."""

import datetime
import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

HOUR_MS, DAY_MS = 3_600_000, 86_400_000
LEVELS = 6
_DAY = "%a %d %b"
_UNITS = ((1_000_000_000, "G"), (1_000_000, "M"), (1_000, "k"))


class HourCount(NamedTuple):
    """Timers that are due in the hour from a moment on."""

    at_ms: int
    near: int
    far: int


class Cell(NamedTuple):
    """A span of the calendar. `level` is 0 without timers, and grows with the logarithm of their number."""

    from_ms: int
    until_ms: int
    near: int
    far: int
    level: int
    text: str
    label: str

    @property
    def kind(self) -> str:
        """Where most of its timers are."""
        return "far" if self.far > self.near else "near"


class Row(NamedTuple):
    """A day or a month. A cell is None where the calendar has none, as for the 31st of a short month."""

    name: str
    cells: list[Cell | None]
    total: int


class HeatMap(NamedTuple):
    """What the template draws."""

    columns: list[str]
    rows: list[Row]
    near: int
    far: int


class _Span:
    """A cell while hours are added to it."""

    def __init__(self, from_ms: int, label: str) -> None:
        self.from_ms = self.until_ms = from_ms
        self.label = label
        self.near = self.far = 0


def days_by_hour(counts: Iterable[HourCount], from_ms: int, until_ms: int, zone: datetime.tzinfo) -> HeatMap:
    """Return a row per day with 24 hours. An hour that the clock repeats is one cell, one that it skips has none."""
    columns = [f"{hour:02}" for hour in range(24)]
    return _heat_map(columns, counts, from_ms, until_ms, zone, f"{_DAY}, %H:00", _DAY, lambda at: at.hour)


def months_by_day(counts: Iterable[HourCount], from_ms: int, until_ms: int, zone: datetime.tzinfo) -> HeatMap:
    """Return a row per month with its days."""
    columns = [str(day) for day in range(1, 32)]
    return _heat_map(columns, counts, from_ms, until_ms, zone, _DAY, "%b %Y", lambda at: at.day - 1)


def _heat_map(
    columns: list[str],
    counts: Iterable[HourCount],
    from_ms: int,
    until_ms: int,
    zone: datetime.tzinfo,
    cell_format: str,
    row_format: str,
    column_of: Callable[[datetime.datetime], int],
) -> HeatMap:
    by_hour = {one.at_ms: one for one in counts}
    rows: dict[str, list[_Span | None]] = {}
    for at_ms in range(from_ms, until_ms, HOUR_MS):
        moment = datetime.datetime.fromtimestamp(at_ms / 1000, zone)
        row = rows.setdefault(moment.strftime(row_format), [None] * len(columns))
        span = row[column_of(moment)]
        if span is None:
            span = row[column_of(moment)] = _Span(at_ms, moment.strftime(cell_format))
        span.until_ms = at_ms + HOUR_MS
        if (found := by_hour.get(at_ms)) is not None:
            span.near += found.near
            span.far += found.far
    top = max((span.near + span.far for row in rows.values() for span in row if span is not None), default=0)
    shown = [
        Row(name, [_cell(span, top) for span in row], sum(span.near + span.far for span in row if span is not None))
        for name, row in rows.items()
    ]
    spans = [span for row in rows.values() for span in row if span is not None]
    return HeatMap(columns, shown, sum(span.near for span in spans), sum(span.far for span in spans))


def _cell(span: _Span | None, top: int) -> Cell | None:
    if span is None:
        return None
    timers = span.near + span.far
    noun = "timer" if timers == 1 else "timers"
    where = f" ({span.near:,} on brokers, {span.far:,} on Spark)" if span.near and span.far else ""
    label = f"{span.label}: {timers:,} {noun}{where or (' on Spark' if span.far else '')}"
    return Cell(span.from_ms, span.until_ms, span.near, span.far, level_of(timers, top), short_count(timers), label)


def level_of(timers: int, top: int) -> int:
    """Return how strongly a count is coloured: 0 for none, and LEVELS for the largest."""
    if not timers:
        return 0
    return 1 + int((LEVELS - 1) * math.log1p(timers) / math.log1p(top))


def short_count(timers: int) -> str:
    """Write a count with at most four characters. Nothing for none."""
    for unit, letter in _UNITS:
        if timers >= unit * 0.9995:  # 999,500 is 1.0M
            value = timers / unit
            return f"{value:.1f}{letter}" if value < 9.95 else f"{value:.0f}{letter}"
    return str(timers) if timers else ""
