"""The state of all brokers as server-sent events."""

import asyncio
import contextlib
from http import HTTPStatus

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from latermq.access.resources import GET
from latermq.config import HttpConfig
from latermq.errors import LaterMQError
from latermq.http.api.access_rules import cluster_access
from latermq.http.collector import Collector
from latermq.http.problems import AnswerUnread, problem_response
from latermq.http.security.roles import Identity, identity_of

LIVE_PATH = "/live"
HEADERS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"x-accel-buffering", b"no")]
_RETRY = b"retry: 1000\n\n"  # how long a browser waits before it connects again, in milliseconds


class LiveApi:
    """Answers GET /live. It is not a row of the route table, because its answer never ends."""

    def __init__(self, collector: Collector, config: HttpConfig) -> None:
        self._collector = collector
        self._stalled_timeout_s = config.stalled_timeout / 1000

    @property
    def routes(self) -> list[Route]:
        return [Route(LIVE_PATH, self._serve, methods=["GET"])]

    async def _serve(self, request: Request) -> Response:
        identity = identity_of(request.scope)
        try:
            if identity.rights is not None:
                identity.rights.check(f"GET {LIVE_PATH}", [cluster_access(GET)], {}, is_change=False)
            self._collector.check_room()
        except LaterMQError as error:
            return problem_response(error)
        if request.method == "HEAD":
            return Response(None, HTTPStatus.OK, media_type="text/event-stream")
        return _EventStream(self._collector, self._stalled_timeout_s, identity)


class _EventStream(Response):
    """Sends events until the reader has gone, reads nothing for too long, or the process stops."""

    def __init__(self, collector: Collector, stalled_timeout_s: float, identity: Identity) -> None:
        self.background = None
        self._collector = collector
        self._stalled_timeout_s = stalled_timeout_s
        self._rights = identity.rights

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = asyncio.create_task(self._send_events(send))
        leaving = asyncio.create_task(_disconnect(receive))
        try:
            await asyncio.wait([sending, leaving], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sending, leaving):
                task.cancel()
            ends = await asyncio.gather(sending, leaving, return_exceptions=True)
        if isinstance(ends[0], TimeoutError):
            raise AnswerUnread

    async def _send_events(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": HTTPStatus.OK, "headers": HEADERS})
        await send({"type": "http.response.body", "body": _RETRY, "more_body": True})
        async with contextlib.aclosing(self._collector.stream()) as events:
            async for event in events:
                if self._rights is not None and not self._rights.may([cluster_access(GET)]):
                    break  # the user or its rights have changed
                async with asyncio.timeout(self._stalled_timeout_s):
                    await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
