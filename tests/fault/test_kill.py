"""`kill -9` under load, with real processes: what was acknowledged is there afterwards, once, and without holes."""

import asyncio
import os
import signal
from collections import Counter
from functools import partial
from pathlib import Path
from random import Random

import pytest

from latermq.client import MessageQueue, OutgoingMessage, Producer, PullConsumer, SendResult
from latermq.errors import LaterMQError, ServiceUnavailable, TopicNotFound
from latermq.message.record import Message
from tests.support.needs import LONG
from tests.support.serving import Server, serving

pytestmark = pytest.mark.real
KILLS = 10 if LONG else 3
TOPIC = "ledger"
READ_TIMEOUT_S = 60.0


class Load:
    """Sends numbered messages without retries and remembers which were acknowledged."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._stopping = False
        self.acknowledged: dict[str, bytes] = {}
        self.failed = 0
        self.more = asyncio.Event()

    async def run(self) -> None:
        number = 0
        while not self._stopping:
            await self._producer.ready()
            body = b"%08d" % number
            key = f"ledger-{number}"
            number += 1
            future = self._producer.submit(OutgoingMessage(TOPIC, body, properties={"UNIQ_KEY": key}))
            future.add_done_callback(partial(self._done, key, body))
            if self._producer.is_full or number % 64 == 0:
                await asyncio.sleep(0)

    def _done(self, key: str, body: bytes, future: "asyncio.Future[SendResult]") -> None:
        if not future.cancelled() and future.exception() is None:
            self.acknowledged[key] = body
            self.more.set()
        else:
            self.failed += 1

    async def acknowledged_more(self, count: int) -> None:
        """Wait until so many more were acknowledged."""
        target = len(self.acknowledged) + count
        while len(self.acknowledged) < target:
            self.more.clear()
            await asyncio.wait_for(self.more.wait(), 60)

    def stop(self) -> None:
        self._stopping = True


async def load_and_kill(server: Server, chance: Random) -> dict[str, bytes]:
    """Send while the broker is killed again and again; what was acknowledged."""
    async with Producer(server.namesrv, retries=0, send_timeout_s=3, max_in_flight=500) as producer:
        load = Load(producer)
        running = asyncio.create_task(load.run())
        for _ in range(KILLS):
            await load.acknowledged_more(chance.randrange(500, 5_000))
            os.kill(await asyncio.to_thread(server.broker_pid), signal.SIGKILL)
        await load.acknowledged_more(500)
        load.stop()
        await running
    return load.acknowledged


async def read_queue(consumer: PullConsumer, queue: MessageQueue) -> list[Message]:
    messages: list[Message] = []
    offset = 0
    async with asyncio.timeout(READ_TIMEOUT_S):
        end = await consumer.max_offset(queue)
        while offset < end:
            result = await consumer.pull(queue, offset, 1_000)
            messages += result.messages
            offset = result.next_offset
    return messages


async def find_queues(consumer: PullConsumer) -> list[MessageQueue]:
    """The topic's queues; a broker that was just restarted takes messages a moment before the name server knows it."""
    async with asyncio.timeout(READ_TIMEOUT_S):
        while True:
            try:
                return await consumer.queues(TOPIC)
            except (TopicNotFound, ServiceUnavailable):
                await asyncio.sleep(0.05)


async def read_all(server: Server) -> dict[int, list[Message]]:
    async with PullConsumer(server.namesrv, group="auditors") as consumer:
        queues = await find_queues(consumer)
        return {queue.queueId: await read_queue(consumer, queue) for queue in queues}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("flush", ["async", "sync"])
def test_what_was_acknowledged_survives_kill_9_once_and_without_holes(tmp_path: Path, flush: str) -> None:
    options = ("--set", f"store.flush={flush}", "--set", "store.checkpoint_every=1s", "--set", "store.segment=16MiB")
    with serving(tmp_path, *options) as server:
        acknowledged = asyncio.run(load_and_kill(server, Random(20_26)))
        queues = asyncio.run(read_all(server))
    found: Counter[str] = Counter()
    for messages in queues.values():
        assert [message.queue_offset for message in messages] == list(range(len(messages)))
        for message in messages:
            key = message.properties["UNIQ_KEY"]
            found[key] += 1
            assert message.body == b"%08d" % int(key.removeprefix("ledger-"))
    assert not acknowledged.keys() - found.keys()
    assert [key for key, count in found.items() if count > 1] == []


def test_a_server_killed_as_a_whole_opens_the_same_data_again(tmp_path: Path) -> None:
    async def send_some(server: Server, name: str) -> list[str]:
        sent = []
        async with Producer(server.namesrv, retries=5) as producer:
            for number in range(200):
                try:
                    await producer.send(OutgoingMessage(TOPIC, f"{name} {number}".encode()))
                    sent.append(f"{name} {number}")
                except LaterMQError:
                    continue
        return sent

    expected: list[str] = []
    for life in range(3):
        with serving(tmp_path) as server:
            expected += asyncio.run(send_some(server, f"life {life}"))
            if life < 2:
                server.kill()
                continue
            queues = asyncio.run(read_all(server))
    bodies = [message.body.decode() for messages in queues.values() for message in messages]
    assert sorted(bodies) == sorted(expected)
    assert len(bodies) == 600
