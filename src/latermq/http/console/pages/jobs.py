"""The page Jobs: timers cancelled or moved and dead letters sent again by filter, with a preview and progress."""

import secrets
from http import HTTPStatus
from typing import Any
from urllib.parse import urlencode

from latermq.access.resources import PUB, UPDATE
from latermq.errors import InvalidParameter, LaterMQError
from latermq.http.api.access_rules import ALL_TOPICS, cluster_access, job_accesses, timer_accesses
from latermq.http.console.moments import due_of, parse_moment_ms
from latermq.http.console.page import Page, PageRow, Redirect, View, Visit
from latermq.http.problems import problem_of, status_of
from latermq.http.security.roles import Role
from latermq.model.topic_access import topic_access

ACTIONS = {"cancel": "Cancel many timers", "move": "Move many timers", "resend": "Send dead letters again"}
FILTER = ("topic", "key", "tag", "from", "to")
SHOWN = 10  # of what matches
IMPOSSIBLE_ROWS = 50
_CHOICES = ("by", "when", "to_topic", "per_second")
_JOBS, _JOB = "/api/v1/jobs", "/api/v1/jobs/{id}"
_LIST_AGE_S = 1.0


async def show_list(visit: Visit) -> View:
    """All jobs."""
    found = await visit.api.recent(_JOBS, max_age_s=_LIST_AGE_S)
    shown = {
        "jobs": found.jobs,
        "is_durable": found.is_durable,
        "is_partial": found.is_partial,
        "describe": describe,
    }
    return View("jobs.html", shown)


def describe(job: Any) -> str:
    """Return what a job does, in one sentence."""
    order = job.order
    what = f"dead letters of {order.group}" if order.action == "resend" else "timers"
    verb = {"cancel": "Cancel", "move": "Move", "resend": "Send again"}[order.action]
    of = f" of {order.topic}" if order.topic else ""
    key = f" with the key {order.key}" if order.key else ""
    tag = f" with the tag {order.tag}" if order.tag else ""
    return f"{verb} {what}{of}{key}{tag}"


async def show_job(visit: Visit) -> View:
    """One job with its progress."""
    parts = {"id": visit.path["id"]}
    job = await visit.api.get(_JOB, parts=parts)
    cursor = visit.query.get("cursor", "")
    impossible = None
    if job.impossible:
        impossible = await visit.api.get(_JOB + "/impossible", {"limit": IMPOSSIBLE_ROWS, "cursor": cursor}, parts)
    shown = {
        "job": job,
        "what": describe(job),
        "impossible": impossible,
        "cursor": cursor,
        "next": f"/jobs/{job.id}?cursor={impossible.next}" if impossible and impossible.next else "",
        "is_finished": job.state in ("done", "aborted", "failed"),
        "may_change": visit.api.may(cluster_access(UPDATE)) or visit.api.may(*job_accesses(job.order)),
        "now_ms": visit.now_ms,
    }
    return View("job.html", shown, f"Job {job.id}")


async def abort(visit: Visit) -> Redirect:
    """End a job after its current step."""
    await visit.api.call("POST", _JOB + "/abort", parts={"id": visit.path["id"]})
    return Redirect(f"/jobs/{visit.path['id']}", "aborted")


async def forget(visit: Visit) -> Redirect:
    """Remove a finished job from the list."""
    await visit.api.call("DELETE", _JOB, parts={"id": visit.path["id"]})
    return Redirect("/jobs", "forgotten")


# A new one


async def show_new(visit: Visit) -> View:
    """The filter of a new job, and what it matches."""
    return await _new_view(visit, {name: visit.query.get(name, "") for name in ("action", "group", *FILTER, *_CHOICES)})


async def create(visit: Visit) -> View | Redirect:
    """Begin the job of the form."""
    fields = {name: visit.form.get(name, "") for name in ("action", "group", *FILTER, *_CHOICES)}
    try:
        order = _filter(fields, visit) | _choices(fields, visit)
        order["allow_partial"] = bool(visit.form.get("allow_partial"))
        if not any(fields[name] for name in FILTER):
            order["all"] = bool(visit.form.get("all"))
        # A form that is sent twice begins one job.
        headers = {"Idempotency-Key": visit.form.get("once", "")[:64] or secrets.token_hex(16)}
        job: Any = (await visit.api.call("POST", _JOBS, body=order, headers=headers)).body
    except LaterMQError as error:
        return await _new_view(visit, fields, error)
    return Redirect(f"/jobs/{job.id}")


