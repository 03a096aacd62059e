"""The page Pipeline: ingest, windows and their builders, runs, the days ahead, and when Spark must be further."""

import datetime
from typing import Any, NamedTuple

from latermq.errors import LaterMQError
from latermq.http.console.heat_map import HourCount, days_by_hour
from latermq.http.console.page import Page, PageRow, View, Visit
from latermq.http.console.pages.future import hourly_forecasts, midnight_ms, zone_of_visit

DAYS = 14
RUNS = 15
_REPORTS, _RUNS = "/api/v1/pipeline", "/api/v1/pipeline/runs"
_REPORTS_AGE_S, _RUNS_AGE_S = 2.0, 10.0
BUILDERS = {"local": "the broker", "spark": "Spark", "driver": "the driver, without Spark"}
STATES = {"waiting": "soft", "ready": "near", "delivering": "warn", "delivered": "good"}  # the classes that colour them


class Day(NamedTuple):
    """A day of the chosen time zone, with the timers that are due on it."""

    name: str
    from_ms: int
    until_ms: int
    near: int
    far: int


async def show(visit: Visit) -> View:
    """The pipeline as each broker sees it, and its work ahead."""
    reports = (await visit.api.recent(_REPORTS, max_age_s=_REPORTS_AGE_S)).brokers
    has_driver = any(report.epoch for report in reports)
    name, zone = zone_of_visit(visit)
    shown: dict[str, Any] = {
        "reports": reports,
        "now_ms": visit.now_ms,
        "has_driver": has_driver,
        "builders": BUILDERS,
        "states": STATES,
        "days": [],
        "far_missing": "",
        "runs": None,
        "zone": name,
    }
    if has_driver:
        shown["days"], shown["far_missing"] = await _days(visit, zone)
        shown["runs"] = await _runs(visit)
        shown["top"] = max((day.near + day.far for day in shown["days"]), default=0) or 1
    return View("pipeline.html", shown)


async def _days(visit: Visit, zone: datetime.tzinfo) -> tuple[list[Day], str]:
    """Return the timers of the coming days, and why those on Spark are missing."""
    today = datetime.datetime.fromtimestamp(visit.now_ms / 1000, zone).date()
    from_ms, until_ms = midnight_ms(today, zone), midnight_ms(today + datetime.timedelta(days=DAYS), zone)
    try:
        forecasts = await hourly_forecasts(visit, from_ms, until_ms)
    except LaterMQError as error:  # the page can do without them
        return [], error.message
    counts = [HourCount(span.at_ms, span.near, span.far) for one in forecasts for span in one.spans]
    days = []
    for row in days_by_hour(counts, from_ms, until_ms, zone).rows:
        cells = [cell for cell in row.cells if cell is not None]
        near, far = sum(cell.near for cell in cells), sum(cell.far for cell in cells)
        days.append(Day(row.name, cells[0].from_ms, cells[-1].until_ms, near, far))
    return days, forecasts[0].far_missing


async def _runs(visit: Visit) -> Any:
    try:
        return await visit.api.recent(_RUNS, {"limit": RUNS}, max_age_s=_RUNS_AGE_S)
    except LaterMQError:
        return None


PAGE = Page("Pipeline", [PageRow("GET", "/pipeline", show)], needs=("/api/v1/pipeline",))
