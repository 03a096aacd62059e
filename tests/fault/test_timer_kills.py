"""`kill -9` while timers are scheduled, cancelled, moved and fall due, with real processes that also lose files.

A load of senders and operators goes on over all lives and writes down what it was told; at the end the whole topic is
read and must agree.
"""

import asyncio
import os
import shutil
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from random import Random
from typing import NamedTuple, TypeVar

import pytest

from latermq.client import Admin, MessageQueue, OutgoingMessage, Producer
from latermq.client.session.failures import ConnectionLost, NoBroker, NoNameServer, RequestTimedOut
from latermq.errors import ServiceUnavailable, TopicNotFound
from latermq.model.timers import Outcome
from tests.fault.test_level_kills import CHECKPOINT, QUEUES, TIMEOUT_S, TOPIC, read_until
from tests.fault.timer_ledger import Ledger
from tests.interop.ports import HOST, free_port
from tests.interop.waiting import wait_until
from tests.support.needs import LONG
from tests.support.serving import Server, serving

pytestmark = pytest.mark.real
COUNT = 300_000 if LONG else 12_000
KILLS = 20 if LONG else 3
RATE = 4_000 if LONG else 2_000  # timers sent in a second, as long as a broker is there
LONGEST_DELAY_MS = 30_000 if LONG else 6_000
HARM_EVERY = 10_000 if LONG else 1_500  # timers between two harms to the files
SENDERS, OPERATORS = 4, 6
TICK_S = 0.02
RECENT = RATE * 4  # operators choose among so many of the last timers: some of them are delivered by then
OPTIONS = ("--set", "store.checkpoint_every=1s", "--set", "store.segment=64MiB", "--set", "timer.log_file=1MiB")
# What a client gets whose broker is away or about to go. Any other error is an answer, and a wrong one.
AWAY = (ConnectionLost, RequestTimedOut, NoBroker, NoNameServer, TopicNotFound, ServiceUnavailable)

T = TypeVar("T")
Harm = Callable[[Path], None]


def now_ms() -> int:
    return time.time_ns() // 1_000_000


async def answer_of(asked: Awaitable[T]) -> T | None:
    """The answer, None where there is none since nobody is there to give it."""
    try:
        return await asked
    except AWAY:
        return None


