"""Random lives of a broker with timers: none is lost, repeated, hurried or brought back, and every answer is honest.

A life schedules, cancels, moves, lets time pass, steps the clock, syncs, and ends by a stop, the death of its process
or of the machine; between two lives files may be lost and the engine changed. The model is the log itself, replayed by
`replay`: what it says is pending must arrive, and nothing else. Every run is a seed; a failing one is named and replays
exactly: `live(SEED)`.
"""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

import pytest

from latermq.broker.broker import Broker
from latermq.clock import SimulatedClock
from latermq.config import Duration, TimerConfig
from latermq.errors import StoreError
from latermq.message.batch import BatchMember, encode_batch
from latermq.message.properties import encode_properties
from latermq.model.timers import Verdict
from latermq.store.files.memory_disk import MemoryDisk
from tests.fault.test_level_model import CHECKPOINT, STEPS_MS, end_life, fail_sometimes
from tests.support.brokers_in_memory import HOST, STORE, messages, open_broker, pass_time, run_until_quiet
from tests.support.faults.seeds import run_seeds
from tests.support.needs import LONG

SEEDS = 5_000 if LONG else 200
SEEDS_A_TEST = 25
TOPIC = "orders"
QUEUES = 2
NAMES = [f"n{number}" for number in range(12)]
# Rolls come after two thirds of the retention at most, so most delays here roll at least once.
ROLLING_STORE = type(STORE)(**{name: getattr(STORE, name) for name in STORE.__struct_fields__} | {
    "retention": Duration.parse("30s"),
})  # fmt: skip
DELAYS_MS = (1, 40, 900, 1_000, 1_001, 4_000, 15_000, 25_000, 70_000, 200_000)
LONGEST_WAIT_MS = 200_000 + 40 * 600_000


@dataclass
class Event:
    """Something that the log holds, and where its record ends there."""

    position: int
    kind: str  # schedule, cancel, move, deliver
    name: str
    body: bytes = b""
    due_ms: int = 0
    store_timestamp_ms: int = 0


Pending = dict[str, dict[bytes, int]]


def replay(events: list[Event]) -> Pending:
    """For each name the bodies that wait for it, each with its due time, after all these events."""
    pending: Pending = {}
    for event in sorted(events, key=lambda event: event.position):
        waiting = pending.setdefault(event.name, {})
        if event.kind == "deliver":
            assert event.body in waiting, f"{event.body[:9]!r} was delivered though nothing of it waited"
            assert waiting.pop(event.body) == event.due_ms
            assert event.store_timestamp_ms >= event.due_ms, f"{event.body[:9]!r} came early"
        elif event.kind == "schedule":
            waiting[event.body] = event.due_ms
        else:
            body = next(reversed(waiting), b"")
            waiting.clear()
            if event.kind == "move":
                waiting[body] = event.due_ms
    return {name: waiting for name, waiting in pending.items() if waiting}


@dataclass
class Model:
    """Everything that was written and that no death took back."""

    events: list[Event] = field(default_factory=list)

    def forget_behind(self, log_end: int) -> None:
        self.events = [event for event in self.events if event.position <= log_end]


