"""The HTTP/1.1 server: uvicorn, with time limits for headers and unread answers, and a stop that ends event streams."""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Iterator
from http import HTTPStatus
from typing import Any, cast

import h11
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from latermq.config import HttpConfig
from latermq.http.problems import AnswerUnread, HttpError, problem_response
from latermq.tls.front import TlsFront

BACKLOG = 1024
KEEP_ALIVE_S = 30
MAX_HEADER_BYTES = 32 << 10


def _connection_class(config: HttpConfig) -> type[H11Protocol]:
    header_timeout_s, stalled_timeout_s = config.header_timeout / 1000, config.stalled_timeout / 1000

    class Connection(H11Protocol):
        """A connection that ends if a request does not arrive, or its answer is not read."""

        _deadline: asyncio.TimerHandle | None = None
        _unsent_check: asyncio.TimerHandle | None = None
        _unsent_bytes = 0

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._served = _too_many_connections if len(self.connections) > config.max_connections else self.app
            self.app = self._serve
            self._check_unsent()
            self._watch()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._watch()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_watching()
            if self._unsent_check is not None:
                self._unsent_check.cancel()
            super().connection_lost(exc)

        async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
            served = _ambiguous_body if _is_ambiguous(scope) else self._served
            try:
                await served(scope, receive, send)
            except AnswerUnread:
                self.transport.abort()
                while (await receive())["type"] != "http.disconnect":
                    pass

        def _check_unsent(self) -> None:
            """Close the connection if the peer has read none of the unsent bytes since the last check.

            A connection that is already closed stays open until the peer has read the last answer.
            """
            unsent_bytes = self.transport.get_write_buffer_size()
            if unsent_bytes and unsent_bytes == self._unsent_bytes:
                self.transport.abort()
                return
            self._unsent_bytes = unsent_bytes
            self._unsent_check = self.loop.call_later(stalled_timeout_s, self._check_unsent)

        def send_400_response(self, msg: str) -> None:
            """Answer what is not HTTP, or has too long a head, and close the connection."""
            error = HttpError(
                HTTPStatus.BAD_REQUEST, msg.rstrip("."), hint=f"A head has up to {MAX_HEADER_BYTES} bytes"
            )
            answer = problem_response(error)
            headers = [*answer.raw_headers, (b"connection", b"close")]
            self.transport.write(self.conn.send(h11.Response(status_code=answer.status_code, headers=headers)) or b"")
            self.transport.write(self.conn.send(h11.Data(data=bytes(answer.body))) or b"")
            self.transport.write(self.conn.send(h11.EndOfMessage()) or b"")
            self.transport.close()

        def _watch(self) -> None:
            """Start the clock when a request begins to arrive, and stop it when its headers are complete."""
            is_arriving = self.conn.their_state is h11.IDLE and self.timeout_keep_alive_task is None
            if not is_arriving:
                self._stop_watching()
            elif self._deadline is None and not self.transport.is_closing():
                self._deadline = self.loop.call_later(header_timeout_s, self.transport.abort)

        def _stop_watching(self) -> None:
            if self._deadline is not None:
                self._deadline.cancel()
                self._deadline = None

    return Connection


def _connections(config: HttpConfig, tls: TlsFront | None) -> Callable[..., asyncio.Protocol]:
    """What makes the protocol of a new socket, with uvicorn's arguments."""
    new = _connection_class(config)
    return new if tls is None else lambda **arguments: tls.wrap(new(**arguments))


def _is_ambiguous(scope: Scope) -> bool:
    """Whether a proxy in front may have found another end of the body, and taken the rest for another request."""
    return {b"content-length", b"transfer-encoding"} <= {name for name, _ in scope.get("headers", ())}


def _refusal(status: HTTPStatus, message: str, hint: str) -> ASGIApp:
    """Answers any request with an error, and closes its connection."""

    async def refuse(scope: Scope, receive: Receive, send: Send) -> None:
        error = HttpError(status, message, hint=hint, headers={"Connection": "close"})
        await problem_response(error)(scope, receive, send)

    return refuse


_ambiguous_body = _refusal(
    HTTPStatus.BAD_REQUEST, "the request has both Content-Length and Transfer-Encoding", "Send one of them"
)
_too_many_connections = _refusal(
    HTTPStatus.SERVICE_UNAVAILABLE,
    "there are more connections than http.max_connections",
    "Close some, or try again a moment later",
)


class HttpListener(uvicorn.Server):
    """A listening socket that serves one application."""

    def __init__(
        self, app: ASGIApp, config: HttpConfig, before_stop: Callable[[], None], tls: TlsFront | None = None
    ) -> None:
        """`before_stop` ends answers that do not end by themselves."""
        logging.getLogger("uvicorn").setLevel(logging.ERROR)  # the access log has the requests
        super().__init__(
            uvicorn.Config(
                app,
                http=cast(type[asyncio.Protocol], _connections(config, tls)),
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=max(1, config.stop_timeout // 1000),
                h11_max_incomplete_event_size=MAX_HEADER_BYTES,
            )
        )
        self._before_stop = before_stop
        self._address = (config.host, config.port)
        self._serving: asyncio.Task[None] | None = None
        self.port = 0  # the actual port, also if port 0 was requested

    @property
    def connections(self) -> int:
        """The number of open connections."""
        return len(self.server_state.connections)

    async def start(self) -> None:
        """Accept connections. Raises OSError if the address is unavailable."""
        host, _ = self._address
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.create_server(self._address, family=family, backlog=BACKLOG)
        self.port = listening.getsockname()[1]
        self._serving = asyncio.create_task(self.serve(sockets=[listening]))
        while not self.started:
            if self._serving.done():
                await self._serving
            await asyncio.sleep(0)

    async def stop(self) -> None:
        """Stop accepting, and finish the requests in flight."""
        if self._serving is not None:
            self._before_stop()
            self.should_exit = True
            await self._serving

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the process."""
        yield
