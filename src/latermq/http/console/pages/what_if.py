"""What if many timers were added? The form, and the prediction in words and as a chart. Nothing is changed."""

import math
from http import HTTPStatus
from typing import Any, NamedTuple
from urllib.parse import urlencode

from latermq.errors import InvalidParameter, LaterMQError
from latermq.http.api.what_if import MAX_OVER_MS
from latermq.http.console.moments import parse_coming_ms
from latermq.http.console.page import View, Visit
from latermq.http.console.rendering import count_text, rate_text, span_text
from latermq.http.problems import problem_of, status_of

PATH = "/future/what-if"
FIELDS = ("add", "at", "over", "consumers", "deliveries", "backlog")
EXAMPLE = {"add": "500,000", "at": "09:00", "over": "", "consumers": "2,000", "deliveries": "", "backlog": ""}
_ON_TIME_MS = 1_000  # what people call on time
_SUFFIXES = {"k": 1_000, "m": 1_000_000}
_MINUTE_MS = 60_000


class Stage(NamedTuple):
    """What would happen to the added timers in one of the two queues, in words."""

    name: str
    verdict: str
    kind: str  # the class that colours the verdict
    facts: list[str]
    waits: bool  # whether any of them waits in the queue


async def show(visit: Visit) -> View:
    """The form, and what would happen if it describes something. The address has all of it."""
    fields = {name: visit.query.get(name, "").strip() for name in FIELDS}
    shown: dict[str, Any] = {"fields": fields, "report": None, "problem": None, "stages": [], "spread": ""}
    shown["now_ms"] = visit.now_ms
    if not any(fields.values()):
        return _view({**shown, "fields": EXAMPLE})
    try:
        question = _question(fields, visit)
        report: Any = (await visit.api.call("POST", "/api/v1/what-if", body=question)).body
    except LaterMQError as error:
        return _view({**shown, "problem": problem_of(error)}, HTTPStatus(status_of(error)))
    shown["add"], shown["consumers"] = question["add"], question.get("consumers_per_second", 0.0)
    shown["report"], shown["stages"] = report, stages_of(report, shown["consumers"])
    shown["spread"] = _spread(report, shown["add"], shown["consumers"])
    given = {name: value for name, value in (*fields.items(), ("zone", visit.query.get("zone", ""))) if value}
    shown["spread_path"] = f"{PATH}?{urlencode(given | {'over': shown['spread']})}"
    return _view(shown)


def _view(shown: dict[str, Any], status: HTTPStatus = HTTPStatus.OK) -> View:
    return View("what_if.html", shown, "What if", status)


def _question(fields: dict[str, str], visit: Visit) -> dict[str, Any]:
    """Return the form as a request of the API."""
    if not fields["add"]:
        raise InvalidParameter("the number of timers is missing", hint="Write 500,000 or 500k")
    question: dict[str, Any] = {
        "add": int(parse_count(fields["add"])),
        "at": str(parse_coming_ms(fields["at"] or "0s", visit.zone, visit.now_ms)),
        "backlog": int(parse_count(fields["backlog"] or "0")),
    }
    if fields["over"]:
        question["over"] = fields["over"]
    for name, field in (("consumers_per_second", "consumers"), ("deliveries_per_second", "deliveries")):
        if fields[field]:
            question[name] = parse_count(fields[field].removesuffix("/s"))
    return question


def parse_count(text: str) -> float:
    """Return a number that people write: 500,000, 500 000, 500k or 0.5M."""
    plain = text.strip().lower().replace(",", "").replace(" ", "").replace("_", "")
    factor = _SUFFIXES.get(plain[-1:], 1)
    try:
        number = float(plain[:-1] if factor > 1 else plain) * factor
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise InvalidParameter(f"{text[:40]!r} is not a number", hint="Write 500,000 or 500k")
    return number


def stages_of(report: Any, consumers: float) -> list[Stage]:
    """Return what a prediction says, for people. `consumers` is how many messages they process per second."""
    stages = [_stage("Delivered to the topic", "stored", report.deliveries_per_second, report.delivery)]
    if report.consumption is not None:
        stages.append(_stage("Processed by consumers", "processed", consumers, report.consumption))
    return stages


def _stage(name: str, verb: str, rate: float, found: Any) -> Stage:
    verdict, kind = "On time", "good"
    if found.p99_ms >= _ON_TIME_MS:
        verdict, kind = f"Up to {span_text(found.max_ms)} late", "warn" if found.max_ms < _MINUTE_MS else "bad"
    waiting = f"up to {count_text(found.longest_queue)} wait at the same time" if found.longest_queue else "none waits"
    facts = [
        f"Half of them are {verb} within {span_text(found.p50_ms)} of their due time, "
        f"99 % within {span_text(found.p99_ms)}, the last {span_text(found.max_ms)} late.",
        f"At {rate_text(rate)} per second, {waiting}.",
    ]
    if found.drained_ms is None:
        facts.append("The queue does not become empty again within the predicted time.")
    elif found.drained_ms >= _ON_TIME_MS:
        facts.append(f"The queue is empty again {span_text(found.drained_ms)} after the last of them is due.")
    return Stage(name, verdict, kind, facts, found.longest_queue > 0)


def _spread(report: Any, add: int, consumers: float) -> str:
    """Return a span as long as the work of all timers takes, such as `5m`. Empty if they are on time anyway."""
    last = report.consumption or report.delivery
    if last.p99_ms < _ON_TIME_MS:
        return ""
    rate = min(report.deliveries_per_second, consumers or math.inf)
    minutes = math.ceil((add + report.others) / rate / 60)
    return f"{minutes}m" if report.over_ms < minutes * _MINUTE_MS <= MAX_OVER_MS else ""
