"""The page Timers: pending timers by topic, key and due time, near and far, and each with its history and actions."""

from http import HTTPStatus
from typing import Any
from urllib.parse import urlencode

from latermq.access.resources import PUB
from latermq.errors import InvalidParameter, LaterMQError, TopicNotFound
from latermq.http.api.access_rules import timer_accesses
from latermq.http.api.timer_list import TimerPage
from latermq.http.console.calls_as_code import calls_of
from latermq.http.console.form_message import FIELDS, message_of
from latermq.http.console.moments import due_of, parse_moment_ms
from latermq.http.console.page import Page, PageRow, Redirect, View, Visit
from latermq.http.problems import problem_of, status_of
from latermq.message.timer_ids import parse_timer_id
from latermq.model.topic_access import topic_access

ROWS = 50
MAX_TOPICS_OFFERED = 500
_FILTER = ("topic", "key", "from", "to")
_FIELDS = (*FIELDS, "when")
_TOPICS_AGE_S = 10.0


# The list


async def show_list(visit: Visit) -> View:
    """Timers that match the filter."""
    wanted = {name: visit.query.get(name, "").strip() for name in _FILTER}
    shown: dict[str, Any] = {
        "wanted": wanted,
        "is_filtered": any(wanted.values()),
        "problem": None,
        "found": None,
        "is_unknown": False,
        "next": "",
        "job_query": "",
        "now_ms": visit.now_ms,
        "topics": await _topics(visit),
        "may_change_all": visit.api.may(*timer_accesses(wanted["topic"], PUB)),
        "cursor": visit.query.get("cursor", ""),
    }
    try:
        query = {name: wanted[name] for name in ("topic", "key")}
        for name in ("from", "to"):
            if wanted[name]:
                query[name] = str(parse_moment_ms(wanted[name], visit.zone, visit.now_ms))
        query |= {"limit": str(ROWS), "cursor": shown["cursor"]}
        shown["found"] = found = await visit.api.get("/api/v1/timers", query)
    except TopicNotFound:  # a search without a result, not a page that fails
        shown["found"], shown["is_unknown"] = TimerPage([]), True
        return View("timers.html", shown)
    except LaterMQError as error:
        shown["problem"] = problem_of(error)
        return View("timers.html", shown, status=HTTPStatus(status_of(error)))
    given = {name: value for name, value in wanted.items() if value}
    shown["job_query"] = urlencode(given | {"zone": visit.zone})
    if found.next:
        shown["next"] = "/timers?" + urlencode(given | {"zone": visit.zone, "cursor": found.next})
    return View("timers.html", shown)


async def _topics(visit: Visit) -> list[str]:
    """Return names to choose from. Without them a name can still be typed."""
    try:
        names = (await visit.api.recent("/api/v1/topics", max_age_s=_TOPICS_AGE_S)).topics
    except LaterMQError:
        return []
    return list(names[:MAX_TOPICS_OFFERED])


# One timer


async def show_timer(visit: Visit) -> View:
    """A timer with its history."""
    return await _timer_view(visit)


async def _timer_view(visit: Visit, error: LaterMQError | None = None, when: str = "") -> View:
    parts = {"id": visit.path["id"]}
    answer = await visit.api.call("GET", "/api/v1/timers/{id}", parts=parts)
    timer: Any = answer.body
    events, history_problem = [], None
    try:
        events = (await visit.api.get("/api/v1/timers/{id}/history", parts=parts)).events
    except LaterMQError as failed:
        history_problem = problem_of(failed)
    shown = {
        "timer": timer,
        "may_publish": visit.api.may(topic_access(timer.topic, (PUB,))),
        "etag": answer.headers["ETag"],
        "events": events,
        "history_problem": history_problem,
        "problem": problem_of(error) if error is not None else None,
        "when": when,
        "now_ms": visit.now_ms,
    }
    status = HTTPStatus(status_of(error)) if error is not None else HTTPStatus.OK
    return View("timer.html", shown, f"Timer {timer.key or timer.unique_key}", status)