class Life:
    """One opening of the store, and the steps that chance chooses for it."""

    def __init__(self, disk: MemoryDisk, clock: SimulatedClock, chance: Random, model: Model, number: int) -> None:
        self._disk = disk
        self._clock = clock
        self._chance = chance
        self._model = model
        self._number = number
        self._sent = 0
        self.engine = chance.choice(("wheel", "wheel", "wheel", "rocksdb"))
        config = TimerConfig(engine=self.engine)  # type: ignore[arg-type]
        self.broker = self._open(config)

    def _open(self, config: TimerConfig) -> Broker:
        return open_broker(self._disk, self._clock, config, ROLLING_STORE)

    def work(self) -> None:
        chance, broker, clock = self._chance, self.broker, self._clock
        for _ in range(chance.randrange(1, 40)):
            kind = chance.random()
            if kind < 0.3:
                self._try(self._schedule)
            elif kind < 0.35:
                self._try(self._schedule_batch)
            elif kind < 0.45:
                self._try(self._cancel)
            elif kind < 0.48:
                self._try(self._cancel_by_property)
            elif kind < 0.55:
                self._try(self._move)
            elif kind < 0.75:
                self._pass(chance.choice((1, 30, 700, 2_500, 12_000)))
                self._check_punctual()
            elif kind < 0.8:
                clock.advance(chance.randrange(3_000))
                broker.timers.run()
            elif kind < 0.84:
                clock.step(chance.choice(STEPS_MS))
            elif kind < 0.93:
                self._try(broker.store.flush)
            else:
                self._try(lambda: broker.store.save(broker.store.plan_checkpoint()))

    def _pass(self, by_ms: int) -> None:
        pass_time(self.broker, self._clock, by_ms)

    def _try(self, step: Callable[[], object]) -> None:
        with contextlib.suppress(StoreError):  # an injected failure: it was refused, so the model does not have it
            step()

    def _write(self, kind: str, name: str, body: bytes = b"", due_ms: int = 0, position: int = 0) -> None:
        self._model.events.append(Event(position or self.broker.store.log.end, kind, name, body, due_ms))

    def _body(self) -> bytes:
        self._sent += 1
        return b"%d/%d " % (self._number, self._sent) + b"x" * self._chance.choice((0, 10, 300, 3_000))

    def _schedule(self) -> None:
        body, name, delay_ms = self._body(), self._chance.choice(NAMES), self._chance.choice(DELAYS_MS)
        properties = encode_properties({"TIMER_DELAY_MS": str(delay_ms), "UNIQ_KEY": name, "KEYS": "all " + name})
        self.broker.writer.send(TOPIC, self._chance.randrange(QUEUES), body, properties, 1, HOST)
        self._write("schedule", name, body, self._clock.now_ms() + delay_ms)

    def _schedule_batch(self) -> None:
        members = [
            (self._body(), self._chance.choice(NAMES), self._chance.choice(DELAYS_MS))
            for _ in range(self._chance.randrange(1, 6))
        ]
        data = encode_batch(
            BatchMember(0, body, f"TIMER_DELAY_MS\x01{delay_ms}\x02UNIQ_KEY\x01{name}\x02".encode())
            for body, name, delay_ms in members
        )
        ids, _, _, end, _ = self.broker.writer.send_batch(TOPIC, 0, data, 1, HOST)
        starts = [int(one[-16:], 16) for one in ids.split(",")]
        for (body, name, delay_ms), own_end in zip(members, [*starts[1:], end], strict=True):
            self._write("schedule", name, body, self._clock.now_ms() + delay_ms, own_end)

    def _cancel(self) -> None:
        name = self._chance.choice(NAMES)
        waiting = replay(self.all_events()).get(name)
        outcome = self.broker.pending.cancel(TOPIC, name)
        assert (outcome.timers > 0) == bool(waiting)
        if waiting:
            assert (outcome.verdict, outcome.timers) == (Verdict.CANCELLED, len(waiting))
            self._write("cancel", name)
            assert self.broker.pending.cancel(TOPIC, name).verdict == Verdict.CANCELLED
        else:
            assert outcome.verdict in (Verdict.CANCELLED, Verdict.DELIVERED, Verdict.NOT_FOUND)

    def _cancel_by_property(self) -> None:
        name = self._chance.choice(NAMES)
        properties = encode_properties({
            "TIMER_DELAY_MS": "5000", "UNIQ_KEY": "c", "TIMER_DEL_UNIQKEY": f"{TOPIC}+{name}",
        })  # fmt: skip
        self.broker.writer.send(TOPIC, 0, b"0", properties, 1, HOST)
        self._write("cancel", name)

    def _move(self) -> None:
        name, due_ms = self._chance.choice(NAMES), self._clock.now_ms() + self._chance.choice((0, *DELAYS_MS))
        waiting = replay(self.all_events()).get(name)
        outcome = self.broker.pending.move(TOPIC, name, due_ms)
        assert (outcome.verdict == Verdict.MOVED) == bool(waiting)
        if waiting:
            assert outcome.timers == len(waiting)
            self._write("move", name, b"", due_ms)

    def deliveries(self) -> list[Event]:
        """What lies in the topic."""
        found = []
        for queue_id in range(QUEUES):
            for message in messages(self.broker, TOPIC, queue_id):
                position = message.physical_offset + message.size_bytes
                name, due_ms = message.properties["UNIQ_KEY"], int(message.properties["LMQ_DUE_MS"])
                found.append(Event(position, "deliver", name, message.body, due_ms, message.store_timestamp_ms))
        return found

    def all_events(self) -> list[Event]:
        return self._model.events + self.deliveries()

    def check(self) -> Pending:
        """All that the log holds makes sense; what waits according to it, and according to the broker."""
        pending = replay(self.all_events())
        count = sum(map(len, pending.values()))
        assert self.broker.pending.count() == count
        assert self.broker.pending.count(topic=TOPIC) == count
        return pending

    def _check_punctual(self) -> None:
        """The delivery asks by itself to be called in time, so nothing that is due may still wait."""
        pending = self.check()
        if self.broker.timers.failure or self.broker.timers.failure:
            return
        late = [
            body for waiting in pending.values() for body, due_ms in waiting.items() if due_ms <= self._clock.now_ms()
        ]
        assert not late

    def check_listing(self) -> None:
        """What is listed is what waits."""
        expected = sorted((due_ms, name) for name, waiting in self.check().items() for due_ms in waiting.values())
        listed = [(timer.due_ms, timer.unique_key) for timer in self.broker.pending.list(limit=1_000).timers]
        assert sorted(listed) == expected, f"{sorted(listed)} are listed, {expected} wait"


