"""Random lives of a whole broker with transactions, some of them delayed: each ends once, as its producer decided.

A life sends halves, commits, rolls back and repeats both, answers checks or leaves them unanswered, and lets time pass.
It ends by a stop or by a crash of the process or the machine, at any moment. A delayed message is never delivered
early. A failing seed is named and replays exactly: `live(SEED)`.
"""

import contextlib
from collections import Counter
from dataclasses import dataclass, field
from random import Random

import pytest

from latermq.broker.broker import Broker
from latermq.broker.transactions.half_writer import StoredHalf
from latermq.clock import SimulatedClock
from latermq.config import BrokerConfig, TransactionConfig
from latermq.errors import IllegalOperation, LaterMQError, StoreError, TransactionNotFound
from latermq.group.members import Channel
from latermq.message.names import TRANSACTION_CHECK_TOPIC
from latermq.message.record import Message
from latermq.model.transaction import Decision
from latermq.store.files.memory_disk import MemoryDisk, SimulatedCrash
from tests.support.brokers_in_memory import bodies, messages, open_broker
from tests.support.faults.seeds import run_seeds
from tests.support.needs import LONG
from tests.support.producers import connect, end, end_by_key, send_half

SEEDS = 5_000 if LONG else 200
SEEDS_A_TEST = 50
TOPIC = "orders"
CHECKS = 3
SETTINGS = TransactionConfig(checks=CHECKS)
QUEUES = 2
# The delay properties that a message may have: name, and the milliseconds that it counts from the commit; None if its
# time is absolute.
DELAYS = (
    ({"DELAY": "2"}, 5_000),
    ({"TIMER_DELAY_SEC": "7"}, 7_000),
    ({"TIMER_DELAY_MS": "1500"}, 1_500),
    ({"TIMER_DELIVER_MS": "%d"}, None),
)


@dataclass
class Sent:
    """A half that was answered."""

    half: StoredHalf
    delay_ms: int | None = None
    due_ms: int = 0  # absolute time before which it must not be delivered
    decision: Decision | None = None  # confirmed
    tried: set[Decision] = field(default_factory=set)  # requested without an answer
    decided_until: int = 0  # log offset of the confirmed end


@dataclass
class World:
    """What outlives a broker."""

    halves: dict[bytes, Sent] = field(default_factory=dict)  # by body
    number: int = 0

    def cut(self, log_end: int) -> None:
        """Forget what a crash of the machine took back."""
        self.halves = {body: one for body, one in self.halves.items() if one.half.end_offset <= log_end}
        for one in self.halves.values():
            if one.decision is not None and one.decided_until > log_end:
                one.tried.add(one.decision)
                one.decision, one.decided_until = None, 0


