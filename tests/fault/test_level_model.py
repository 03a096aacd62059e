"""Random lives of a broker with delay levels: nothing safe is lost, nothing comes twice, nothing comes early.

A life sends, lets time pass, steps the clock, syncs, and ends by a stop, the death of its process or of the machine;
between two lives files may be lost. Every run is a seed. A failing one is named and replays exactly:
`live(SEED)`.
"""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

import pytest

from latermq.broker.broker import Broker
from latermq.clock import SimulatedClock
from latermq.config import TimerConfig
from latermq.errors import StoreError
from latermq.message.batch import BatchMember, encode_batch
from latermq.store.files.memory_disk import MemoryDisk
from latermq.timer.levels import LevelTable
from tests.support.brokers_in_memory import HOST, messages, open_broker, pass_time, run_until_quiet
from tests.support.faults.seeds import run_seeds
from tests.support.needs import LONG

SEEDS = 5_000 if LONG else 200
SEEDS_A_TEST = 50
TOPICS = ("orders", "bills")
QUEUES = 3
# All steps of a run add up to less than what the clock may leap at once, so none of them is ever held.
STEPS_MS = (-600_000, -30_000, -1_500, -20, 20, 1_500, 30_000, 600_000)
TABLES = ("1s 5s 10s 30s 1m", "1s 2s 3s", "10s 1s 5s 2s", "2s")
CHECKPOINT, DELAY_OFFSETS = "latermq.checkpoint", "config/delayOffset.json"
LONGEST_WAIT_MS = 60_000 + 40 * 600_000


@dataclass
class Waiting:
    """A message that was acknowledged: when it is due, where it goes, and where its record ends in the log."""

    due_ms: int
    topic: str
    queue_id: int
    end_offset: int


@dataclass
class Model:
    """Everything that was acknowledged and that no death took back."""

    given: dict[bytes, Waiting] = field(default_factory=dict)
    old_offsets: bytes | None = None

    def forget_behind(self, log_end: int) -> None:
        self.given = {body: one for body, one in self.given.items() if one.end_offset <= log_end}


