"""Implements `latermq bench send`, with synchronous or pipelined sends."""

import asyncio
import time
from array import array
from collections.abc import Callable

from latermq.cli.bench.gauge import Figures, Gauge, find_broker_pid, latency_figures
from latermq.cli.output import progress
from latermq.client import OutgoingMessage, Producer, SendResult
from latermq.errors import LaterMQError

_MIN_SLEEP_S = 0.002  # a shorter sleep costs more than it delays
_PROGRESS_STEP = 500  # advancing the bar takes longer than a send


class SendBench:
    """One run. It stops at the first error."""

    def __init__(
        self, topic: str, *, count: int, size_bytes: int, concurrency: int, is_sync: bool, rate: float | None
    ) -> None:
        self._message = OutgoingMessage(topic, b"x" * size_bytes)
        self._count = count
        self._concurrency = concurrency
        self._is_sync = is_sync
        self._rate = rate
        self._claimed = 0
        self._started_s = 0.0
        self._latencies_s: array[float] = array("f")
        self._failure: LaterMQError | None = None
        self._in_flight = 0
        self._all_acknowledged = asyncio.Event()
        self._advance: Callable[[int], None] = lambda _count: None

    async def run(self, namesrv: str, broker_pid: int | None) -> Figures:
        in_flight = self._concurrency
        async with Producer(namesrv, max_in_flight=in_flight, compress_above_bytes=None) as producer:
            # Not measured: creates the topic if needed, looks up the route and connects.
            await producer.send(self._message)
            if broker_pid is None:
                broker_pid = await find_broker_pid(namesrv)
            with progress(f"sending to {self._message.topic}", self._count, prints_rows=False) as self._advance:
                gauge = Gauge(broker_pid)
                self._started_s = gauge.started_s
                if self._is_sync:
                    await asyncio.gather(*(self._send_sync(producer) for _ in range(self._concurrency)))
                else:
                    await self._send_async(producer)
                figures = gauge.figures(len(self._latencies_s))
        if self._failure is not None:
            raise self._failure
        mode = (
            {"mode": "sync", "concurrency": in_flight} if self._is_sync else {"mode": "async", "in_flight": in_flight}
        )
        size = {"size_bytes": len(self._message.body)}
        return {"topic": self._message.topic, **mode, **size, **figures, **latency_figures(self._latencies_s)}

    async def _send_sync(self, producer: Producer) -> None:
        while await self._claim():
            sent_s = time.perf_counter()
            try:
                await producer.send(self._message)
            except LaterMQError as error:
                self._failure = self._failure or error
                return
            self._latencies_s.append(time.perf_counter() - sent_s)

    async def _send_async(self, producer: Producer) -> None:
        while await self._claim():
            if producer.is_full:
                await producer.ready()
            sent_s = time.perf_counter()
            future = producer.submit(self._message)
            self._in_flight += 1
            future.add_done_callback(lambda done, sent_s=sent_s: self._on_reply(done, sent_s))  # type: ignore[misc]
        while self._in_flight:
            self._all_acknowledged.clear()
            await self._all_acknowledged.wait()

    def _on_reply(self, done: "asyncio.Future[SendResult]", sent_s: float) -> None:
        self._in_flight -= 1
        if not self._in_flight:
            self._all_acknowledged.set()
        error = done.exception()
        if error is None:
            self._latencies_s.append(time.perf_counter() - sent_s)
        elif isinstance(error, LaterMQError):
            self._failure = self._failure or error
        else:
            raise error

    async def _claim(self) -> bool:
        """Wait until the next message may be sent. False if there is none left."""
        if self._claimed >= self._count or self._failure is not None:
            return False
        number = self._claimed
        self._claimed += 1
        if number % _PROGRESS_STEP == _PROGRESS_STEP - 1:
            self._advance(_PROGRESS_STEP)
        if self._rate is not None:
            early_s = self._started_s + number / self._rate - time.perf_counter()
            if early_s > _MIN_SLEEP_S:
                await asyncio.sleep(early_s)
        return True