class Life:
    """One opening of the broker."""

    def __init__(self, disk: MemoryDisk, clock: SimulatedClock, chance: Random, world: World) -> None:
        self._clock, self._chance, self._world = clock, chance, world
        self.broker = open_broker(disk, clock, settings=BrokerConfig(default_queues=QUEUES), transaction=SETTINGS)
        world.cut(self.broker.store.log.end)
        self.check()

    def check(self) -> None:
        """Every message is there at most once, and only if it may be; each confirmed commit is there or waits."""
        world, broker = self._world, self.broker
        delivered: Counter[bytes] = Counter()
        for queue_id in range(QUEUES):
            for message in messages(broker, TOPIC, queue_id):
                delivered[message.body] += 1
                one = world.halves.get(message.body)
                if one is None:
                    continue  # its half was not answered, or the machine has forgotten it
                assert one.decision is Decision.COMMIT or Decision.COMMIT in one.tried, message.body
                assert message.store_timestamp_ms >= one.due_ms, "delivered early"
        given_up = Counter(bodies(broker, TRANSACTION_CHECK_TOPIC))
        assert not delivered & given_up
        assert all(count == 1 for count in (delivered + given_up).values()), "ended twice"
        for body, one in world.halves.items():
            assert one.decision is not Decision.ROLL_BACK or not delivered[body]

    def work(self) -> None:
        for _ in range(self._chance.randrange(1, 30)):
            kind = self._chance.random()
            with contextlib.suppress(StoreError):
                if kind < 0.35:
                    self._send()
                elif kind < 0.65:
                    self._end()
                elif kind < 0.85:
                    self._clock.advance(self._chance.choice((1, 999, 6_000, 30_000)))
                    self._run()
                elif kind < 0.92:
                    self.broker.store.flush()
                else:
                    self.broker.store.save(self.broker.store.plan_checkpoint())
        self.check()

    def _send(self) -> None:
        world, chance = self._world, self._chance
        world.number += 1
        body, now_ms = b"m%d" % world.number, self._clock.now_ms()
        properties, delay_ms, due_ms = {}, 0, 0
        if chance.random() < 0.5:
            wanted, relative_ms = chance.choice(DELAYS)
            due_ms = now_ms + chance.randrange(60_000) if relative_ms is None else 0
            properties = {name: value.replace("%d", str(due_ms)) for name, value in wanted.items()}
            delay_ms = relative_ms or 0
        half = send_half(self.broker, body, TOPIC, chance.randrange(QUEUES), "", **properties)
        world.halves[body] = Sent(half, delay_ms, due_ms)

    def _end(self) -> None:
        if self._world.halves:
            self.decide(*self._chance.choice(list(self._world.halves.items())))

    def decide(self, body: bytes, one: Sent) -> None:
        """End a half, or repeat that, by its offsets or by its key. The answer must agree with the earlier ones."""
        decision = self._chance.choice((Decision.COMMIT, Decision.COMMIT, Decision.ROLL_BACK))
        is_first = one.decision is None and not one.tried
        if is_first:
            one.tried.add(decision)
            if decision is Decision.COMMIT and one.delay_ms:
                one.due_ms = self._clock.now_ms() + one.delay_ms
        elif one.decision is None:
            decision = next(iter(one.tried)) if len(one.tried) == 1 else decision
            one.tried.add(decision)
        try:
            if self._chance.random() < 0.5:
                end_offset = end(self.broker, one.half, decision)
            else:
                end_offset = end_by_key(self.broker, body.decode(), decision)
        except IllegalOperation:
            is_given_up = self._is_given_up(body)
            assert one.decision is not decision or is_given_up, "a confirmed decision is contradicted"
            assert not is_first or is_given_up
            return
        except TransactionNotFound:
            raise AssertionError(f"half {body!r} was answered and is gone") from None
        assert one.decision in (None, decision) or (decision is Decision.ROLL_BACK and self._is_given_up(body))
        one.decision, one.decided_until = one.decision or decision, one.decided_until or end_offset

    def _is_given_up(self, body: bytes) -> bool:
        return body in bodies(self.broker, TRANSACTION_CHECK_TOPIC)

    def _run(self) -> None:
        """Deliver what is due, and answer checks as the producer decides."""
        if self._chance.random() < 0.3:
            connect(self.broker)
        while self.broker.timers.run() == 0:
            pass
        self.run_checks()

    def run_checks(self) -> None:
        asked: list[bytes] = []

        def note(_: Channel, half: Message) -> None:
            asked.append(half.body)

        while self.broker.transaction_checks.run(note) == 0:
            pass
        assert max(Counter(asked).values(), default=0) <= 1
        for body in asked:
            one = self._world.halves.get(body)
            assert one is None or one.decision is None, "a transaction that has ended is asked for"
            if one is not None and self._chance.random() < 0.3:
                self.decide(body, one)


def live(seed: int) -> None:
    """Several lives of one store. Odd seeds have a disk that fails at times and a process that dies in a call."""
    chance = Random(seed)
    clock, disk, world = SimulatedClock(), MemoryDisk(), World()
    for _ in range(3):
        life = Life(disk, clock, chance, world)
        if seed % 2:
            disk.crash_after(chance.randrange(5, 600), halfway=chance.random() < 0.5)
        with contextlib.suppress(SimulatedCrash):
            life.work()
        disk.crash_after(None)
        ending = chance.random()
        with contextlib.suppress(SimulatedCrash, LaterMQError):
            if ending < 0.2:
                life.broker.close()
        disk = disk.after_process_crash() if ending < 0.6 else disk.after_machine_crash(chance)
        clock.advance(chance.choice((0, 500, 70_000)))
    finish(Life(disk, clock, chance, world), clock, world)


def finish(last: Life, clock: SimulatedClock, world: World) -> None:
    """Let all checks and timers come, and compare what is there in the end."""
    broker: Broker = last.broker
    connect(broker)
    for _ in range(8 * CHECKS):
        clock.advance(15_000)
        while broker.timers.run() == 0:
            pass
        last.run_checks()
    last.check()
    assert len(broker.open_halves) == 0, "a half is neither ended nor given up"
    delivered = {body for queue_id in range(QUEUES) for body in bodies(broker, TOPIC, queue_id)}
    given_up = set(bodies(broker, TRANSACTION_CHECK_TOPIC))
    for body, one in world.halves.items():
        if one.decision is Decision.COMMIT:
            assert body in delivered, f"{body!r} was committed and is lost"
        elif one.decision is None and not one.tried:
            assert body in given_up


@pytest.mark.parametrize("first_seed", range(0, SEEDS, SEEDS_A_TEST))
def test_no_life_of_a_broker_loses_or_repeats_a_transaction(first_seed: int) -> None:
    run_seeds(live, first_seed, SEEDS_A_TEST)
