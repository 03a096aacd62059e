"""Random lives of transactions over a store: every half ends once, as its producer decided, or is asked for until then.

A life stores halves, commits, rolls back, asks producers, lets time pass and saves checkpoints, and ends by a stop or a
crash of the process or the machine, at any moment. A failing seed is named and replays exactly: `live(SEED)`.
"""

import contextlib
from collections import Counter
from dataclasses import dataclass, field
from random import Random

import pytest

from latermq.clock import SimulatedClock
from latermq.errors import StoreError
from latermq.group.transactions.half_topic import HalfTopic, TransactionState
from latermq.group.transactions.open_halves import CheckSchedule, Half, OpenHalves
from latermq.message.names import HALF_TOPIC, TRANSACTION_CHECK_TOPIC
from latermq.message.properties import encode_properties
from latermq.store.checkpoint import PATH as CHECKPOINT
from latermq.store.files.memory_disk import MemoryDisk, SimulatedCrash
from latermq.store.log_writer import Appended, Draft
from latermq.store.message_store import MessageStore
from tests.support.faults.seeds import run_seeds
from tests.support.needs import LONG
from tests.support.stores import HOST, SMALL, bodies

SEEDS = 5_000 if LONG else 200
SEEDS_A_TEST = 50
SCHEDULE = CheckSchedule(times=3, max_age_ms=600_000)
GROUPS = ("producers", "others")
TOPIC = "orders"


@dataclass
class Sent:
    """A half that was answered, where its record ends in the log, and when its producer is asked next."""

    key: str
    end_offset: int
    next_ms: int
    checks: int = 0
    is_missed: bool = False


@dataclass
class World:
    """What outlives a broker."""

    halves: dict[int, Sent] = field(default_factory=dict)  # by physical offset
    ends: dict[int, tuple[str, int]] = field(default_factory=dict)  # physical offset → topic of the end, its log end
    doubtful: set[int] = field(default_factory=set)  # the process died while these were ended or stored
    sent: int = 0

    def cut(self, log_end: int) -> None:
        """Forget what a crash of the machine took back."""
        self.halves = {at: one for at, one in self.halves.items() if one.end_offset <= log_end}
        self.ends = {at: end for at, end in self.ends.items() if end[1] <= log_end and at in self.halves}

    def open(self) -> set[int]:
        return self.halves.keys() - self.ends.keys()


