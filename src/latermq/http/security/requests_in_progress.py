"""Bounds on requests in progress: their number, their bodies, and the time that each may take."""

import asyncio
from http import HTTPStatus

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from latermq.config import HttpConfig
from latermq.http.problems import AnswerUnread, HttpError, problem_response

STREAM_PATHS = frozenset({"/live"})  # they last as long as their reader wants, and have a limit of their own
HEALTH_PATHS = frozenset({"/healthz", "/readyz"})  # answered however busy the process is
CHUNK_BYTES = 64 << 10


class RequestsInProgress:
    """Reads the body of each request, calls the application, and ends both after `http.request_timeout`."""

    def __init__(self, app: ASGIApp, config: HttpConfig) -> None:
        self._app = app
        self._config = config
        self.count = 0
        self.held_bytes = 0
        self.refused = 0
        self.timed_out = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in STREAM_PATHS:
            await self._app(scope, receive, send)
            return
        request = _Request(self, scope, receive, send)
        try:
            async with asyncio.timeout(self.timeout_s) as request.deadline:
                await request.serve()
        except TimeoutError:
            self.timed_out += 1
            await request.refuse(
                HttpError(
                    HTTPStatus.GATEWAY_TIMEOUT if request.is_read else HTTPStatus.REQUEST_TIMEOUT,
                    f"the request was not answered within {self._config.request_timeout} ms",
                    hint="Try again, ask for less, or raise http.request_timeout. A change may have been made",
                )
            )
        except HttpError as error:
            self.refused += 1
            await request.refuse(error)
        finally:
            request.release()

    @property
    def timeout_s(self) -> float:
        """How long a request, or a part of its answer, may take."""
        return self._config.request_timeout / 1000

    async def run(self, request: "_Request") -> None:
        """Serve a request whose body has been read."""
        await self._app(request.scope, request.replay, request.send)

    def admit(self, path: str) -> None:
        """Count a request, or refuse it."""
        if path not in HEALTH_PATHS and self.count >= self._config.max_requests:
            raise HttpError(
                HTTPStatus.SERVICE_UNAVAILABLE,
                f"{self.count} requests are in progress, the limit is http.max_requests",
                hint="Try again a moment later",
            )

    def hold(self, size_bytes: int) -> None:
        """Reserve memory for a part of a body, or refuse it."""
        if self.held_bytes + size_bytes > self._config.max_held:
            raise HttpError(
                HTTPStatus.SERVICE_UNAVAILABLE,
                "the bodies of the requests in progress have reached http.max_held",
                hint="Try again a moment later, or send smaller batches",
            )
        self.held_bytes += size_bytes

    def check_size(self, size_bytes: int) -> None:
        """Refuse a body that is too large."""
        if size_bytes > self._config.max_body:
            raise HttpError(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                f"the body has more than {int(self._config.max_body)} bytes, the limit of http.max_body",
                hint="Send several smaller requests",
            )


class _Request:
    """One request: its body, and whether its answer has begun."""

    def __init__(self, owner: RequestsInProgress, scope: Scope, receive: Receive, send: Send) -> None:
        self.scope = scope
        self.is_read = False
        self.deadline: asyncio.Timeout | None = None
        self._owner = owner
        self._receive = receive
        self._send = send
        self._body = bytearray()
        self._held_bytes = 0
        self._is_counted = False
        self._has_started = False
        self._is_replayed = False

    async def serve(self) -> None:
        owner = self._owner
        owner.admit(self.scope["path"])
        owner.count += 1
        self._is_counted = True
        length = Headers(scope=self.scope).get("content-length", "")
        if length.isascii() and length.isdigit():
            owner.check_size(int(length[:20]))
        while True:
            message = await self._receive()
            if message["type"] != "http.request":  # the client has gone
                return
            part = message.get("body", b"")
            owner.check_size(len(self._body) + len(part))
            owner.hold(len(part))
            self._held_bytes += len(part)
            self._body += part
            if not message.get("more_body", False):
                break
        self.is_read = True
        await owner.run(self)

    async def replay(self) -> Message:
        """Give the application the whole body, then whatever the connection reports."""
        if self._is_replayed:
            return await self._receive()
        self._is_replayed = True
        return {"type": "http.request", "body": bytes(self._body), "more_body": False}

    async def send(self, message: Message) -> None:
        self._has_started = True
        if message.get("more_body", False) and self.deadline is not None and not self.deadline.expired():
            # An answer in parts may be long. Each part has the time of a request.
            self.deadline.reschedule(asyncio.get_running_loop().time() + self._owner.timeout_s)
        await self._send(message)

    async def refuse(self, error: HttpError) -> None:
        """Answer with an error. If the body was not read, the connection cannot be used for another request."""
        if self._has_started:
            raise AnswerUnread from error
        if not self.is_read:
            error.headers = {**error.headers, "Connection": "close"}
        await problem_response(error)(self.scope, self._receive, self._send)

    def release(self) -> None:
        self._owner.held_bytes -= self._held_bytes
        self._owner.count -= self._is_counted