async def cancel(visit: Visit) -> View | Redirect:
    """Cancel a timer."""
    return await _change(visit, "DELETE", "/api/v1/timers/{id}", None, "cancelled")


async def run(visit: Visit) -> View | Redirect:
    """Deliver a timer now."""
    return await _change(visit, "POST", "/api/v1/timers/{id}/run", None, "run")


async def move(visit: Visit) -> View | Redirect:
    """Give a timer another due time."""
    when = visit.form.get("when", "")
    try:
        body = due_of(when, visit.zone, visit.now_ms)
    except InvalidParameter as error:
        return await _timer_view(visit, error, when)
    return await _change(visit, "PATCH", "/api/v1/timers/{id}", body, "moved")


async def _change(visit: Visit, method: str, path: str, body: Any, done: str) -> View | Redirect:
    """Change the timer if it is still as the visitor has seen it."""
    headers = {"If-Match": visit.form["etag"]} if visit.form.get("etag") else {}
    try:
        await visit.api.call(method, path, body=body, headers=headers, parts={"id": visit.path["id"]})
    except LaterMQError as error:
        return await _timer_view(visit, error, visit.form.get("when", ""))
    return Redirect(f"/timers/{visit.path['id']}", done)


# A new one


async def show_new(visit: Visit) -> View:
    """The form of a new timer, filled from the address."""
    fields = {name: visit.query.get(name, "") for name in _FIELDS}
    return await _new_view(visit, {**fields, "when": fields["when"] or "15m"})


async def schedule(visit: Visit) -> View | Redirect:
    """Schedule the timer of the form, or show it as code."""
    fields = {name: visit.form.get(name, "") for name in _FIELDS}
    if "preview" in visit.form:
        return await _new_view(visit, fields)
    try:
        answer = await visit.api.call("POST", "/api/v1/timers", body=_new_timer(fields, visit))
    except LaterMQError as error:
        return await _new_view(visit, fields, error)
    timer: Any = answer.body
    return Redirect(f"/timers/{timer.id}", "scheduled")


async def _new_view(visit: Visit, fields: dict[str, str], error: LaterMQError | None = None) -> View:
    try:
        calls = calls_of(
            _new_timer({**fields, "topic": fields["topic"] or "orders", "body": fields["body"] or "…"}, visit),
            visit.servers,
        )
    except LaterMQError:  # the form is not complete yet
        calls = []
    shown = {
        "fields": fields,
        "topics": await _topics(visit),
        "calls": calls,
        "problem": problem_of(error) if error is not None else None,
    }
    status = HTTPStatus(status_of(error)) if error is not None else HTTPStatus.OK
    return View("new_timer.html", shown, "Schedule a timer", status)


def _new_timer(fields: dict[str, str], visit: Visit) -> dict[str, Any]:
    """Return the form as a request of the API."""
    return message_of(fields) | due_of(fields["when"], visit.zone, visit.now_ms)


async def find(visit: Visit) -> Redirect:
    """Open a timer by its id."""
    timer_id = visit.query.get("id", "").strip()
    parse_timer_id(timer_id)
    return Redirect(f"/timers/{timer_id}")


PAGE = Page(
    "Timers",
    [
        PageRow("GET", "/timers", show_list),
        PageRow("GET", "/timers/new", show_new),
        PageRow("POST", "/timers/new", schedule),
        PageRow("GET", "/timers/find", find),
        PageRow("GET", "/timers/{id}", show_timer),
        PageRow("POST", "/timers/{id}/cancel", cancel),
        PageRow("POST", "/timers/{id}/run", run),
        PageRow("POST", "/timers/{id}/move", move),
    ],
    notes={
        "scheduled": "The timer is scheduled.",
        "cancelled": "The timer is cancelled. Its message will not be delivered.",
        "run": "The timer is due now.",
        "moved": "The timer has a new due time.",
    },
    examples=("/timers/new", "/timers?topic=orders&from=15m&to=2d&zone=UTC", "/timers?topic=nothing-here"),
)
