"""The page Groups: how far consumers are, who they are, and where a group continues."""

from http import HTTPStatus
from typing import Any, NamedTuple
from urllib.parse import quote

from latermq.access.resources import UPDATE
from latermq.errors import InvalidParameter, LaterMQError
from latermq.http.api.access_rules import group_access
from latermq.http.api.groups import GroupInfo
from latermq.http.console.listing import listing
from latermq.http.console.moments import parse_moment_ms
from latermq.http.console.page import Page, PageRow, Redirect, View, Visit
from latermq.http.problems import problem_of, status_of
from latermq.http.timer_request import time_text
from latermq.message.names import RETRY_PREFIX
from latermq.model.topic_access import topic_access

_AGE_S = 3.0
_GROUP, _RESET = "/api/v1/groups/{group}", "/api/v1/groups/{group}/offsets:reset"


class Preview(NamedTuple):
    """What a reset would change. `to` is what the API is given, and `ahead` the messages that are read again."""

    topic: str
    to: str
    queues: list[Any]
    ahead: int
    skipped: int


async def show_list(visit: Visit) -> View:
    """All groups, those with the largest lag first."""
    found = await visit.api.recent("/api/v1/groups", {"lag": True}, max_age_s=_AGE_S)
    ordered = sorted(found.groups, key=lambda group: (-(group.lag or 0), group.group))
    page = listing(visit, ordered, lambda group: group.group, "/groups")
    return View("groups.html", {"listing": page, "state_of": state_of, "is_partial": found.is_partial})


def state_of(group: GroupInfo) -> tuple[str, str]:
    """Return how a group does, in a word, and the class that colours it."""
    if not group.can_consume:
        return "consumption disabled", "warn"
    if not group.members:
        return ("no member", "warn") if group.lag else ("idle", "soft")
    return ("behind", "near") if group.lag else ("up to date", "good")


async def show_group(visit: Visit) -> View:
    """One group with its members, its progress, and the form of a reset."""
    return await _group_view(visit)


async def _group_view(visit: Visit, preview: Preview | None = None, error: LaterMQError | None = None) -> View:
    group = await visit.api.get(_GROUP, parts={"group": visit.path["group"]})
    topics = sorted({queue.topic for queue in group.queues})
    shown = {
        "group": group,
        "topics": [
            topic
            for topic in topics
            if not topic.startswith(RETRY_PREFIX) and visit.api.may(topic_access(topic, (UPDATE,)))
        ],
        "may_reset": visit.api.may(group_access(group.group, UPDATE)),
        "wanted": {name: visit.form.get(name, "") for name in ("topic", "to", "when")},
        "preview": preview,
        "problem": problem_of(error) if error is not None else None,
        "now_ms": visit.now_ms,
    }
    status = HTTPStatus(status_of(error)) if error is not None else HTTPStatus.OK
    return View("group.html", shown, f"Group {group.group}", status)


async def reset(visit: Visit) -> View | Redirect:
    """Show what a reset would change, or make it if it was shown before."""
    group, topic = visit.path["group"], visit.form.get("topic", "").strip()
    parts = {"group": group}
    try:
        if not topic:
            raise InvalidParameter("the topic is missing", hint="Choose a topic of the group")
        body = {"topic": topic, "to": _position(visit)}
        if visit.form.get("confirmed"):
            await visit.api.call("POST", _RESET, body=body, parts=parts)
            return Redirect(f"/groups/{quote(group, safe='')}", "reset")
        report: Any = (await visit.api.call("POST", _RESET, body=body | {"dry_run": True}, parts=parts)).body
    except LaterMQError as error:
        return await _group_view(visit, None, error)
    moves = [queue.after - max(0, queue.before) for queue in report.queues]
    ahead, skipped = -sum(move for move in moves if move < 0), sum(move for move in moves if move > 0)
    return await _group_view(visit, Preview(topic, body["to"], report.queues, ahead, skipped))


def _position(visit: Visit) -> str:
    """Return where a group is to continue, as the API has it."""
    to = visit.form.get("to", "")
    if to != "time":
        return to
    when = visit.form.get("when", "").strip()
    if not when:
        raise InvalidParameter("the time is missing", hint="Write 2027-01-31 09:00")
    return time_text(parse_moment_ms(when, visit.zone, visit.now_ms))


PAGE = Page(
    "Groups",
    [
        PageRow("GET", "/groups", show_list),
        PageRow("GET", "/groups/{group}", show_group),
        PageRow("POST", "/groups/{group}/reset", reset),
    ],
    needs=("/api/v1/groups",),
    notes={"reset": "The group continues at its new offsets."},
    examples=("/groups?name=nothing-here", "/groups/closer"),
)
