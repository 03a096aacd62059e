"""The page Overview: what is coming, whether it is on time, and whether anything is stuck."""

from collections.abc import Sequence
from typing import Any, NamedTuple
from urllib.parse import quote

from latermq.errors import LaterMQError
from latermq.http.alerts.alert import Alert
from latermq.http.alerts.rules import DEAD_LETTERS, HEAVY_SECOND, WINDOW_OVERDUE
from latermq.http.api.cluster import LiveState
from latermq.http.api.density import EDGES_MS
from latermq.http.api.lateness import Punctuality
from latermq.http.api.throughput import Throughput
from latermq.http.console.density_chart import density_chart, far_by_bucket
from latermq.http.console.page import Page, PageRow, Redirect, View, Visit
from latermq.http.console.pages.brokers import state_of
from latermq.http.problems import problem_of
from latermq.http.timer_request import parse_time_ms
from latermq.message.names import DEAD_LETTER_PREFIX

NEXT_TIMERS = 6
LATE_FROM_MS = 1_000
_STATE = "/api/v1/state"
_LATENESS, _FORECAST, _THROUGHPUT = "/api/v1/lateness", "/api/v1/forecast", "/api/v1/throughput"
_STATE_AGE_S, _FAR_AGE_S = 2.0, 60.0
_DAY_MS, _HOUR_MS, _MINUTE_MS = 86_400_000, 3_600_000, 60_000
_FAR_HOURS, _FAR_DAYS = 48, 3_650


class Trouble(NamedTuple):
    """Something that needs attention, and where to see it."""

    text: str
    hint: str
    path: str
    is_critical: bool = False


class Verdict(NamedTuple):
    """How late deliveries are."""

    word: str
    kind: str  # the class that colours it
    text: str


async def show(visit: Visit) -> View | Redirect:
    """The state of everything, or the timers of those who may not see it."""
    if not visit.api.has("GET", _STATE):
        return Redirect("/timers")
    try:
        state = await visit.api.state()
    except LaterMQError as error:  # the page still opens, and shows the first state that arrives
        return View("overview.html", {"state": None, "problem": problem_of(error)})
    lateness = await _optional(visit, _LATENESS, {}, _STATE_AGE_S)
    throughput = await _optional(visit, _THROUGHPUT, {}, _STATE_AGE_S)
    far = await _far(visit, state)
    brokers = [broker for broker in state.brokers if not broker.error]
    shown = {
        "state": state,
        "problem": None,
        "now_ms": state.density.now_ms,
        "chart": density_chart(state.density, far),
        "far": sum(far),
        "unplaced": max(0, state.density.beyond - sum(far)),
        "next_timers": await _next_timers(visit),
        "punctuality": punctuality_of(state, lateness),
        "lateness": lateness,
        "late_minutes": late_minutes_of(lateness.minutes, state.density.now_ms) if lateness is not None else [],
        "course": course_of(throughput.minutes, state.density.now_ms) if throughput is not None else [],
        "troubles": troubles_of(state),
        "timers_in": sum(broker.timers_in_rate for broker in brokers),
        "timers_out": sum(broker.timers_delivered_rate for broker in brokers),
        "messages_in": sum(broker.messages_in_rate for broker in brokers),
        "messages_out": sum(broker.messages_out_rate for broker in brokers),
    }
    return View("overview.html", shown)


def course_of(minutes: Sequence[Throughput], now_ms: int) -> list[Throughput]:
    """Return each minute of the last hour that is over, also those in which no broker counted."""
    known = {one.start_ms: one for one in minutes}
    starts = range(_minute_of(now_ms) - _HOUR_MS, _minute_of(now_ms), _MINUTE_MS)
    if not any(start_ms in known for start_ms in starts):
        return []
    return [known.get(start_ms) or Throughput("", start_ms, 0, 0, 0, 0) for start_ms in starts]


def late_minutes_of(minutes: Sequence[Punctuality], now_ms: int) -> list[Punctuality]:
    """Return each minute of the last hour up to now, also those without deliveries."""
    known = {one.start_ms: one for one in minutes}
    starts = range(_minute_of(now_ms) - _HOUR_MS + _MINUTE_MS, _minute_of(now_ms) + 1, _MINUTE_MS)
    return [known.get(start_ms) or Punctuality("", start_ms, 0, 0.0, 0.0, 0) for start_ms in starts]


