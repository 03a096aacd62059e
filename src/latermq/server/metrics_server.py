"""HTTP server for metrics: GET /metrics, one request per connection, with limits on size, number and time."""

import asyncio
import contextlib
import errno
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from http import HTTPStatus
from typing import Protocol

import structlog
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, PROCESS_COLLECTOR, generate_latest
from prometheus_client.registry import Collector

from latermq.addresses import network_of, plain_ip
from latermq.errors import ConfigError, LaterMQError
from latermq.tls.front import TlsFront

PATH = b"/metrics"
MAX_REQUEST_BYTES = 8 * 1024
MAX_CONNECTIONS = 32
TIMEOUT_S = 10.0  # for a whole exchange; an idle or slow client is then disconnected

_log = structlog.get_logger(__name__)


class Metrics(Protocol):
    """The source of the metrics."""

    def read(self) -> Collector:
        """The current values, which another thread formats as text."""
        ...


class _State(Enum):
    WAITING = "waiting"  # for a complete request
    ANSWERING = "answering"
    UNREAD = "unread"  # the response is written but not yet fully read by the peer


@dataclass(slots=True, eq=False)
class _Exchange:
    writer: asyncio.StreamWriter
    network: str
    state: _State = _State.WAITING


class MetricsServer:
    """Serves monitoring systems. Call `start` and `close` once each."""

    def __init__(self, metrics: Metrics, tls: TlsFront | None = None, *, timeout_s: float = TIMEOUT_S) -> None:
        self._metrics = metrics
        self._tls = tls
        self._timeout_s = timeout_s
        self._server: asyncio.Server | None = None
        self._exchanges: dict[asyncio.Task[None], _Exchange] = {}  # oldest first
        self._displaced = 0
        self._refused = 0
        # Thousands of topics produce long texts, so a thread formats them off the loop, one at a time.
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="latermq-metrics")
        self._text: asyncio.Future[bytes] | None = None  # the text being formatted

    async def start(self, host: str, port: int) -> None:
        """Listen on the address. Raises OSError if it is unavailable."""
        self._server = await asyncio.get_running_loop().create_server(self._new_connection, host, port)

    def _new_connection(self) -> asyncio.Protocol:
        reader = asyncio.StreamReader(limit=MAX_REQUEST_BYTES)
        connection = asyncio.StreamReaderProtocol(reader, self._serve)
        return connection if self._tls is None else self._tls.wrap(connection)

    async def start_for(self, setting: str, host: str, port: int, default: int) -> None:
        """Listen on the port that an operator configured with `setting`. 0 disables the metrics.

        If the default port is in use, the server starts without metrics. Several servers can thus run on one machine
        with default settings, and the first one gets the port.
        """
        if not port:
            return
        try:
            await self.start(host, port)
        except OSError as error:
            reason = f"cannot bind the metrics port {port} on {host}: {error.strerror or error}"
            hint = f"Set {setting} to a free port, or to 0 to disable metrics"
            if port != default or error.errno != errno.EADDRINUSE:
                raise ConfigError(reason, hint=hint) from None
            _log.warning("metrics disabled", reason=reason, hint=hint)
        else:
            _log.info(
                "metrics server listening", url=f"{'http' if self._tls is None else 'https'}://{host}:{port}/metrics"
            )

    async def close(self) -> None:
        """Stop accepting connections and abort the open ones."""
        if self._server is not None:
            self._server.close()
            for exchange in self._exchanges.values():
                exchange.writer.transport.abort()
            if self._exchanges:
                await asyncio.wait(self._exchanges)
            await self._server.wait_closed()
        self._writer.shutdown()

    @property
    def connections(self) -> int:
        """The number of open connections."""
        return len(self._exchanges)

    def statistics(self) -> dict[str, int]:
        """Connections by state, and how many were displaced or refused since the start."""
        states = Counter(exchange.state for exchange in self._exchanges.values())
        return {
            "metrics_connections": len(self._exchanges),
            "max_metrics_connections": MAX_CONNECTIONS,
            **{f"metrics_{state.value}": states[state] for state in _State},
            "metrics_displaced": self._displaced,
            "metrics_refused": self._refused,
        }

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self._exchanges) >= MAX_CONNECTIONS and not self._make_room():
            self._refused += 1
            writer.transport.abort()
            return
        peer = writer.get_extra_info("peername")  # None if the peer closed the connection before it was accepted
        exchange = self._exchanges[task] = _Exchange(writer, network_of(plain_ip(peer[0])) if peer else "")
        try:
            with contextlib.suppress(TimeoutError, OSError, asyncio.IncompleteReadError):
                async with asyncio.timeout(self._timeout_s):
                    answer = await self._answer(reader, exchange)
                    if writer.transport.is_closing():  # displaced meanwhile, or the server stops
                        return
                    exchange.state = _State.UNREAD
                    writer.write(answer)
                    writer.close()
                    await writer.wait_closed()
        finally:
            writer.transport.abort()
            self._exchanges.pop(task, None)

    def _make_room(self) -> bool:
        """Abort one connection, so that no client can block monitoring by holding all connections.

        The choice falls on the network with the most connections. Among these, connections without a complete request
        come first, then the oldest.
        """
        held = Counter(exchange.network for exchange in self._exchanges.values())
        idle = [(task, own) for task, own in self._exchanges.items() if own.state is not _State.ANSWERING]
        if not idle:
            return False
        task, exchange = min(idle, key=lambda one: (-held[one[1].network], one[1].state is not _State.WAITING))
        self._displaced += 1
        del self._exchanges[task]
        exchange.writer.transport.abort()
        return True

    async def _answer(self, reader: asyncio.StreamReader, exchange: _Exchange) -> bytes:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            return _response(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        exchange.state = _State.ANSWERING
        words = head.split(b"\r\n", 1)[0].split(b" ")
        if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
            return _response(HTTPStatus.BAD_REQUEST)
        method, target, _ = words
        if target.partition(b"?")[0] != PATH:
            return _response(HTTPStatus.NOT_FOUND)
        if method not in (b"GET", b"HEAD"):
            return _response(HTTPStatus.METHOD_NOT_ALLOWED, headers="Allow: GET, HEAD\r\n")
        try:
            body = await self._current_text()
        except LaterMQError as error:
            _log.warning("metrics unavailable", reason=error.remark)
            return _response(HTTPStatus.SERVICE_UNAVAILABLE, f"{error.remark}\n".encode())
        return _response(HTTPStatus.OK, body, kind=CONTENT_TYPE_PLAIN_0_0_4, is_head=method == b"HEAD")

    async def _current_text(self) -> bytes:
        """Return the metrics as text. Requests that arrive during formatting share it.

        Otherwise a client could fill all connections with requests that wait for the thread, and block monitoring.
        """
        if self._text is None or self._text.done():
            collector = self._metrics.read()
            self._text = asyncio.get_running_loop().run_in_executor(self._writer, _text, collector)
        return await asyncio.shield(self._text)  # a client that disconnects must not cancel it for the others


def _text(collector: Collector) -> bytes:
    return generate_latest(collector) + generate_latest(PROCESS_COLLECTOR)


def _response(
    status: HTTPStatus,
    body: bytes = b"",
    *,
    kind: str = "text/plain; charset=utf-8",
    headers: str = "",
    is_head: bool = False,
) -> bytes:
    body = body or f"{status.value} {status.phrase}\n".encode()
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
        f"{headers}Connection: close\r\n\r\n"
    )
    return head.encode() + (b"" if is_head else body)
