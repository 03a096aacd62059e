"""Serves the metrics over HTTP: GET /metrics, one request a connection; bounded in size, number and time."""

import asyncio
import contextlib
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus

import structlog
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, PROCESS_COLLECTOR, generate_latest

from latermq.broker.metrics.broker_metrics import BrokerMetrics, Reading
from latermq.errors import LaterMQError

PATH = b"/metrics"
MAX_REQUEST_BYTES = 8 * 1024
MAX_CONNECTIONS = 32
TIMEOUT_S = 10.0  # for a whole exchange: whoever idles, or sends or reads slowly, is cut off then

_log = structlog.get_logger(__name__)


class MetricsServer:
    """Answers monitoring systems; `start` and `close` once each."""

    def __init__(self, metrics: BrokerMetrics, *, timeout_s: float = TIMEOUT_S) -> None:
        self._metrics = metrics
        self._timeout_s = timeout_s
        self._server: asyncio.Server | None = None
        self._serving: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        # Thousands of topics make long texts: written beside the loop, one at a time.
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="latermq-metrics")

    async def start(self, host: str, port: int) -> None:
        """Listen on the address; raises OSError where that cannot be had."""
        self._server = await asyncio.start_server(self._serve, host, port, limit=MAX_REQUEST_BYTES)

    async def close(self) -> None:
        """Accept nothing more and cut off who is being served."""
        if self._server is not None:
            self._server.close()
            for writer in self._serving.values():
                writer.transport.abort()
            if self._serving:
                await asyncio.wait(self._serving)
            await self._server.wait_closed()
        self._writer.shutdown()

    @property
    def connections(self) -> int:
        """How many are being served."""
        return len(self._serving)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving[task] = writer
        try:
            if len(self._serving) > MAX_CONNECTIONS:
                return
            with contextlib.suppress(TimeoutError, OSError, asyncio.IncompleteReadError):
                async with asyncio.timeout(self._timeout_s):
                    writer.write(await self._answer(reader))
                    writer.close()
                    await writer.wait_closed()
        finally:
            writer.transport.abort()
            del self._serving[task]

    async def _answer(self, reader: asyncio.StreamReader) -> bytes:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            return _response(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        words = head.split(b"\r\n", 1)[0].split(b" ")
        if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
            return _response(HTTPStatus.BAD_REQUEST)
        method, target, _ = words
        if target.partition(b"?")[0] != PATH:
            return _response(HTTPStatus.NOT_FOUND)
        if method not in (b"GET", b"HEAD"):
            return _response(HTTPStatus.METHOD_NOT_ALLOWED, more="Allow: GET, HEAD\r\n")
        try:
            reading = self._metrics.read()
        except LaterMQError as error:
            _log.warning("metrics cannot be read", reason=error.remark)
            return _response(HTTPStatus.SERVICE_UNAVAILABLE, f"{error.remark}\n".encode())
        body = await asyncio.get_running_loop().run_in_executor(self._writer, _text, reading)
        return _response(HTTPStatus.OK, body, kind=CONTENT_TYPE_PLAIN_0_0_4, is_head=method == b"HEAD")


def _text(reading: Reading) -> bytes:
    return generate_latest(reading) + generate_latest(PROCESS_COLLECTOR)


def _response(
    status: HTTPStatus,
    body: bytes = b"",
    *,
    kind: str = "text/plain; charset=utf-8",
    more: str = "",
    is_head: bool = False,
) -> bytes:
    body = body or f"{status.value} {status.phrase}\n".encode()
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
        f"{more}Connection: close\r\n\r\n"
    )
    return head.encode() + (b"" if is_head else body)
