"""The page Messages: stored messages by key or id, and what happened to one."""

import asyncio
import json
from http import HTTPStatus
from typing import Any

from latermq.errors import LaterMQError, QueryNotFound, TopicNotFound
from latermq.http.api.topics import MessageInfo, MessageList
from latermq.http.console.page import Page, PageRow, View, Visit
from latermq.http.problems import problem_of, status_of

ROWS = 50
MAX_TOPICS_OFFERED = 500
_PATH = "/api/v1/messages"
_TOPICS_AGE_S = 10.0


async def search(visit: Visit) -> View:
    """Messages of a topic with a key or an id."""
    wanted = {name: visit.query.get(name, "").strip() for name in ("topic", "key")}
    shown: dict[str, Any] = {
        "wanted": wanted,
        "topics": await _topics(visit),
        "found": None,
        "problem": None,
        "missing": "",
    }
    if not all(wanted.values()):
        shown["missing"] = next((name for name in wanted if not wanted[name] and any(wanted.values())), "")
        return View("messages.html", shown)
    by_name = await asyncio.gather(*(_find(visit, wanted["topic"], name, wanted["key"]) for name in ("key", "id")))
    messages = [message for found in by_name if isinstance(found, MessageList) for message in found.messages]
    problem = next((found for found in by_name if isinstance(found, LaterMQError)), None)
    if not messages and problem is not None:
        shown["problem"] = problem_of(problem)
        return View("messages.html", shown, status=HTTPStatus(status_of(problem)))
    shown["found"] = messages
    return View("messages.html", shown)


async def _find(visit: Visit, topic: str, name: str, value: str) -> MessageList | LaterMQError:
    """Return the messages with a key or an id, none if there are none."""
    try:
        found = await visit.api.get(_PATH, {"topic": topic, name: value, "limit": ROWS})
    except (QueryNotFound, TopicNotFound):
        return MessageList([])
    except LaterMQError as error:
        return error
    assert isinstance(found, MessageList)
    return found


async def _topics(visit: Visit) -> list[str]:
    """Return names to choose from. Without them a name can still be typed."""
    try:
        names = (await visit.api.recent("/api/v1/topics", {"all": True}, max_age_s=_TOPICS_AGE_S)).topics
    except LaterMQError:
        return []
    return list(names[:MAX_TOPICS_OFFERED])


async def show_message(visit: Visit) -> View:
    """One message."""
    topic, message_id = visit.path["topic"], visit.path["id"]
    messages = (await visit.api.get(_PATH, {"topic": topic, "id": message_id, "limit": ROWS})).messages
    shown = {"message": messages[-1], "copies": messages, "body": readable_body(messages[-1])}
    return View("message.html", shown, f"Message {message_id}")


def readable_body(message: MessageInfo) -> str:
    """Return the body as people read it: JSON is indented. Empty if it is not text."""
    if not message.body.lstrip().startswith(("{", "[")):
        return message.body
    try:
        return json.dumps(json.loads(message.body), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return message.body


PAGE = Page(
    "Messages",
    [
        PageRow("GET", "/messages", search),
        PageRow("GET", "/messages/{topic}/{id}", show_message),
    ],
    examples=("/messages?topic=orders&key=order-1", "/messages?topic=orders&key=nothing-here"),
)
