"""The page Future: when timers fall due, as a calendar, and the seconds with the most of them."""

import asyncio
import datetime
from typing import Any, NamedTuple

from latermq.errors import InvalidParameter
from latermq.http.console.heat_map import HOUR_MS, HourCount, days_by_hour, months_by_day
from latermq.http.console.moments import parse_moment_ms, zone_of
from latermq.http.console.page import Page, PageRow, View, Visit
from latermq.http.console.pages import what_if

DAYS, MONTHS = 14, 12
BUSIEST = 10
_MAX_HOURS = 4_000  # of one forecast
_FORECAST = "/api/v1/forecast"
_AGE_S, _HEAVIEST_AGE_S = 5.0, 30.0
_FIRST_YEAR, _LAST_YEAR = 1971, 9900


class Range(NamedTuple):
    """The part of the calendar that is shown, and where its neighbours begin."""

    first: datetime.date
    last: datetime.date  # not shown any more
    before: datetime.date


async def show(visit: Visit) -> View:
    """The calendar of two weeks or of a year."""
    name, zone = zone_of_visit(visit)
    by = "day" if visit.query.get("by") == "day" else "hour"
    today = datetime.datetime.fromtimestamp(visit.now_ms / 1000, zone).date()
    shown = _range(visit.query.get("from", ""), by, today)
    from_ms, until_ms = midnight_ms(shown.first, zone), midnight_ms(shown.last, zone)
    forecasts = await hourly_forecasts(visit, from_ms, until_ms)
    counts = [HourCount(span.at_ms, span.near, span.far) for one in forecasts for span in one.spans]
    calendar = (days_by_hour if by == "hour" else months_by_day)(counts, from_ms, until_ms, zone)
    view = {
        "by": by,
        "calendar": calendar,
        "pending": forecasts[0].pending,
        "far_missing": forecasts[0].far_missing,
        "first": shown.first,
        "before": shown.before if shown.first > today else None,
        "after": shown.last,
        "is_today": shown.first <= today,
        "zone": name,
        "from_ms": max(from_ms, visit.now_ms // HOUR_MS * HOUR_MS),
        "until_ms": until_ms,
    }
    return View("future.html", view)


async def show_heaviest(visit: Visit) -> View:
    """The heaviest seconds of a span. Brokers are asked many times for them, so the calendar does not wait for it."""
    wanted = {name: visit.query.get(name, "") for name in ("from", "to")}
    span = {name: str(parse_moment_ms(text, visit.zone, visit.now_ms)) for name, text in wanted.items() if text}
    query = {**span, "per": "day", "busiest": BUSIEST}
    found = (await visit.api.recent(_FORECAST, query, max_age_s=_HEAVIEST_AGE_S)).busiest
    top = max((one.near + one.far for one in found), default=1)
    return View("heaviest.html", {"busiest": found, "top": top, "now_ms": visit.now_ms}, "The heaviest seconds")


def zone_of_visit(visit: Visit) -> tuple[str, datetime.tzinfo]:
    """Return the zone of the calendar. A browser may know a zone that this machine does not."""
    try:
        return visit.zone, zone_of(visit.zone)
    except InvalidParameter:
        if visit.zone != visit.browser_zone:
            raise
        return "UTC", datetime.UTC


def _range(text: str, by: str, today: datetime.date) -> Range:
    """Return the two weeks, or the twelve months, that begin at a date; by default today, or this month."""
    try:
        first = datetime.date.fromisoformat(text) if text else today
    except ValueError:
        raise InvalidParameter(f"{text[:20]!r} is not a date", hint="Write it like 2027-01-31") from None
    if not _FIRST_YEAR <= first.year <= _LAST_YEAR:
        raise InvalidParameter(f"the calendar has no {text[:20]}", hint="Write it like 2027-01-31")
    if by == "hour":
        span = datetime.timedelta(days=DAYS)
        return Range(first, first + span, max(today, first - span))
    first = first.replace(day=1)
    return Range(
        first, first.replace(year=first.year + 1), max(today.replace(day=1), first.replace(year=first.year - 1))
    )


async def hourly_forecasts(visit: Visit, from_ms: int, until_ms: int) -> list[Any]:
    """Return the hours of a span. A day has 23 to 25 of them, so days are not asked for."""
    step_ms = _MAX_HOURS * HOUR_MS
    queries = [
        {"from": str(at_ms), "to": str(min(at_ms + step_ms, until_ms)), "per": "hour", "busiest": 0}
        for at_ms in range(from_ms, until_ms, step_ms)
    ]
    return await asyncio.gather(*(visit.api.recent(_FORECAST, query, max_age_s=_AGE_S) for query in queries))


def midnight_ms(day: datetime.date, zone: datetime.tzinfo) -> int:
    """Return when a day begins."""
    return int(datetime.datetime.combine(day, datetime.time(), zone).timestamp()) * 1000


PAGE = Page(
    "Future",
    [
        PageRow("GET", "/future", show),
        PageRow("GET", "/future/heaviest", show_heaviest),
        PageRow("GET", what_if.PATH, what_if.show),
    ],
    needs=("/api/v1/forecast",),
    examples=(
        "/future/heaviest",
        "/future?by=day",
        "/future?from=2031-03-01&zone=Europe/Berlin",
        what_if.PATH,
        f"{what_if.PATH}?add=500,000&at=09:00&consumers=2,000&zone=Europe/Berlin",
        f"{what_if.PATH}?add=500k&at=09:00&over=10m",
    ),
)
