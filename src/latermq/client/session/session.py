"""The session that every client is built on: identity, connections, routes, heartbeats and requests from servers."""

import asyncio
import contextlib
import logging
import os
import socket
import time
from collections.abc import Awaitable, Callable, Iterable
from types import TracebackType
from typing import Self

from latermq.client.session.connection import Connection, Connections, split_address
from latermq.client.session.credentials import Credentials, chosen_credentials
from latermq.client.session.failures import ClientClosed
from latermq.client.session.routes import REFRESH_S, Routes
from latermq.errors import LaterMQError
from latermq.protocol.remoting.clients import HeartbeatData
from latermq.protocol.remoting.codes import Request, Response
from latermq.protocol.remoting.frames import Command, encode_response
from latermq.protocol.remoting.json_body import encode_body
from latermq.tls.client import ClientTls, chosen_tls

_log = logging.getLogger("latermq.client")

HEARTBEAT_S = 30.0
FAILED_HEARTBEAT_PAUSE_S = 1.0
MAX_SERVER_REQUESTS = 64

ServerRequestHandler = Callable[[Command], Awaitable[bytes | None]]


def local_ip(server: str) -> str:
    """Return the local address that is used to reach `server`. This sends no packet."""
    host, port = split_address(server)
    try:
        family, kind, _, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(target)
            return str(probe.getsockname()[0])
    except OSError:
        return "127.0.0.1"


class Session:
    """The shared state and background tasks of one client, from `start` to `close`."""

    def __init__(
        self,
        namesrv: str,
        *,
        instance: str = "",
        encoding: str = "json",
        tls: ClientTls | bool | None = None,
        credentials: Credentials | bool | None = None,
        request_timeout_s: float = 3.0,
        heartbeat_every_s: float = HEARTBEAT_S,
        refresh_routes_every_s: float = REFRESH_S,
    ) -> None:
        self.request_timeout_s = request_timeout_s
        self.connections = Connections(
            on_request=self._on_request,
            encoding=encoding,
            connect_timeout_s=request_timeout_s,
            tls=chosen_tls(tls),
            credentials=chosen_credentials(credentials),
        )
        self.routes = Routes(self.connections, namesrv, timeout_s=request_timeout_s)
        self.ip = local_ip(self.routes.servers[0])
        self.client_id = f"{self.ip}@{instance or f'{os.getpid()}#{time.monotonic_ns()}'}"
        self.heartbeat: Callable[[], HeartbeatData] | None = None
        self.on_routes_refreshed: Callable[[bool], None] = lambda changed: None
        self.request_handlers: dict[int, ServerRequestHandler] = {}
        self._heartbeat_every_s = heartbeat_every_s
        self._refresh_routes_every_s = refresh_routes_every_s
        self._heartbeat_now = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._active_requests = 0
        self._started = False
        self._closed = False

    @property
    def is_running(self) -> bool:
        return self._started and not self._closed

    def check_running(self) -> None:
        if not self.is_running:
            state = "is closed" if self._closed else "was not started"
            raise ClientClosed(f"this client {state}", hint="Use it inside `async with`")

    def start(self) -> None:
        if self._started:
            raise ClientClosed("this client was already started", hint="Create a new client")
        self._started = True
        self.connections.on_lost = lambda address: self._heartbeat_now.set()
        self.spawn(self._refresh_routes())
        if self.heartbeat is not None:
            self.spawn(self._send_heartbeats())

    def spawn(self, work: Awaitable[None]) -> asyncio.Task[None]:
        """Run a background task until it ends or the session closes."""
        task = asyncio.ensure_future(work)
        assert isinstance(task, asyncio.Task)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)
        return task

    async def close(self, unregister: Iterable[dict[str, str]] = ()) -> None:
        """Unregister from the connected brokers, then close all connections."""
        if self._closed:
            return
        self._closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        try:
            await asyncio.gather(*tasks, return_exceptions=True)
            for fields in unregister:
                for address in set(self.routes.brokers.values()):
                    if self.connections.get(address) is None:
                        continue
                    with contextlib.suppress(LaterMQError):
                        await self.connections.call(
                            address, Request.UNREGISTER_CLIENT, {"clientID": self.client_id, **fields}, timeout_s=1.0
                        )
            await self.routes.close()
        finally:  # even if this is cancelled
            await self.connections.close()

    async def send_heartbeats(self) -> bool:
        """Send a heartbeat to every known broker. Return whether all of them accepted it."""
        if self.heartbeat is None:
            return True
        body = encode_body(self.heartbeat())
        addresses = set(self.routes.brokers.values())
        results = await asyncio.gather(
            *(
                self.connections.call(address, Request.HEART_BEAT, {}, body, timeout_s=self.request_timeout_s)
                for address in addresses
            ),
            return_exceptions=True,
        )
        for result in results:
            if isinstance(result, LaterMQError):
                _log.debug("heartbeat failed: %s", result)
            elif isinstance(result, BaseException):
                raise result
        return not any(isinstance(result, LaterMQError) for result in results)

    def heartbeat_soon(self) -> None:
        self._heartbeat_now.set()

    async def _send_heartbeats(self) -> None:
        while True:
            self._heartbeat_now.clear()
            pause_s = self._heartbeat_every_s if await self.send_heartbeats() else FAILED_HEARTBEAT_PAUSE_S
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._heartbeat_now.wait()
                # A connection that was just lost is more likely to reopen after a short pause.
                await asyncio.sleep(FAILED_HEARTBEAT_PAUSE_S / 10)

    async def _refresh_routes(self) -> None:
        while True:
            await asyncio.sleep(self._refresh_routes_every_s)
            self.on_routes_refreshed(await self.routes.refresh_all())

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("a background task of the client failed", exc_info=error)

    def _on_request(self, connection: Connection, request: Command) -> None:
        handler = self.request_handlers.get(request.code)
        if handler is None or self._closed:
            remark = f"this client does not support request code {request.code}"
            self._respond(connection, request, Response.REQUEST_CODE_NOT_SUPPORTED, remark)
        elif self._active_requests >= MAX_SERVER_REQUESTS:
            remark = f"this client is already processing {MAX_SERVER_REQUESTS} requests"
            self._respond(connection, request, Response.SYSTEM_BUSY, remark)
        else:
            self.spawn(self._serve(connection, request, handler))

    async def _serve(self, connection: Connection, request: Command, handler: ServerRequestHandler) -> None:
        self._active_requests += 1
        try:
            body = await handler(request)
        except LaterMQError as error:
            self._respond(connection, request, error.code, error.remark)
        else:
            self._respond(connection, request, Response.SUCCESS, None, body or b"")
        finally:
            self._active_requests -= 1

    def _respond(
        self, connection: Connection, request: Command, code: int, remark: str | None, body: bytes = b""
    ) -> None:
        if not request.is_oneway and connection.is_open:
            connection.send(encode_response(request, code, fields={}, remark=remark, body=body))


class Client:
    """Base class of all clients: a session used in `async with`."""

    _session: Session

    async def start(self) -> None:
        """Start the client. `async with` calls this."""
        self._session.start()

    async def close(self) -> None:
        """Shut down cleanly. `async with` calls this."""
        await self._session.close()

    @property
    def client_id(self) -> str:
        """The id that identifies this client to servers: `ip@instance`."""
        return self._session.client_id

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
