"""The time that a request may take: the whole of it, or each part of an answer that is sent in parts."""

import asyncio

import pytest
from starlette.types import Message, Receive, Scope, Send

from latermq.config import Duration, HttpConfig
from latermq.http.problems import AnswerUnread
from latermq.http.security.requests_in_progress import RequestsInProgress

TIMEOUT_S = 0.3
PAUSE_S = TIMEOUT_S / 3
PARTS = 6  # together twice the time of a request
SCOPE: Scope = {"type": "http", "path": "/export", "headers": []}


async def parts(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    for _ in range(PARTS):
        await asyncio.sleep(PAUSE_S)
        await send({"type": "http.response.body", "body": b"part", "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def one_part_and_no_more(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"part", "more_body": True})
    await asyncio.sleep(60)


async def whole(scope: Scope, receive: Receive, send: Send) -> None:
    await asyncio.sleep(60)


def answer(app: object) -> tuple[list[Message], RequestsInProgress]:
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    guard = RequestsInProgress(app, HttpConfig(request_timeout=Duration(TIMEOUT_S * 1000)))  # type: ignore[arg-type]
    asyncio.run(guard(SCOPE, receive, send))
    return sent, guard


def test_an_answer_in_parts_may_take_longer_than_a_request() -> None:
    sent, guard = answer(parts)
    assert b"".join(message.get("body", b"") for message in sent) == b"part" * PARTS
    assert (guard.timed_out, guard.count) == (0, 0)


def test_an_answer_whose_next_part_does_not_come_closes_the_connection() -> None:
    with pytest.raises(AnswerUnread):
        answer(one_part_and_no_more)


def test_an_answer_that_does_not_come_is_refused() -> None:
    sent, guard = answer(whole)
    assert sent[0]["status"] == 504
    assert guard.timed_out == 1
