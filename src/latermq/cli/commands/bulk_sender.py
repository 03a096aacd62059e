"""Implements `latermq send`: sends messages without waiting for each reply, and reports the outcome."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

from latermq.cli.output import counted, print_fields, print_json, print_line, print_note, progress
from latermq.client import OutgoingMessage, Producer, SendResult
from latermq.errors import LaterMQError

_MIN_SLEEP_S = 0.002  # a shorter sleep costs more than it delays
_MAX_BATCHES_IN_FLIGHT = 64


class BulkSender:
    """One run of the command."""

    def __init__(
        self, message: OutgoingMessage, *, count: int, batch: int, oneway: bool, rate: float | None, as_json: bool
    ) -> None:
        self._message = message
        self._count = count
        self._batch = batch
        self._oneway = oneway
        self._rate = rate
        self._as_json = as_json
        self._stored = 0
        self._first_error: LaterMQError | None = None
        self._last_row: dict[str, Any] = {}
        self._advance: Callable[[int], None] = lambda _count: None

    async def run(self, namesrv: str) -> None:
        started_s = time.monotonic()
        async with Producer(namesrv) as producer:
            what = f"sending to {self._message.topic}"
            with progress(what, self._count, prints_rows=self._as_json) as self._advance:
                if self._oneway:
                    await self._send_oneway(producer, started_s)
                else:
                    await self._send_pipelined(producer, started_s)
        self._report_outcome(time.monotonic() - started_s)

    async def _send_oneway(self, producer: Producer, started_s: float) -> None:
        for sent in range(self._count):
            await self._keep_rate(sent, started_s)
            await producer.send_oneway(self._message)
            self._advance(1)

    async def _send_pipelined(self, producer: Producer, started_s: float) -> None:
        in_flight: set[asyncio.Future[SendResult]] = set()
        sent = 0
        while sent < self._count and self._first_error is None:
            await self._keep_rate(sent, started_s)
            size = min(self._batch, self._count - sent)
            if producer.is_full:
                await producer.ready()
            if self._batch == 1:
                future = producer.submit(self._message)
            else:
                future = asyncio.ensure_future(producer.send_batch([self._message] * size))
                if len(in_flight) >= _MAX_BATCHES_IN_FLIGHT:
                    await asyncio.wait(in_flight, return_when=asyncio.FIRST_COMPLETED)
            in_flight.add(future)
            future.add_done_callback(in_flight.discard)
            future.add_done_callback(lambda done, size=size: self._on_reply(done, size))  # type: ignore[misc]
            sent += size
        while in_flight:
            await asyncio.wait(in_flight)

    async def _keep_rate(self, sent: int, started_s: float) -> None:
        if self._rate is not None:
            ahead_s = started_s + sent / self._rate - time.monotonic()
            if ahead_s > _MIN_SLEEP_S:
                await asyncio.sleep(ahead_s)

    def _on_reply(self, done: asyncio.Future[SendResult], size: int) -> None:
        error = done.exception()
        if isinstance(error, LaterMQError):
            self._first_error = self._first_error or error
            return
        if error is not None:
            raise error
        self._stored += size
        self._advance(size)
        self._last_row = _result_row(done.result())
        if self._as_json:
            print_json(self._last_row)

    def _report_outcome(self, took_s: float) -> None:
        if self._first_error is not None:
            if self._count > 1:
                print_note(f"{self._stored} of {self._count} messages were acknowledged before the first error")
            raise self._first_error
        if self._oneway:
            print_note(f"{counted(self._count, 'message')} sent one-way; delivery is not confirmed")
        elif self._count > 1 and not self._as_json:
            rate = self._stored / took_s
            print_line(f"{self._stored} messages acknowledged in {took_s:.2f} s ({rate:,.0f} per second)")
        elif not self._as_json:
            print_fields(self._last_row, as_json=False)


def _result_row(result: SendResult) -> dict[str, Any]:
    row: dict[str, Any] = {
        "status": result.status,
        "message_id": result.message_id,
        "offset_message_id": result.offset_message_id,
        "topic": result.queue.topic,
        "broker": result.queue.brokerName,
        "queue_id": result.queue.queueId,
        "queue_offset": result.queue_offset,
    }
    if result.recall_handle:
        row["recall_handle"] = result.recall_handle
    return row
