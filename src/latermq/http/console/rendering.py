"""Templates: their environment, and how numbers, times, sizes and durations are written."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

import latermq
from latermq.http.console.assets import Assets
from latermq.http.timer_request import time_text

FOLDER = Path(__file__).parent / "templates"
_UNITS = (("y", 365 * 86_400_000), ("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000))
_SIZE_STEP = 1024
_MINUTE_MS = 60_000


class Templates:
    """The templates of all pages. They are compiled when they are first used, and escape whatever they show."""

    def __init__(self, assets: Assets) -> None:
        self._environment = jinja2.Environment(
            loader=jinja2.FileSystemLoader(FOLDER),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        self._environment.filters.update(
            count=count_text, time=time_element, span=span_text, size=size_text, rate=rate_text
        )
        self._environment.globals.update(asset=assets.url, version=latermq.__version__)

    def render(self, name: str, shown: Mapping[str, Any]) -> str:
        """Return a page."""
        return self._environment.get_template(name).render(shown)


def count_text(number: float) -> str:
    """Write a number with thousands separated."""
    return f"{number:,.0f}"


def rate_text(number: float) -> str:
    """Write a number per second, with a decimal if it is small."""
    return f"{number:,.1f}" if 0 < number < 10 else f"{number:,.0f}"


def time_element(time_ms: int | None, empty: str = "–") -> Markup:
    """Write a moment, which the browser then shows in the chosen time zone."""
    text = time_text(time_ms or 0)
    if not text:
        return Markup('<span class="soft">{}</span>').format(empty)
    shown = f"{text[:10]} {text[11:19]}"
    return Markup('<time datetime="{}" data-ms="{}">{}</time>').format(text, time_ms, shown)


def span_text(time_ms: float) -> str:
    """Write a duration with its two largest units."""
    left = int(time_ms)
    if left < 1_000:
        return f"{left} ms"
    if left >= _MINUTE_MS:
        left = round(left, -3)  # 14 min 59.99 s is 15 min
    parts: list[str] = []
    for unit, unit_ms in _UNITS:
        number, left = divmod(left, unit_ms)
        if number or parts:
            parts.append(f"{number} {unit}" if number else "")
        if len(parts) == 2:
            break
    return " ".join(part for part in parts if part)


def size_text(size_bytes: float) -> str:
    """Write a size in binary units."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size_bytes < _SIZE_STEP:
            return f"{size_bytes:,.0f} {unit}" if unit == "B" else f"{size_bytes:,.1f} {unit}"
        size_bytes /= _SIZE_STEP
    return f"{size_bytes:,.1f} TiB"
