"""Connections to servers: matching of responses to requests, one write per loop tick, and a sweep for timeouts."""

import asyncio
import itertools
import logging
import ssl
from collections.abc import Callable, Container, Mapping
from typing import cast

from latermq.client.session.credentials import Credentials
from latermq.client.session.failures import (
    ClientClosed,
    ConnectFailed,
    ConnectionLost,
    RequestTimedOut,
    error_from_wire,
)
from latermq.errors import Busy, LaterMQError
from latermq.protocol.remoting.frames import (
    BINARY,
    FLAG_ONEWAY,
    JSON,
    MAX_FRAME_BYTES,
    Command,
    FrameReader,
    encode_frame,
)
from latermq.retry import Backoff
from latermq.tls.client import ClientTls
from latermq.tls.contexts import reason_of

_log = logging.getLogger("latermq.client")

OnResponse = Callable[[Command | LaterMQError], None]
OnRequest = Callable[["Connection", Command], None]

# A sweep over all pending requests at this interval replaces a timer per request. For 10,000 requests it takes 0.4 ms.
SWEEP_S = 0.1
# A sweep that is later than this found the process stopped, as on a machine that is suspended. What was answered until
# then is read first.
STOPPED_S = 0.5
# A server that lets a request time out and sends nothing at all for this long is considered dead.
SILENCE_LIMIT_S = 10.0
WRITE_BUFFER_BYTES = 4 * 1024 * 1024
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 5.0
PLAINTEXT_HINT = "If the server requires TLS, use it: --tls, or LATERMQ_TLS_CONNECT=on"
ENCODINGS = {"json": JSON, "rocketmq": BINARY}


class Connection(asyncio.Protocol):
    """One connection. Writes frames, passes responses to their callbacks and the server's requests to `on_request`."""

    def __init__(self, address: str, on_request: OnRequest, on_lost: Callable[["Connection"], None]) -> None:
        self.address = address
        self._on_request = on_request
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._reader = FrameReader(MAX_FRAME_BYTES)
        self._transport: asyncio.Transport | None = None
        self._pending: dict[int, tuple[OnResponse, float]] = {}
        self._outgoing: list[bytes] = []
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._sweep_due_s = 0.0
        self._last_received_s = self._loop.time()
        self._has_received = False
        self._is_encrypted = False
        self._congested: asyncio.Future[None] | None = None
        self.closed: asyncio.Future[None] = self._loop.create_future()

    @property
    def is_open(self) -> bool:
        return self._transport is not None

    @property
    def pending(self) -> int:
        """The number of requests without a response yet."""
        return len(self._pending)

    def send(self, frame: bytes) -> None:
        """Write a frame. All frames of one loop tick are written in one system call."""
        outgoing = self._outgoing
        if not outgoing:
            self._loop.call_soon(self._flush)
        outgoing.append(frame)

    def request(self, opaque: int, frame: bytes, on_response: OnResponse, deadline_s: float) -> None:
        """Write a frame and pass its response, or an error, to `on_response`."""
        self._pending[opaque] = (on_response, deadline_s)
        if self._sweep_timer is None:
            self._sweep_later()
        # Inlined `send`, to save the call.
        outgoing = self._outgoing
        if not outgoing:
            self._loop.call_soon(self._flush)
        outgoing.append(frame)

    async def drain(self) -> None:
        """Wait until the peer has read enough of the written data."""
        while self._congested is not None:
            await asyncio.shield(self._congested)

    def close(self) -> None:
        if self._transport is not None:
            self._flush()
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._is_encrypted = transport.get_extra_info("sslcontext") is not None
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)

    def data_received(self, data: bytes) -> None:
        self._last_received_s = self._loop.time()
        self._has_received = True
        pending = self._pending
        for command in self._reader.feed(data):
            if command.flag & 1:
                entry = pending.pop(command.opaque, None)
                if entry is not None:  # None: the request has timed out
                    try:
                        entry[0](command)
                    except Exception:  # must not close the connection, which others use too
                        _log.exception("the callback of a response failed")
            else:
                self._on_request(self, command)
        if self._reader.broken is not None:
            self.abort()

    def pause_writing(self) -> None:
        self._congested = self._loop.create_future()

    def resume_writing(self) -> None:
        if self._congested is not None:
            self._congested.set_result(None)
            self._congested = None

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._outgoing.clear()
        self.resume_writing()
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
        orphans, self._pending = self._pending, {}
        # Called before the callbacks, so that an immediate retry does not choose this connection again.
        self._on_lost(self)
        reason = self._reader.broken or error or "the server closed it"
        # A server that requires TLS answers plaintext with a close.
        hint = "" if self._has_received or self._is_encrypted else PLAINTEXT_HINT
        for on_response, _ in orphans.values():
            on_response(ConnectionLost(f"the connection to {self.address} was lost: {reason}", hint=hint))
        self.closed.set_result(None)

    def _flush(self) -> None:
        if self._outgoing and self._transport is not None:
            self._transport.write(b"".join(self._outgoing))
        self._outgoing.clear()

    def _sweep_later(self) -> None:
        self._sweep_due_s = self._loop.time() + SWEEP_S
        self._sweep_timer = self._loop.call_at(self._sweep_due_s, self._sweep)

    def _sweep(self) -> None:
        now_s = self._loop.time()
        if now_s - self._sweep_due_s > STOPPED_S:
            self._last_received_s = now_s  # the server was not silent, this process was
            self._sweep_later()
            return
        expired = [opaque for opaque, (_, deadline_s) in self._pending.items() if deadline_s <= now_s]
        for opaque in expired:
            on_response, _ = self._pending.pop(opaque)
            on_response(RequestTimedOut(f"{self.address} did not answer in time; it may have executed the request"))
        if expired and now_s - self._last_received_s > SILENCE_LIMIT_S:
            self.abort()
        self._sweep_timer = None
        if self._pending:
            self._sweep_later()


