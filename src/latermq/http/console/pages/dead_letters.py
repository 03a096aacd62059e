"""The page Dead letters: what each group gave up, why, and sending it again."""

from http import HTTPStatus
from typing import Any
from urllib.parse import quote, urlencode

from latermq.access.resources import SUB
from latermq.errors import InvalidParameter, LaterMQError
from latermq.http.api.access_rules import dead_letter_access
from latermq.http.console.page import Page, PageRow, Redirect, View, Visit
from latermq.http.problems import problem_of, status_of

ROWS = 50
_COUNTS, _LIST = "/api/v1/dead-letters", "/api/v1/dead-letters/{group}"
_COUNTS_AGE_S = 3.0


async def show_list(visit: Visit) -> View:
    """All groups with dead letters."""
    counts = await visit.api.recent(_COUNTS, max_age_s=_COUNTS_AGE_S)
    groups = sorted((one for one in counts.groups if one.messages), key=lambda one: (-one.last_stored_ms, one.group))
    return View("dead_letters.html", {"groups": groups, "now_ms": visit.now_ms, "is_partial": counts.is_partial})


async def show_group(visit: Visit) -> View:
    """The dead letters of one group."""
    return await _group_view(visit)


async def _group_view(visit: Visit, report: Any = None, error: LaterMQError | None = None) -> View:
    group = visit.path["group"]
    wanted = {name: visit.query.get(name, "").strip() for name in ("key", "cursor")}
    page = await visit.api.get(_LIST, {**wanted, "limit": ROWS}, {"group": group})
    counts = (await visit.api.recent(_COUNTS, max_age_s=_COUNTS_AGE_S)).groups
    following = {name: value for name, value in (("key", wanted["key"]), ("cursor", page.next)) if value}
    shown = {
        "group": group,
        "page": page,
        "wanted": wanted,
        "count": next((one.messages for one in counts if one.group == group), 0),
        "next": f"/dead-letters/{quote(group, safe='')}?{urlencode(following)}" if page.next else "",
        "report": report,
        "may_resend": visit.api.has("POST", _LIST + "/resend") and visit.api.may(dead_letter_access(group, (SUB,))),
        "failed": [one for one in report.messages if one.problem is not None] if report else [],
        "topic": visit.form.get("topic", ""),
        "problem": problem_of(error) if error is not None else None,
    }
    status = HTTPStatus(status_of(error)) if error is not None else HTTPStatus.OK
    return View("dead_letters_of_group.html", shown, f"Dead letters of {group}", status)


async def resend(visit: Visit) -> View | Redirect:
    """Send the picked dead letters again."""
    ids = visit.form.getlist("id")
    group = visit.path["group"]
    try:
        if not ids:
            raise InvalidParameter("no dead letter is picked", hint="Tick those to send again")
        body = {"ids": ids, "topic": visit.form.get("topic", "").strip()}
        answer = await visit.api.call("POST", _LIST + "/resend", body=body, parts={"group": group})
    except LaterMQError as error:
        return await _group_view(visit, None, error)
    report: Any = answer.body
    if any(one.problem is not None for one in report.messages):
        return await _group_view(visit, report)
    return Redirect(f"/dead-letters/{quote(group, safe='')}", "resent")


PAGE = Page(
    "Dead letters",
    [
        PageRow("GET", "/dead-letters", show_list),
        PageRow("GET", "/dead-letters/{group}", show_group),
        PageRow("POST", "/dead-letters/{group}/resend", resend),
    ],
    needs=("/api/v1/dead-letters",),
    notes={
        "resent": "The messages are in their topics again. Their dead letters are kept until retention removes them."
    },
    examples=("/dead-letters/closer", "/dead-letters/closer?key=nothing-here"),
)
