"""Implements `latermq bench consume`: reads all queues of a topic concurrently, from beginning to end."""

import asyncio
from collections.abc import Callable

from latermq.cli.bench.gauge import Figures, Gauge, find_broker_pid
from latermq.cli.commands.message_reader import READER_GROUP
from latermq.cli.output import progress
from latermq.client import MessageQueue, PullConsumer


class DrainBench:
    """One run. It commits no offsets and can be repeated."""

    def __init__(self, topic: str, *, count: int | None, batch: int) -> None:
        self._topic = topic
        self._count = count
        self._batch = batch
        self._pulls = 0
        self._messages = 0
        self._advance: Callable[[int], None] = lambda _count: None

    async def run(self, namesrv: str, broker_pid: int | None) -> Figures:
        async with PullConsumer(namesrv, group=READER_GROUP) as consumer:
            queues = await consumer.queues(self._topic)
            if broker_pid is None:
                broker_pid = await find_broker_pid(namesrv)
            with progress(f"draining {self._topic}", self._count, prints_rows=False) as self._advance:
                gauge = Gauge(broker_pid)
                await asyncio.gather(*(self._drain(consumer, queue) for queue in queues))
                figures = gauge.figures(self._messages)
        return {"topic": self._topic, "queues": len(queues), "batch": self._batch, "pulls": self._pulls, **figures}

    async def _drain(self, consumer: PullConsumer, queue: MessageQueue) -> None:
        """Read a queue up to its end as of the first pull."""
        offset, end = 0, None
        while (end is None or offset < end) and (self._count is None or self._messages < self._count):
            pulled = await consumer.pull(queue, offset, self._batch)
            self._pulls += 1
            end = pulled.max_offset if end is None else end
            if pulled.next_offset <= offset:
                return
            offset = pulled.next_offset
            self._messages += len(pulled.messages)
            self._advance(len(pulled.messages))