class Connections:
    """One connection per server address, opened on demand and reopened with back-off after a failure."""

    def __init__(
        self,
        *,
        on_request: OnRequest,
        encoding: str = "json",
        connect_timeout_s: float = 3.0,
        max_pending: int = 65_536,
        tls: ClientTls | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        """With credentials, all requests are signed."""
        if encoding not in ENCODINGS:
            raise ValueError(f"unknown encoding {encoding!r}; use one of {', '.join(ENCODINGS)}")
        self.encoding = ENCODINGS[encoding]
        self.credentials = credentials
        self._on_request = on_request
        self._connect_timeout_s = connect_timeout_s
        self._max_pending = max_pending
        self._tls = tls
        self._open: dict[str, Connection] = {}
        self._connect_tasks: dict[str, asyncio.Task[Connection]] = {}
        self._failures: dict[str, Backoff[float]] = {}  # by address, while it cannot be reached
        self._opaques = itertools.count(1)
        self._closed = False
        self.on_lost: Callable[[str], None] = lambda address: None

    def next_opaque(self) -> int:
        return next(self._opaques) & 0x7FFFFFFF

    def get(self, address: str) -> Connection | None:
        """Return the open connection to a server, if there is one."""
        return self._open.get(address)

    async def open(self, address: str, deadline_s: float | None = None) -> Connection:
        """Return a connection to a server, opening it if needed. Concurrent callers share one attempt."""
        connection = self._open.get(address)
        if connection is not None:
            return connection
        if self._closed:
            raise ClientClosed("this client is closed", hint="Create a new client")
        task = self._connect_tasks.get(address)
        if task is None:
            task = asyncio.create_task(self._connect(address))
            self._connect_tasks[address] = task
            task.add_done_callback(lambda done: self._on_connect_done(address, done))
        try:
            async with asyncio.timeout_at(deadline_s):
                return await asyncio.shield(task)
        except TimeoutError:
            raise ConnectFailed(f"cannot connect to {address} in time") from None
        except asyncio.CancelledError:
            if task.cancelled():
                raise ClientClosed("this client was closed during a connection attempt") from None
            raise

    async def call(
        self,
        address: str,
        code: int,
        fields: Mapping[str, str] | None = None,
        body: bytes = b"",
        *,
        timeout_s: float = 3.0,
        accept: Container[int] = (),
    ) -> Command:
        """Send a request and return its response. `accept` lists codes besides success that are not errors."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_s
        connection = await self.open(address, deadline_s)
        if connection.pending >= self._max_pending:
            raise Busy(
                f"{self._max_pending} requests to {address} are pending", hint="Wait until some of them have finished"
            )
        future: asyncio.Future[Command] = loop.create_future()

        def on_response(response: Command | LaterMQError) -> None:
            if future.done():
                return
            if isinstance(response, LaterMQError):
                future.set_exception(response)
            elif response.code and response.code not in accept:
                future.set_exception(error_from_wire(response.code, response.remark, address))
            else:
                future.set_result(response)

        opaque = self.next_opaque()
        connection.request(opaque, self.frame(code, opaque, fields or {}, body), on_response, deadline_s)
        return await future

    async def oneway(self, address: str, code: int, fields: Mapping[str, str], body: bytes = b"") -> None:
        """Write a oneway request, which gets no response."""
        connection = await self.open(address)
        connection.send(self.frame(code, self.next_opaque(), fields, body, flag=FLAG_ONEWAY))
        await connection.drain()

    def frame(
        self,
        code: int,
        opaque: int,
        fields: Mapping[str, str],
        body: bytes = b"",
        *,
        flag: int = 0,
        encoding: int | None = None,
    ) -> bytes:
        """The frame of a request, signed if there are credentials."""
        if self.credentials is not None:
            fields = self.credentials.signed(fields, body, code)
        chosen = self.encoding if encoding is None else encoding
        return encode_frame(code, opaque, flag=flag, encoding=chosen, fields=fields, body=body)

    def statistics(self) -> dict[str, int]:
        return {
            "connections": len(self._open),
            "pending_connections": len(self._connect_tasks),
            "pending_requests": sum(connection.pending for connection in self._open.values()),
        }

    async def close(self) -> None:
        """Close every connection. Pending requests fail with an error."""
        self._closed = True
        for task in list(self._connect_tasks.values()):
            task.cancel()
        connections = list(self._open.values())
        for connection in connections:
            connection.close()
        for connection in connections:
            try:
                async with asyncio.timeout(1.0):
                    await asyncio.shield(connection.closed)
            except TimeoutError:
                connection.abort()
                await connection.closed

    async def _connect(self, address: str) -> Connection:
        loop = asyncio.get_running_loop()
        backoff = self._failures.get(address) or Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)
        if not backoff.is_ready(loop.time()):
            await asyncio.sleep(backoff.wait(loop.time()))
        host, port = split_address(address)
        context = await asyncio.to_thread(self._tls.context) if self._tls is not None else None
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                _, connection = await loop.create_connection(
                    lambda: Connection(address, self._on_request, self._on_connection_lost), host, port, ssl=context
                )
        except (OSError, TimeoutError) as error:
            reason = "no answer" if isinstance(error, TimeoutError) else reason_of(error)
            backoff.record_failure(reason, loop.time())
            self._failures[address] = backoff
            raise ConnectFailed(f"cannot connect to {address}: {reason}", hint=tls_hint(error, context)) from None
        self._failures.pop(address, None)
        self._open[address] = connection
        return connection

    def _on_connect_done(self, address: str, task: asyncio.Task[Connection]) -> None:
        del self._connect_tasks[address]
        if not task.cancelled():
            task.exception()  # marks it as retrieved: without a waiting caller, asyncio would log it at exit

    def _on_connection_lost(self, connection: Connection) -> None:
        if self._open.get(connection.address) is connection:
            del self._open[connection.address]
        if not self._closed:
            self.on_lost(connection.address)


def split_address(address: str) -> tuple[str, int]:
    """Split `host:port` into (host, port)."""
    host, colon, port = address.strip().rpartition(":")
    if not colon or not port.isdigit():
        raise ValueError(f"{address!r} is not a valid address; use host:port, for example 127.0.0.1:9876")
    return host.strip("[]"), int(port)


def tls_hint(error: OSError, context: ssl.SSLContext | None) -> str:
    """What to do about a connection with TLS that could not be opened."""
    if context is None:
        return ""
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            "The server's certificate must be for the host that is dialled, and from an authority that this client "
            "trusts: --tls-ca FILE, or LATERMQ_TLS_CA"
        )
    if isinstance(error, ssl.SSLError | ConnectionResetError | ConnectionAbortedError):
        return "Check that the server accepts TLS (tls.mode), and whether it requires a client certificate"
    return ""