async def _new_view(visit: Visit, fields: dict[str, str], error: LaterMQError | None = None) -> View:
    fields = {name: value.strip() for name, value in fields.items()}
    action = fields["action"] = fields["action"] if fields["action"] in ACTIONS else "cancel"
    preview, resolved, problem = None, dict[str, Any](), error
    try:
        resolved = _filter(fields, visit)
        # What a move matches does not depend on where to, which may not be filled in yet.
        order = resolved | {"action": "resend" if action == "resend" else "cancel", "dry_run": True}
        if not any(fields[name] for name in FILTER):
            order["all"] = True
        everything = (topic_access(ALL_TOPICS, (PUB,)),) if action == "resend" else timer_accesses("", PUB)
        if not fields["topic"] and not visit.api.may(*everything):
            raise InvalidParameter("choose a topic: you have no right to all of them")
        preview = (await visit.api.call("POST", _JOBS, body=order)).body
    except LaterMQError as failed:
        problem = problem or failed
    shown = {
        "action": action,
        "heading": ACTIONS[action],
        "fields": fields,
        "resolved": resolved,
        "is_filtered": any(fields[name] for name in FILTER),
        "preview": preview,
        "rows": SHOWN,
        "all_path": _all_path(action, fields),
        "once": secrets.token_hex(16),
        "problem": problem_of(problem) if problem is not None else None,
    }
    status = HTTPStatus(status_of(problem)) if problem is not None else HTTPStatus.OK
    return View("new_job.html", shown, ACTIONS[action], status)


def _filter(fields: dict[str, str], visit: Visit) -> dict[str, Any]:
    """Return the filter as the API has it: with absolute times, so that a preview and its job select the same."""
    order: dict[str, Any] = {name: fields[name].strip() for name in ("action", "group", "topic", "key", "tag")}
    for name in ("from", "to"):
        if fields[name].strip():
            order[name] = str(parse_moment_ms(fields[name], visit.zone, visit.now_ms))
    return {name: value for name, value in order.items() if value}


def _choices(fields: dict[str, str], visit: Visit) -> dict[str, Any]:
    """Return where to and how fast, as the API has it."""
    order: dict[str, Any] = {}
    by, when, rate = (fields[name].strip() for name in ("by", "when", "per_second"))
    if fields["action"] == "move" and bool(by) == bool(when):
        raise InvalidParameter("say either by how much the timers move, or when all of them are due")
    if by:
        order["by"] = by.removeprefix("+")
    if when:
        order |= due_of(when, visit.zone, visit.now_ms)
    if rate:
        if not (rate.isascii() and rate.isdigit() and 0 < len(rate) < 8):
            raise InvalidParameter(f"{rate[:20]!r} is not a rate", hint="Write a number per second, such as 500")
        order["per_second"] = int(rate)
    if fields["to_topic"].strip():
        order["to_topic"] = fields["to_topic"].strip()
    return order


def _all_path(action: str, fields: dict[str, str]) -> str:
    """Return the address of the list that the preview is the start of."""
    given = {name: fields[name] for name in FILTER if fields[name] and name != "tag"}
    return f"/dead-letters/{fields['group']}" if action == "resend" else f"/timers?{urlencode(given)}"


PAGE = Page(
    "Jobs",
    [
        PageRow("GET", "/jobs", show_list),
        PageRow("GET", "/jobs/new", show_new, Role.OPERATOR),
        PageRow("POST", "/jobs/new", create),
        PageRow("GET", "/jobs/{id}", show_job),
        PageRow("POST", "/jobs/{id}/abort", abort),
        PageRow("POST", "/jobs/{id}/forget", forget),
    ],
    needs=("/api/v1/jobs",),
    notes={
        "aborted": "The job ends after its current step. What it has changed stays changed.",
        "forgotten": "The job is no longer listed.",
    },
    examples=(
        "/jobs/new?action=cancel&topic=orders",
        "/jobs/new?action=move&topic=orders&to=1h",
        "/jobs/new?action=resend&group=closer",
    ),
)
