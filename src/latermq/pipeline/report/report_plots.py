"""Plots as inline SVG, without a library or a script: stacked bars for the forecast, lines for the lateness."""

from collections.abc import Mapping, Sequence
from html import escape

WIDTH, HEIGHT = 960, 260
LEFT, RIGHT, TOP, BOTTOM = 64, 12, 12, 34
MAX_SERIES = 8
OTHERS = "others"


def stacked_bars(labels: Sequence[str], series: Mapping[str, Sequence[float]], *, unit: str, title: str) -> str:
    """One bar per label, with the series stacked in order."""
    totals = [sum(values[at] for values in series.values()) for at in range(len(labels))]
    top = nice_top(max(totals, default=0))
    step = (WIDTH - LEFT - RIGHT) / max(1, len(labels))
    parts = _frame(labels, top, unit)
    bottoms = [0.0] * len(labels)
    for number, (name, values) in enumerate(series.items()):
        for at, value in enumerate(values):
            if not value:
                continue
            y0, y1 = _y(bottoms[at], top), _y(bottoms[at] + value, top)
            bottoms[at] += value
            text = escape(f"{labels[at]}, {name}: {value:,.0f} {unit}")
            parts.append(
                f'<rect class="s{number}" x="{LEFT + at * step:.1f}" y="{y1:.1f}" width="{max(step - 1, 0.7):.1f}" '
                f'height="{max(y0 - y1, 0.5):.1f}"><title>{text}</title></rect>'
            )
    return _svg(parts, title) + legend(list(series))


def lines(labels: Sequence[str], series: Mapping[str, Sequence[float | None]], *, unit: str, title: str) -> str:
    """One line per series with a point per label, and no point where there is no value."""
    top = nice_top(max((value for values in series.values() for value in values if value is not None), default=0))
    step = (WIDTH - LEFT - RIGHT) / max(1, len(labels))
    parts = _frame(labels, top, unit)
    for number, (name, values) in enumerate(series.items()):
        points = [
            (LEFT + (at + 0.5) * step, _y(max(0.0, value), top), at, value)
            for at, value in enumerate(values)
            if value is not None
        ]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y, _, _ in points)
        parts.append(f'<polyline class="l{number}" points="{path}"/>')
        for x, y, at, value in points:
            text = escape(f"{labels[at]}, {name}: {value:,.0f} {unit}")
            parts.append(f'<circle class="s{number}" cx="{x:.1f}" cy="{y:.1f}" r="3"><title>{text}</title></circle>')
    return _svg(parts, title) + legend(list(series))


def legend(names: Sequence[str]) -> str:
    """The colour of each series."""
    items = "".join(f'<span><i class="b{number}"></i>{escape(name)}</span>' for number, name in enumerate(names))
    return f'<p class="legend">{items}</p>'


def largest_series(totals: Mapping[str, float]) -> list[str]:
    """The names that get their own colour, largest first. The rest is summed up as `others`."""
    ordered = sorted(totals, key=lambda name: (name == OTHERS, -totals[name], name))
    return ordered if len(ordered) <= MAX_SERIES else [*ordered[: MAX_SERIES - 1], OTHERS]


def nice_top(most: float) -> float:
    """A round number at or above the largest value."""
    if most <= 0:
        return 1.0
    power = 1.0
    while power * 10 <= most:
        power *= 10
    while power > most:
        power /= 10
    return next(step * power for step in (1, 2, 2.5, 5, 10) if step * power >= most)


def _y(value: float, top: float) -> float:
    return TOP + (HEIGHT - TOP - BOTTOM) * (1 - value / top)


def _frame(labels: Sequence[str], top: float, unit: str) -> list[str]:
    parts = []
    for quarter in range(5):
        value = top * quarter / 4
        y = _y(value, top)
        text = f"{value:,.0f}" if top >= 4 else f"{value:g}"
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{text}</text>')
    parts.append(f'<text x="{WIDTH - RIGHT}" y="{TOP - 3}" text-anchor="end" class="unit">{escape(unit)}</text>')
    step = (WIDTH - LEFT - RIGHT) / max(1, len(labels))
    every = max(1, -(-len(labels) // 6))
    for at in range(0, len(labels), every):
        parts.append(f'<text x="{LEFT + at * step:.1f}" y="{HEIGHT - 12}">{escape(labels[at])}</text>')
    return parts


def _svg(parts: Sequence[str], title: str) -> str:
    inside = "".join(parts)
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">{inside}</svg>'
