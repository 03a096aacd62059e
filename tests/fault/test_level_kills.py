"""`kill -9` while delayed messages fall due, with real processes: each arrives once, and none too early."""

import asyncio
import shutil
import time
from bisect import bisect
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from random import Random

import pytest

from latermq.client import MessageQueue, OutgoingMessage, Producer, PullConsumer
from latermq.errors import LaterMQError
from latermq.message.record import Message
from tests.interop.waiting import wait_until
from tests.support.needs import LONG
from tests.support.serving import Server, serving

pytestmark = pytest.mark.real
COUNT = 200_000 if LONG else 20_000
KILLS = 20 if LONG else 3
TOPIC = "later"
QUEUES = 4
BATCH = 200
# A second apart, so that messages fall due all the time over all lives.
DELAYS_MS = [1_000 * seconds for seconds in range(2, 50 if LONG else 10)]
LEVELS = " ".join(f"{delay_ms // 1_000}s" for delay_ms in DELAYS_MS)
LEVELS_FOR_FILES = 3  # of them are enough where files are lost
OPTIONS = ("--set", f"timer.levels={LEVELS}", "--set", "store.checkpoint_every=1s", "--set", "store.segment=64MiB")
TIMEOUT_S = 900.0 if LONG else 120.0
LONGEST_LIFE_S = 1.5
CHECKPOINT, DELAY_OFFSETS = "latermq.checkpoint", "config/delayOffset.json"


async def send_all(server: Server, numbers: Iterable[int], levels: int) -> None:
    """Send numbered messages in batches, over the first levels and all queues; all of them must be taken."""
    async with Producer(server.namesrv, retries=10, send_timeout_s=10) as producer:
        await producer.send(OutgoingMessage(TOPIC, b"first"))  # which makes the topic
        numbers = list(numbers)
        for start in range(0, len(numbers), BATCH):
            messages = [
                OutgoingMessage(TOPIC, b"%08d" % number, properties={"DELAY": str(number % levels + 1)})
                for number in numbers[start : start + BATCH]
            ]
            await producer.send_batch(messages, queue=MessageQueue(TOPIC, "broker-a", start // BATCH % QUEUES))


async def read_queue(consumer: PullConsumer, queue: MessageQueue, offset: int) -> list[Message]:
    found: list[Message] = []
    end = await consumer.max_offset(queue)
    while offset < end:
        result = await consumer.pull(queue, offset, 1_000)
        found += result.messages
        offset = result.next_offset
    return found


async def read_until(server: Server, count: int) -> list[Message]:
    """Everything in the topic once there is as much as expected, and a moment later, when more could have come."""
    found: dict[int, list[Message]] = {queue_id: [] for queue_id in range(QUEUES)}
    grace = 3
    async with asyncio.timeout(TIMEOUT_S), PullConsumer(server.namesrv, group="auditors") as consumer:
        while grace:
            try:
                for queue_id, messages in found.items():
                    queue = MessageQueue(TOPIC, "broker-a", queue_id)
                    messages += await read_queue(consumer, queue, len(messages))
            except LaterMQError:
                pass  # the broker was just started, and the name server does not know it yet
            if sum(map(len, found.values())) >= count:
                grace -= 1
            await asyncio.sleep(0.3)
    for messages in found.values():
        assert [message.queue_offset for message in messages] == list(range(len(messages)))
    return [message for messages in found.values() for message in messages]


def check(messages: list[Message], count: int) -> None:
    """Each number once, and none before its time."""
    delayed = [message for message in messages if message.body != b"first"]
    counts = Counter(int(message.body) for message in delayed)
    assert [number for number, times in counts.items() if times > 1] == [], "came twice"
    assert counts.keys() == set(range(count)), f"{count - len(counts)} of {count} never came"
    for message in delayed:
        due_ms = int(message.properties["LMQ_DUE_MS"])
        assert message.store_timestamp_ms >= due_ms
        assert due_ms - message.born_timestamp_ms >= DELAYS_MS[int(message.properties["DELAY"]) - 1]


async def live_for(seconds: float) -> None:
    await asyncio.sleep(seconds)


@pytest.mark.timeout(1_800)
def test_each_delayed_message_arrives_once_however_often_the_broker_is_killed(tmp_path: Path) -> None:
    chance = Random(20_27)
    data = tmp_path / "data"
    killed_ms = []
    with serving(data, *OPTIONS) as server:
        asyncio.run(send_all(server, range(COUNT), len(DELAYS_MS)))
        asyncio.run(live_for(chance.uniform(0, 2 * LONGEST_LIFE_S)))
        server.kill()
        killed_ms.append(time.time() * 1_000)
    for _ in range(KILLS - 1):
        with serving(data, *OPTIONS, *server.same_ports) as server:
            asyncio.run(live_for(chance.uniform(0, LONGEST_LIFE_S)))
            server.kill()
            killed_ms.append(time.time() * 1_000)
    with serving(data, *OPTIONS, *server.same_ports) as server:
        messages = asyncio.run(read_until(server, COUNT + 1))
    check(messages, COUNT)
    stored_ms = sorted(message.store_timestamp_ms for message in messages)
    by_life = [bisect(stored_ms, moment_ms) for moment_ms in killed_ms]
    print(f"stored before each kill: {by_life} of {COUNT}")
    # On a slow machine all may have arrived before the last kills.
    assert by_life[0] < COUNT, "the kills came too late to mean anything"


@pytest.mark.parametrize("lost", ["checkpoint", "offsets", "both", "old offsets", "old offsets without checkpoint"])
def test_lost_and_old_files_neither_lose_nor_repeat(tmp_path: Path, lost: str) -> None:
    count = 3_000
    data = tmp_path / "data"
    with serving(data, *OPTIONS, "--set", "broker.offset_save_every=200ms") as server:
        asyncio.run(send_all(server, range(count // 2), LEVELS_FOR_FILES))
        wait_until((data / DELAY_OFFSETS).exists, 30, "the offsets are saved")
        shutil.copy(data / DELAY_OFFSETS, tmp_path / "old")
        asyncio.run(send_all(server, range(count // 2, count), LEVELS_FOR_FILES))
        # Some have arrived and some have not.
        asyncio.run(read_until(server, count // 3))
        server.kill()
    if lost in ("checkpoint", "both", "old offsets without checkpoint"):
        (data / CHECKPOINT).unlink()
    if lost in ("offsets", "both"):
        (data / DELAY_OFFSETS).unlink()
    if lost.startswith("old offsets"):
        shutil.copy(tmp_path / "old", data / DELAY_OFFSETS)
    with serving(data, *OPTIONS, *server.same_ports) as server:
        # Both calls of send_all have sent a message that makes the topic.
        check(asyncio.run(read_until(server, count + 2)), count)