def _minute_of(time_ms: int) -> int:
    return time_ms // _MINUTE_MS * _MINUTE_MS


async def _optional(visit: Visit, path: str, query: dict[str, Any], max_age_s: float) -> Any:
    """Return an answer that the page can do without."""
    if not visit.api.has("GET", path):
        return None
    try:
        return await visit.api.recent(path, query, max_age_s=max_age_s)
    except LaterMQError:
        return None


async def _far(visit: Visit, state: LiveState) -> list[int]:
    """Return the timers on Spark by the spans of the chart: for two days by the hour, then by the day."""
    start_ms = state.density.now_ms // _HOUR_MS * _HOUR_MS
    border_ms = start_ms + _FAR_HOURS * _HOUR_MS
    hours = {"from": str(start_ms), "to": str(border_ms), "per": "hour", "busiest": 0}
    days = {"from": str(border_ms), "to": str(border_ms + _FAR_DAYS * _DAY_MS), "per": "day", "busiest": 0}
    reports = [await _optional(visit, _FORECAST, query, _FAR_AGE_S) for query in (hours, days)]
    spans = [
        (span.at_ms, span.at_ms + report.span_ms, span.far)
        for report in reports
        if report is not None
        for span in report.spans
        if span.far
    ]
    return far_by_bucket(state.density.now_ms, spans) if spans else [0] * len(EDGES_MS)


async def _next_timers(visit: Visit) -> list[Any]:
    page = await _optional(visit, "/api/v1/timers", {"limit": NEXT_TIMERS}, _STATE_AGE_S)
    return list(page.timers) if page is not None else []


def punctuality_of(state: LiveState, lateness: Any) -> Verdict:
    """Return whether deliveries are on time: now, and in the last hour if brokers keep a history."""
    late_ms = max((broker.late_ms for broker in state.brokers), default=0)
    last = ""
    if lateness is not None and lateness.hour.deliveries:
        hour = lateness.hour
        last = f"Last hour: half within {hour.p50_ms:,.0f} ms, 99 % within {hour.p99_ms:,.0f} ms"
    elif lateness is not None:
        last = "Nothing was due in the last hour"
    if late_ms >= LATE_FROM_MS:
        return Verdict(f"{late_ms / 1000:,.0f} s late", "bad", last)
    if lateness is not None and lateness.hour.p99_ms >= LATE_FROM_MS:
        return Verdict("Not always", "warn", last)
    return Verdict("Yes", "good", last or "No delivery is overdue")


def troubles_of(state: LiveState) -> list[Trouble]:
    """Return what is stuck: the alerts, and brokers that need attention before an alert fires."""
    if not state.brokers:
        return [Trouble("No broker is registered", "Start one with latermq broker", "/brokers", True)]
    found = [
        Trouble(one.text[:1].upper() + one.text[1:], one.hint, _path_of(one), one.severity == "critical")
        for one in state.alerts
    ]
    known = {one.subject.get("broker", "") for one in state.alerts}
    for broker in state.brokers:
        word, kind = state_of(broker)
        if kind != "good" and broker.broker not in known:
            found.append(Trouble(f"{broker.broker}: {word}", broker.error, "/brokers", kind == "bad"))
    return found


def _path_of(alert: Alert) -> str:
    """Return the page that shows what an alert is about."""
    subject = alert.subject
    if alert.rule == DEAD_LETTERS:
        return f"/dead-letters/{quote(subject['topic'].removeprefix(DEAD_LETTER_PREFIX), safe='')}"
    if alert.rule == HEAVY_SECOND:
        minute_ms = parse_time_ms(subject["minute"])
        return f"/timers?from={minute_ms}&to={minute_ms + _MINUTE_MS}"
    if alert.rule == WINDOW_OVERDUE:
        return "/pipeline"
    return f"/groups/{quote(subject['group'], safe='')}" if "group" in subject else "/brokers"


PAGE = Page("Overview", [PageRow("GET", "/", show)], needs=(_STATE,))
