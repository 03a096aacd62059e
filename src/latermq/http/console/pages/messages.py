"""The page Messages: stored messages by key or id, and what became of them."""

import asyncio
import json
from http import HTTPStatus
from typing import Any

from latermq.errors import InvalidParameter, LaterMQError, QueryNotFound, TopicNotFound
from latermq.http.api.topics import MessageInfo, MessageList
from latermq.http.console.page import Page, PageRow, View, Visit
from latermq.http.problems import problem_of, status_of

ROWS = 50
MAX_TOPICS_OFFERED = 500
_PATH, _TRACE = "/api/v1/messages", "/api/v1/messages/trace"
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
    query = {"topic": topic, "id": message_id}
    messages = (await visit.api.get(_PATH, query | {"limit": ROWS})).messages
    shown: dict[str, Any] = {"message": messages[-1], "copies": messages, "body": readable_body(messages[-1])}
    shown |= {"trace": None, "trace_problem": None}
    try:
        shown["trace"] = next(iter((await visit.api.get(_TRACE, query)).messages), None)
    except LaterMQError as error:
        shown["trace_problem"] = problem_of(error)
    return View("message.html", shown, f"Message {message_id}")


async def show_trace(visit: Visit) -> View:
    """What became of the messages with a key or an id, also of those that are not delivered yet."""
    topic, key = (visit.query.get(name, "").strip() for name in ("topic", "key"))
    shown: dict[str, Any] = {"topic": topic, "key": key, "traces": [], "left_out": 0, "problem": None}
    if not topic or not key:
        raise InvalidParameter("the topic or the key is missing", hint="Search on the page Messages")
    for name in ("key", "id"):
        try:
            found = await visit.api.get(_TRACE, {"topic": topic, name: key})
        except (QueryNotFound, TopicNotFound):
            continue
        except LaterMQError as error:
            shown["problem"] = problem_of(error)
            return View("trace.html", shown, f"Trace of {key}", HTTPStatus(status_of(error)))
        shown |= {"traces": found.messages, "left_out": found.left_out}
        break
    return View("trace.html", shown, f"Trace of {key}")


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
        PageRow("GET", "/messages/trace", show_trace),
        PageRow("GET", "/messages/{topic}/{id}", show_message),
    ],
    examples=(
        "/messages?topic=orders&key=order-1",
        "/messages?topic=orders&key=nothing-here",
        "/messages/trace?topic=orders&key=order-1",
        "/messages/trace?topic=orders&key=nothing-here",
    ),
)