class Life:
    """One opening of the store, and the steps that chance chooses for it."""

    def __init__(self, disk: MemoryDisk, clock: SimulatedClock, chance: Random, model: Model, number: int) -> None:
        self._disk = disk
        self._clock = clock
        self._chance = chance
        self._model = model
        self._number = number
        self._sent = 0
        table = chance.choice(TABLES)
        self._levels = LevelTable(table)
        self.broker = open_broker(disk, clock, TimerConfig(levels=table))

    def work(self) -> None:
        chance, broker, clock = self._chance, self.broker, self._clock
        for _ in range(chance.randrange(1, 40)):
            kind = chance.random()
            if kind < 0.45:
                self._try(self._send)
            elif kind < 0.55:
                self._try(self._send_batch)
            elif kind < 0.75:
                pass_time(broker, clock, chance.choice((1, 30, 700, 2_500, 12_000)))
                self._check_punctual()
            elif kind < 0.8:
                clock.advance(chance.randrange(3_000))
                broker.timers.run()
            elif kind < 0.85:
                clock.step(chance.choice(STEPS_MS))
            elif kind < 0.92:
                self._try(broker.store.flush)
            elif kind < 0.97:
                self._try(lambda: broker.store.save(broker.store.plan_checkpoint()))
            else:
                self._try(broker.tables.save)
                self._model.old_offsets = self._disk.read(DELAY_OFFSETS)

    def _try(self, step: Callable[[], object]) -> None:
        with contextlib.suppress(StoreError):  # an injected failure: it was refused, so the model does not have it
            step()

    def _body(self) -> bytes:
        self._sent += 1
        return b"%d/%d " % (self._number, self._sent) + b"x" * self._chance.choice((0, 10, 300, 3_000))

    def _place(self) -> tuple[str, int]:
        return self._chance.choice(TOPICS), self._chance.randrange(QUEUES)

    def _level(self) -> int:
        return self._chance.choice((0, 1, 1, 2, 3, 4, 5))

    def _due_ms(self, level: int) -> int:
        return self._clock.now_ms() + (self._levels.delay_ms(level) if level else 0)

    def _send(self) -> None:
        body, level = self._body(), self._level()
        topic, queue_id = self._place()
        properties = f"DELAY\x01{level}\x02UNIQ_KEY\x01{body[:9].hex()}\x02"
        sent = self.broker.writer.send(topic, queue_id, body, properties, 1, HOST)
        self._model.given[body] = Waiting(self._due_ms(level), topic, queue_id, sent[3])

    def _send_batch(self) -> None:
        topic, queue_id = self._place()
        members = [(self._body(), self._level()) for _ in range(self._chance.randrange(1, 6))]
        data = encode_batch(BatchMember(0, body, f"DELAY\x01{level}\x02".encode()) for body, level in members)
        ids, _, _, end, _ = self.broker.writer.send_batch(topic, queue_id, data, 1, HOST)
        # The records lie end to end, and the death of the machine may cut them anywhere.
        starts = [int(one[-16:], 16) for one in ids.split(",")]
        for (body, level), own_end in zip(members, [*starts[1:], end], strict=True):
            self._model.given[body] = Waiting(self._due_ms(level), topic, queue_id, own_end)

    def _check_punctual(self) -> None:
        """The delivery asks by itself to be called in time, so nothing that is due may still wait."""
        if self.broker.timers.failure:
            return
        late = self._model.given.keys() - self.check()
        assert not {body for body in late if self._model.given[body].due_ms <= self._clock.now_ms()}

    def check(self) -> set[bytes]:
        """What is there belongs there, came once, at its place and not before it was due."""
        found: set[bytes] = set()
        for topic in TOPICS:
            for queue_id in range(QUEUES):
                for message in messages(self.broker, topic, queue_id):
                    given = self._model.given[message.body]
                    assert message.body not in found, f"{message.body[:12]!r} came twice"
                    found.add(message.body)
                    assert (given.topic, given.queue_id) == (topic, queue_id)
                    assert message.store_timestamp_ms >= given.due_ms, f"{message.body[:12]!r} came early"
        return found


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
        life.check()
        if seed % 2:
            disk.before_step = lambda operation, path: fail_sometimes(chance, operation, path)
        life.work()
        disk.before_step = lambda operation, path: None
        life.check()
        safe, disk = end_life(life.broker, disk, chance)
        lose_files(disk, chance, model)
        clock.advance(chance.choice((0, 500, 20_000)))
    last = Life(disk, clock, chance, model, 4)
    model.forget_behind(last.broker.store.log.end)
    pass_time_quickly(last.broker, clock, LONGEST_WAIT_MS)
    missing = model.given.keys() - last.check()
    assert not missing, f"never came: {sorted(body[:12] for body in missing)}"


def pass_time_quickly(broker: Broker, clock: SimulatedClock, by_ms: int) -> None:
    run_until_quiet(broker)
    clock.advance(by_ms)
    run_until_quiet(broker)


def end_life(broker: Broker, disk: MemoryDisk, chance: Random) -> tuple[int, MemoryDisk]:
    """Up to where the log must be there in the next life, and the disk of that life."""
    ending = chance.random()
    if ending < 0.2:
        broker.close()
        return broker.store.log.end, disk.after_process_crash()
    if ending < 0.6:
        return broker.store.log.end, disk.after_process_crash()
    return broker.store.log.flushed, disk.after_machine_crash(chance)


def lose_files(disk: MemoryDisk, chance: Random, model: Model) -> None:
    if chance.random() < 0.3 and disk.read(CHECKPOINT) is not None:
        disk.remove(CHECKPOINT)
    fate = chance.random()
    if fate < 0.2 and disk.read(DELAY_OFFSETS) is not None:
        disk.remove(DELAY_OFFSETS)
    elif fate < 0.4 and model.old_offsets is not None:
        disk.replace(DELAY_OFFSETS, model.old_offsets)


def fail_sometimes(chance: Random, operation: str, path: str) -> None:
    if operation in ("reserve", "map") and chance.random() < 0.2:
        raise StoreError(f"injected failure of {operation} on {path}")


@pytest.mark.parametrize("first_seed", range(0, SEEDS, SEEDS_A_TEST))
def test_no_life_loses_repeats_or_hurries_a_delayed_message(first_seed: int) -> None:
    run_seeds(live, first_seed, SEEDS_A_TEST)
