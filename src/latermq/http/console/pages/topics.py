"""The page Topics: what each topic receives and has pending, its queues and newest messages, and sending by hand."""

import asyncio
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from latermq.access.resources import PUB
from latermq.errors import LaterMQError, NoPermission
from latermq.http.console.form_message import FIELDS, message_of
from latermq.http.console.listing import listing
from latermq.http.console.page import Page, PageRow, Redirect, View, Visit
from latermq.http.problems import problem_of, status_of
from latermq.model.topic_access import topic_access

TAIL = 20
AT_ONCE = 8
_NAMES_AGE_S, _TOPIC_AGE_S, _TAIL_AGE_S, _GROUPS_AGE_S = 5.0, 2.0, 1.0, 10.0
_TOPIC = "/api/v1/topics/{topic}"


async def show_list(visit: Visit) -> View:
    """All topics."""
    shows_all = visit.query.get("all", "") == "true"
    found = await visit.api.recent("/api/v1/topics", {"all": shows_all}, max_age_s=_NAMES_AGE_S)
    page = listing(visit, found.topics, lambda name: name, "/topics")
    turns = asyncio.Semaphore(AT_ONCE)

    async def describe(name: str) -> Any:
        async with turns:
            try:
                return await visit.api.recent(_TOPIC, parts={"topic": name}, max_age_s=_TOPIC_AGE_S)
            except NoPermission:
                return None
            except LaterMQError as error:
                return problem_of(error)

    described = await asyncio.gather(*map(describe, page.rows))
    rows = list(zip(page.rows, described, strict=True))
    shown = {"listing": page, "rows": rows, "shows_all": shows_all, "is_partial": found.is_partial}
    return View("topics.html", shown)


async def show_topic(visit: Visit) -> View:
    """One topic with its queues and newest messages."""
    parts = {"topic": visit.path["topic"]}
    topic = await visit.api.recent(_TOPIC, parts=parts, max_age_s=_TOPIC_AGE_S)
    newest, tail_problem = [], None
    try:
        query = {"limit": TAIL}
        newest = (await visit.api.recent(_TOPIC + "/messages", query, parts, max_age_s=_TAIL_AGE_S)).messages
    except LaterMQError as error:
        tail_problem = problem_of(error)
    shown = {
        "topic": topic,
        "newest": newest,
        "tail_problem": tail_problem,
        "consumers": await _consumers(visit, topic.topic),
        "last_ms": max((queue.last_stored_ms for queue in topic.queues), default=0),
        "may_publish": visit.api.may(topic_access(topic.topic, (PUB,))),
        "now_ms": visit.now_ms,
    }
    return View("topic.html", shown, topic.topic)


async def _consumers(visit: Visit, topic: str) -> list[Any]:
    """Return the groups that consume a topic. The page can do without them."""
    try:
        groups = (await visit.api.recent("/api/v1/groups", {"lag": True}, max_age_s=_GROUPS_AGE_S)).groups
    except LaterMQError:
        return []
    return [group for group in groups if topic in (group.topics or ())]


async def show_new(visit: Visit) -> View:
    """The form of a message."""
    return _new_view(visit, {name: visit.query.get(name, "") for name in FIELDS})


async def send(visit: Visit) -> View | Redirect:
    """Send the message of the form."""
    fields = {name: visit.form.get(name, "") for name in FIELDS}
    fields["topic"] = visit.path["topic"]
    try:
        await visit.api.call("POST", "/api/v1/messages", body=message_of(fields))
    except LaterMQError as error:
        return _new_view(visit, fields, error)
    return Redirect(f"/topics/{quote(fields['topic'], safe='')}", "sent")


def _new_view(visit: Visit, fields: dict[str, str], error: LaterMQError | None = None) -> View:
    shown = {
        "topic": visit.path["topic"],
        "fields": fields,
        "problem": problem_of(error) if error is not None else None,
    }
    status = HTTPStatus(status_of(error)) if error is not None else HTTPStatus.OK
    return View("new_message.html", shown, "Send a message", status)


PAGE = Page(
    "Topics",
    [
        PageRow("GET", "/topics", show_list),
        PageRow("GET", "/topics/{topic}", show_topic),
        PageRow("GET", "/topics/{topic}/send", show_new),
        PageRow("POST", "/topics/{topic}/send", send),
    ],
    needs=("/api/v1/topics",),
    notes={"sent": "The message is stored."},
    examples=("/topics?all=true", "/topics?name=nothing-here", "/topics/orders", "/topics/orders/send"),
)