class Load:
    """Schedules numbered timers, and cancels and moves some of them, over all lives of a broker."""

    def __init__(self, chance: Random, count: int) -> None:
        self._chance = chance
        self._count = count
        self._numbers = iter(range(1 << 60))
        self._recent: deque[str] = deque(maxlen=RECENT)
        self._busy: set[str] = set()
        self._is_stopped = False
        self.may_end = False
        self.ledger = Ledger()

    async def run(self, namesrv: str) -> None:
        """Go on until there are as many timers as wanted and whoever kills the broker has done so."""
        producer = Producer(namesrv, retries=0, send_timeout_s=5)
        async with producer, Admin(namesrv) as admin, asyncio.TaskGroup() as tasks:
            for _ in range(SENDERS):
                tasks.create_task(self._send(producer))
            for _ in range(OPERATORS):
                tasks.create_task(self._operate(admin))

    def stop(self) -> None:
        self._is_stopped = True

    def wait_for(self, count: int, running: "Future[None]") -> None:
        """Wait on another thread until so many timers are acknowledged."""
        wait_until(lambda: running.done() or self.ledger.acknowledged >= count, TIMEOUT_S, f"{count} timers")
        if running.done():
            running.result()

    @property
    def _is_over(self) -> bool:
        return self._is_stopped or (self.may_end and self.ledger.acknowledged >= self._count)

    # Scheduling

    async def _send(self, producer: Producer) -> None:
        is_away = False
        while not self._is_over:
            await asyncio.sleep(TICK_S)
            count = 1 if is_away else int(RATE / SENDERS * TICK_S)
            messages = [self._next_message() for _ in range(count)]
            if self._chance.random() < 0.2:
                is_away = not await self._send_together(producer, messages)
            else:
                sends = (self._send_alone(producer, message) for message in messages)
                is_away = not all(await asyncio.gather(*sends))

    def _next_message(self) -> OutgoingMessage:
        name = f"timer-{next(self._numbers):07d}"
        return OutgoingMessage(TOPIC, name.encode(), deliver_at_ms=self._due_ms(), properties={"UNIQ_KEY": name})

    def _due_ms(self) -> int:
        due_ms = now_ms() + self._chance.randrange(500, LONGEST_DELAY_MS)
        # Three in ten fall due together at a full second.
        return due_ms if self._chance.random() < 0.7 else -(-due_ms // 1_000) * 1_000

    def _queue(self) -> MessageQueue:
        return MessageQueue(TOPIC, "broker-a", self._chance.randrange(QUEUES))

    async def _send_alone(self, producer: Producer, message: OutgoingMessage) -> bool:
        return self._note([message], await answer_of(producer.send(message, queue=self._queue())))

    async def _send_together(self, producer: Producer, messages: Sequence[OutgoingMessage]) -> bool:
        return self._note(messages, await answer_of(producer.send_batch(messages, queue=self._queue())))

    def _note(self, messages: Sequence[OutgoingMessage], answer: object) -> bool:
        for message in messages:
            name = message.properties["UNIQ_KEY"]
            self.ledger.scheduled(name, message.deliver_at_ms, answered=answer is not None)
            if answer is not None:
                self._recent.append(name)
        return answer is not None

    # Cancelling and moving

    async def _operate(self, admin: Admin) -> None:
        while not self._is_over:
            await asyncio.sleep(self._chance.uniform(0, 2 * TICK_S))
            if not self._recent:
                continue
            name = self._chance.choice(self._recent)
            if name in self._busy:
                continue
            self._busy.add(name)
            if self._chance.random() < 0.5:
                self.ledger.cancelled(name, await self._only(admin.cancel_timer(TOPIC, unique_key=name)))
            else:
                due_ms = self._due_ms()
                asked = admin.move_timer(TOPIC, unique_key=name, due_ms=due_ms)
                self.ledger.moved(name, due_ms, await self._only(asked))
            self._busy.discard(name)

    async def _only(self, asked: Awaitable[list[Outcome]]) -> Outcome | None:
        outcomes = await answer_of(asked)
        if outcomes is None:
            await asyncio.sleep(5 * TICK_S)
            return None
        [outcome] = outcomes
        return outcome


def leave_alone(data: Path) -> None:
    """No harm is done."""


class Life(NamedTuple):
    """One life of a broker: its engine, when it ends and how, and what happens to its files before."""

    engine: str
    ends_at: int  # when so many timers have been acknowledged
    harm: Harm = leave_alone
    is_killed: bool = True  # or stopped


@contextmanager
def loading(load: Load, namesrv: str) -> Iterator["Future[None]"]:
    """Let the load run beside whatever is done in the block; stops it if that fails."""
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(lambda: asyncio.run(load.run(namesrv)))
        try:
            yield running
        finally:
            load.stop()


async def await_deliveries(server: Server) -> int | None:
    """How many timers are pending when all should have been delivered."""
    deadline_s = time.monotonic() + LONGEST_DELAY_MS / 1_000 + 60
    async with Admin(server.namesrv) as admin:
        while True:
            pending = await answer_of(admin.count_timers())
            if (pending is not None and pending <= 0) or time.monotonic() > deadline_s:
                return pending
            await asyncio.sleep(0.2)


def live_and_die(data: Path, load: Load, lives: Iterable[Life]) -> None:
    """End each life but the last, in which everything falls due; then see that all is as it was told."""
    *short, last = lives
    namesrv_port, port = free_port(), free_port()
    ports = ("--namesrv-port", str(namesrv_port), "--port", str(port))

    def living(life: Life) -> AbstractContextManager[Server]:
        life.harm(data)
        return serving(data, *OPTIONS, *ports, "--set", f"timer.engine={life.engine}")

    with loading(load, f"{HOST}:{namesrv_port}") as running:
        for life in short:
            with living(life) as server:
                load.wait_for(life.ends_at, running)
                end = server.kill if life.is_killed else server.stop
                end()
            print(f"a life ended with {load.ledger.acknowledged} timers acknowledged")
        with living(last) as server:
            load.may_end = True
            running.result(TIMEOUT_S)
            pending = asyncio.run(await_deliveries(server))
            found = asyncio.run(read_until(server, 1))
    load.ledger.check(found)
    assert pending == 0, "the broker's own count is wrong"
    print(f"{len(found)} arrived; {dict(load.ledger.counts)}")


@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("engine", ["wheel", "rocksdb"])
def test_each_timer_keeps_its_word_however_often_the_broker_is_killed(tmp_path: Path, engine: str) -> None:
    chance = Random(20_28)
    load = Load(chance, COUNT)
    killed_at = sorted(chance.randrange(COUNT * 9 // 10) for _ in range(KILLS))
    live_and_die(tmp_path / "data", load, [Life(engine, count) for count in (*killed_at, COUNT)])
    assert load.ledger.acknowledged >= COUNT
    for kind in ("cancel: cancelled", "cancel: already delivered", "move: moved", "sends without an answer"):
        assert load.ledger.counts[kind], f"no {kind}"


def unlink(data: Path, name: str) -> None:
    (data / name).unlink(missing_ok=True)


def remove(data: Path, name: str) -> None:
    shutil.rmtree(data / name, ignore_errors=True)


def cut(data: Path, pattern: str) -> None:
    """Take the second half of the files."""
    for path in data.glob(pattern):
        os.truncate(path, path.stat().st_size // 2)


def spoil(data: Path, pattern: str) -> None:
    """Put garbage into the first sixteenth of the files, in which something is that counts."""
    for path in data.glob(pattern):
        with path.open("r+b") as file:
            file.write(Random(1).randbytes(path.stat().st_size // 16))


HARMS: dict[str, list[Harm]] = {
    "wheel": [
        lambda data: unlink(data, CHECKPOINT),
        lambda data: unlink(data, "timerwheel"),
        lambda data: cut(data, "timerlog/*"),
        lambda data: spoil(data, "timerlog/*"),
        lambda data: spoil(data, "timerwheel"),
        lambda data: remove(data, "timerlog"),
    ],
    "rocksdb": [
        lambda data: unlink(data, CHECKPOINT),
        lambda data: remove(data, "timerrocksdb"),
        lambda data: cut(data, "timerrocksdb/*.log"),
        lambda data: spoil(data, "timerrocksdb/*"),
        lambda data: unlink(data, "timerrocksdb/CURRENT"),
    ],
}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("engine", ["wheel", "rocksdb"])
def test_lost_and_damaged_files_of_an_engine_neither_lose_nor_repeat(tmp_path: Path, engine: str) -> None:
    """Each after a kill or a clean stop, and at full length after both."""
    ends = [(harm, is_killed) for harm in HARMS[engine] for is_killed in (True, False)]
    if not LONG:
        ends = ends[::4] + ends[3::4]
    harms = [leave_alone, *(harm for harm, _ in ends)]
    killed = [*(is_killed for _, is_killed in ends), True]
    upto = range(HARM_EVERY, (len(harms) + 1) * HARM_EVERY, HARM_EVERY)
    lives = [Life(engine, *life) for life in zip(upto, harms, killed, strict=True)]
    live_and_die(tmp_path / "data", Load(Random(20_29), upto[-1]), lives)


@pytest.mark.timeout(600)
def test_an_engine_can_be_changed_between_any_two_lives(tmp_path: Path) -> None:
    engines = ["wheel", "rocksdb", "wheel", "wheel", "rocksdb"]
    lives = [Life(engine, number * HARM_EVERY) for number, engine in enumerate(engines, 1)]
    live_and_die(tmp_path / "data", Load(Random(20_30), len(lives) * HARM_EVERY), lives)