class Life:
    """One opening of the store."""

    def __init__(self, disk: MemoryDisk, clock: SimulatedClock, chance: Random, world: World) -> None:
        self._clock, self._chance, self._world = clock, chance, world
        self.open = OpenHalves(SCHEDULE)
        state = TransactionState(self.open)
        self.store = MessageStore(disk, SMALL, clock, store_host=HOST, new_store_id="a" * 32, participants=[state])
        self.topic = HalfTopic(self.store, state, born_host=HOST, now_ms=clock.now_ms())
        world.cut(self.store.log.end)
        self._take_doubtful()
        for at in world.open():
            sent, half = world.halves[at], self._half(at)
            checks = self.open.checks.get(half.queue_offset, 0)
            assert checks <= sent.checks
            sent.checks, sent.is_missed = checks, False
            due_ms = half.stored_ms + SCHEDULE.first_after_ms + checks * SCHEDULE.every_ms
            sent.next_ms = max(due_ms, clock.now_ms())
        self.check()

    def _take_doubtful(self) -> None:
        """What was being written when the process died is there or is not. Only the log knows."""
        world = self._world
        for half in self._all_open():
            if half.physical_offset not in world.halves:
                end = half.physical_offset + half.size
                world.halves[half.physical_offset] = Sent(half.unique_key, end, 0, SCHEDULE.times)
                assert half.physical_offset in world.doubtful or half.unique_key == f"k{world.sent}"
        world.sent += 1
        for at in world.doubtful & world.open():
            if at not in self.open:
                world.ends[at] = ("", self.store.log.end)
        world.doubtful = set()

    def _all_open(self) -> list[Half]:
        far_ms = self._clock.now_ms() + 1_000_000_000
        return [half for halves in self.open.due(far_ms, 100_000) for half in halves]

    def _half(self, at: int) -> Half:
        (half,) = [one for one in self._all_open() if one.physical_offset == at]
        return half

    def check(self) -> None:
        assert {half.physical_offset for half in self._all_open()} == self._world.open()
        assert len(self.open) == len(self._world.open())
        counts = Counter(bodies(self.store, TOPIC)) + Counter(bodies(self.store, TRANSACTION_CHECK_TOPIC))
        assert all(count == 1 for count in counts.values()), "a half has ended twice"
        for topic in (TOPIC, TRANSACTION_CHECK_TOPIC):
            stored = set(bodies(self.store, topic))
            expected = {self._world.halves[at].key.encode() for at, end in self._world.ends.items() if end[0] == topic}
            assert expected <= stored

    def work(self) -> None:
        for _ in range(self._chance.randrange(1, 40)):
            kind = self._chance.random()
            with contextlib.suppress(StoreError):
                if kind < 0.3:
                    self._send()
                elif kind < 0.5:
                    self._end()
                elif kind < 0.75:
                    self._clock.advance(self._chance.choice((1, 6_000, 30_000, 200_000)))
                    self._ask()
                elif kind < 0.8:
                    self._connect()
                elif kind < 0.9:
                    self.store.flush()
                else:
                    self.store.save(self.store.plan_checkpoint())
            self.check()

    def _send(self) -> None:
        world = self._world
        world.sent += 1
        key = f"k{world.sent}"
        properties = encode_properties({"UNIQ_KEY": key, "PGROUP": self._chance.choice(GROUPS)}).encode()
        now_ms = self._clock.now_ms()
        appended = Appended(*self.store.writer.append(HALF_TOPIC, 0, key.encode(), properties, 1, HOST))
        self.topic.note_stored(appended, now_ms, properties)
        world.halves[appended.physical_offset] = Sent(key, appended.end_offset, now_ms + SCHEDULE.first_after_ms)

    def _end(self) -> None:
        """Commit some halves and roll back others, in one block."""
        chosen = sorted(self._world.open())
        self._chance.shuffle(chosen)
        committed, rolled_back = chosen[: self._chance.randrange(3)], chosen[3 : 3 + self._chance.randrange(3)]
        if committed or rolled_back:
            self._end_as(TOPIC, committed, rolled_back)

    def _end_as(self, topic: str, committed: list[int], rolled_back: list[int]) -> None:
        world = self._world
        drafts = [Draft(topic, 0, world.halves[at].key.encode(), b"", 1, HOST) for at in committed]
        world.doubtful = {*committed, *rolled_back}
        appended = self.topic.end(
            drafts, [self._half(at) for at in committed], [self._half(at) for at in rolled_back], self._clock.now_ms()
        )
        world.doubtful = set()
        for at, one in zip([*committed, *rolled_back], appended, strict=False):
            world.ends[at] = (topic if at in committed else "", one.end_offset)

    def _ask(self) -> None:
        now_ms, world = self._clock.now_ms(), self._world
        ask, give_up = self.open.due(now_ms, 100_000)
        due = {at for at in world.open() if world.halves[at].next_ms <= now_ms}
        assert {half.physical_offset for half in (*ask, *give_up)} == due
        for half in ask:
            sent = world.halves[half.physical_offset]
            assert sent.checks < SCHEDULE.times
            sent.next_ms = now_ms + SCHEDULE.every_ms
            if self._chance.random() < 0.5:
                self.open.note_asked(half, now_ms)
                sent.checks, sent.is_missed = sent.checks + 1, False
            else:
                self.open.note_unreachable(half, now_ms)
                sent.is_missed = True
        if give_up:
            self._end_as(TRANSACTION_CHECK_TOPIC, [half.physical_offset for half in give_up], [])

    def _connect(self) -> None:
        group, now_ms = self._chance.choice(GROUPS), self._clock.now_ms()
        for half in self._all_open():
            sent = self._world.halves[half.physical_offset]
            if half.producer_group == group and sent.is_missed:
                sent.next_ms, sent.is_missed = now_ms, False
        self.open.note_connected(group, now_ms)


def live(seed: int) -> None:
    """Several lives of one store. Odd seeds have a disk that fails at times and a process that dies in a call."""
    chance = Random(seed)
    clock, disk, world = SimulatedClock(), MemoryDisk(), World()
    for _ in range(4):
        life = Life(disk, clock, chance, world)
        if seed % 2:
            disk.before_step = lambda operation, path: fail_sometimes(chance, operation)
            disk.crash_after(chance.randrange(5, 400), halfway=chance.random() < 0.5)
        with contextlib.suppress(SimulatedCrash):
            life.work()
        disk.before_step = lambda operation, path: None
        disk.crash_after(None)
        ending = chance.random()
        with contextlib.suppress(SimulatedCrash, StoreError):
            if ending < 0.2:
                life.store.close()
        disk = disk.after_process_crash() if ending < 0.6 else disk.after_machine_crash(chance)
        if chance.random() < 0.1 and disk.read(CHECKPOINT) is not None:
            disk.remove(CHECKPOINT)
        clock.advance(chance.choice((0, 500, 70_000)))
    last = Life(disk, clock, chance, world)
    for _ in range(60):
        clock.advance(60_000)
        last._ask()
        last.check()
    assert not world.open(), "a half is neither ended nor given up"


def fail_sometimes(chance: Random, operation: str) -> None:
    if operation in ("reserve", "map", "replace") and chance.random() < 0.1:
        raise StoreError(f"injected failure of {operation}")


@pytest.mark.parametrize("first_seed", range(0, SEEDS, SEEDS_A_TEST))
def test_no_life_ends_a_transaction_twice_or_forgets_one(first_seed: int) -> None:
    run_seeds(live, first_seed, SEEDS_A_TEST)