def live(seed: int) -> None:
    """Several lives of one store, each ended in another way; odd seeds have a disk that fails at times."""
    chance = Random(seed)
    clock, disk, model = SimulatedClock(), MemoryDisk(), Model()
    safe = 0
    for number in range(4):
        life = Life(disk, clock, chance, model, number)
        end = life.broker.store.log.end
        assert end >= safe, f"the log ends at {end}, but was safe up to {safe}"
        model.forget_behind(end)
        life.check_listing()
        if seed % 2:
            disk.before_step = lambda operation, path: fail_sometimes(chance, operation, path)
        life.work()
        disk.before_step = lambda operation, path: None
        life.check_listing()
        safe, disk = end_life(life.broker, disk, chance)
        life.broker.timers.engine.close()
        lose_files(disk, chance)
        clock.advance(chance.choice((0, 500, 20_000, 300_000)))
    last = Life(disk, clock, chance, model, 4)
    model.forget_behind(last.broker.store.log.end)
    pass_time_quickly(last.broker, clock)
    missing = last.check()
    last.broker.timers.engine.close()
    assert not missing, f"never came: {missing}"


def pass_time_quickly(broker: Broker, clock: SimulatedClock) -> None:
    """Rolls need the records that they write to be flushed, so time passes in steps."""
    for by_ms in (0, 30_000, 30_000, 30_000, 30_000, 30_000, 30_000, 30_000, 30_000, LONGEST_WAIT_MS):
        clock.advance(by_ms)
        run_until_quiet(broker)
        broker.store.flush()
        run_until_quiet(broker)


def lose_files(disk: MemoryDisk, chance: Random) -> None:
    if chance.random() < 0.15 and disk.read(CHECKPOINT) is not None:
        disk.remove(CHECKPOINT)
    if chance.random() < 0.15:
        disk.remove(chance.choice(("timerwheel", "timerlog", "timerrocksdb")))


@pytest.mark.parametrize("first_seed", range(0, SEEDS, SEEDS_A_TEST))
def test_no_life_loses_repeats_hurries_or_brings_back_a_timer(first_seed: int) -> None:
    run_seeds(live, first_seed, SEEDS_A_TEST)
