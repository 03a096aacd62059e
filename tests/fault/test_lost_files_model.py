"""Random lives of a broker that loses, at each death, any one file that it could build again from its log.

The lives are those of test_timer_model.py, with delays, plain messages, consumers and a topic that is deleted and made
again beside the timers, and with retention: most of what a life leaves has aged out before the last one ends. What is
lost is told by tests/support/faults/lost_files.py.
"""

from dataclasses import dataclass, field
from random import Random

import msgspec
import pytest

from latermq.broker.broker import Broker
from latermq.clock import SimulatedClock
from latermq.config import TimerConfig
from latermq.model.topic import Topic
from latermq.store.files.memory_disk import MemoryDisk
from tests.fault.test_level_model import end_life, fail_sometimes
from tests.fault.test_timer_model import LONGEST_WAIT_MS, Event, Life, Model
from tests.support.brokers_in_memory import HOST, messages, open_broker, run_until_quiet, send
from tests.support.faults.aging_broker import AGING
from tests.support.faults.crashed_starts import after_crashed_starts
from tests.support.faults.lost_files import lose_one
from tests.support.faults.seeds import run_seeds
from tests.support.needs import LONG

LIVES_A_SEED = 5
SEEDS = 400 if LONG else 8
SEEDS_A_TEST = 4
# Several files of each kind within a life. The index has few slots, so that chains are long.
STORE = msgspec.structs.replace(AGING, queue_file_entries=16, index_entries=60, index_slots=13)
GROUP = "readers"


@dataclass
class Sent:
    """A message that was acknowledged: when it is due, where its record ends, and where it was found."""

    due_ms: int
    end_offset: int
    found_at: int = -1  # in the log, where it was delivered to
    is_consumed: bool = False


@dataclass
class Ledger(Model):
    """All that was acknowledged and that no death took back, though it may have left the log since."""

    delivered: dict[int, Event] = field(default_factory=dict)  # timers, by where they end in the log
    delays: dict[bytes, Sent] = field(default_factory=dict)
    plain: dict[bytes, Sent] = field(default_factory=dict)
    passing: dict[bytes, int] = field(default_factory=dict)  # in the topic that comes and goes, since it came last

    def forget_behind(self, log_end: int) -> None:
        super().forget_behind(log_end)
        self.delivered = {at: event for at, event in self.delivered.items() if at <= log_end}
        self.delays = {body: one for body, one in self.delays.items() if one.end_offset <= log_end}
        self.plain = {body: one for body, one in self.plain.items() if one.end_offset <= log_end}
        self.passing = {body: end for body, end in self.passing.items() if end <= log_end}
        for one in self.delays.values():
            if one.found_at >= log_end:
                one.found_at = -1


class LossyLife(Life):
    """A life with all kinds of messages, whose log ages."""

    _model: Ledger

    def _open(self, config: TimerConfig) -> Broker:
        broker = open_broker(self._disk, self._clock, config, STORE)
        broker.groups.require(GROUP)
        return broker

    def work(self) -> None:
        own = (
            self._delay, self._delay, self._send_plain, self._send_plain, self._send_passing, self._delete_passing,
            self._consume, self._age, self._age,
        )  # fmt: skip
        for _ in range(self._chance.randrange(1, 3)):
            if self._chance.random() < 0.6:
                super().work()
            for step in self._chance.choices(own, k=self._chance.randrange(1, 5)):
                self._try(step)

    def deliveries(self) -> list[Event]:
        """Also those that have left the log since they were seen."""
        self._model.delivered |= {event.position: event for event in super().deliveries()}
        return list(self._model.delivered.values())

    def _delay(self) -> None:
        for _ in range(self._chance.randrange(1, 20)):
            body, level = self._body(), self._chance.choice((1, 2, 3))
            properties = f"DELAY\x01{level}\x02UNIQ_KEY\x01{body[:9].hex()}\x02"
            sent = self.broker.writer.send("delays", 0, body, properties, 1, HOST)
            due_ms = self._clock.now_ms() + {1: 1_000, 2: 5_000, 3: 10_000}[level]
            self._model.delays[body] = Sent(due_ms, sent[3])

    def _send_plain(self) -> None:
        for _ in range(self._chance.randrange(1, 20)):
            body = self._body()
            sent = self.broker.writer.send("plain", self._chance.randrange(2), body, "", 1, HOST)
            self._model.plain[body] = Sent(0, sent[3])

    def _send_passing(self) -> None:
        if self.broker.topics.find("passing") is None:
            self.broker.topics.put(Topic(name="passing", read_queues=1, write_queues=1))
            self.broker.tables.save()
        for _ in range(self._chance.randrange(1, 20)):
            body = self._body()
            self._model.passing[body] = self.broker.writer.send("passing", 0, body, "", 1, HOST)[3]

    def _delete_passing(self) -> None:
        if self.broker.topics.find("passing") is not None:
            works = self.broker.topic_admin.delete("passing")
            for work in works:
                work()
            self._model.passing.clear()

    def _consume(self) -> None:
        """Read on from the stored offsets, and store how far that came; what is stored is flushed."""
        self.broker.store.flush()
        for queue_id in range(2):
            queue = self.broker.store.queues.find("plain", queue_id)
            offset = max(0, self.broker.offsets.get(GROUP, "plain", queue_id))
            if queue is None:
                continue
            for message in messages(self.broker, "plain", queue_id):
                if message.queue_offset >= offset:
                    self._model.plain[message.body].is_consumed = True
            self.broker.progress.commit(GROUP, "plain", queue_id, queue.next_offset)
        self.broker.tables.save()

    def _age(self) -> None:
        """Let what was sent so far become old, and retention take what it may."""
        for _ in range(2):
            for _ in range(self._chance.choice((1, 6))):
                send(self.broker, b"x" * 50_000, topic="traffic")
            self._pass(self._chance.choice((5_000, 35_000, 35_000)))
        self.note()
        self._consume()
        run_until_quiet(self.broker)
        self.broker.store.save(self.broker.store.plan_checkpoint())
        self.broker.tables.save()  # which comes many times within a real retention
        self._retain()

    def _retain(self) -> None:
        for removed in self.broker.retention.run():
            self._disk.remove(removed.path)

    def _pass(self, by_ms: int) -> None:
        self._try(self.broker.store.flush)
        super()._pass(by_ms)

    def note(self) -> None:
        """See what is there: it came once, not before it was due, and belongs there."""
        self.deliveries()
        for message in messages(self.broker, "delays"):
            one = self._model.delays[message.body]
            assert one.found_at in (-1, message.physical_offset), f"{message.body[:12]!r} came twice"
            assert message.store_timestamp_ms >= one.due_ms, f"{message.body[:12]!r} came early"
            one.found_at = message.physical_offset
        passing = [message.body for message in messages(self.broker, "passing")]
        assert set(passing) <= self._model.passing.keys(), "messages of a deleted topic are back"

    def check_end(self) -> None:
        """All that was acknowledged has come, but for what a death took back."""
        self.note()
        self._consume()
        assert not self.check()
        assert not [body[:12] for body, one in self._model.delays.items() if one.found_at < 0], "delays never came"
        assert not [body[:12] for body, one in self._model.plain.items() if not one.is_consumed], "never consumed"


def live(seed: int) -> None:
    """Several lives of one store; odd seeds have a disk that fails at times."""
    chance = Random(seed)
    clock, disk, ledger = SimulatedClock(), MemoryDisk(), Ledger()
    lost: list[str] = []
    try:
        for number in range(LIVES_A_SEED):
            disk = live_once(chance, clock, disk, ledger, number, is_failing=bool(seed % 2))
            if chance.random() < 0.8:
                lost.append(lose_one(disk, chance))
            if chance.random() < 0.2:
                lost.append(lose_one(disk, chance))  # at times two
            disk = after_crashed_starts(disk, lambda disk: start_and_die(disk, clock), chance, may_lose_unsynced=True)
            clock.advance(chance.choice((0, 500, 20_000, 100_000)))
        last = LossyLife(disk, clock, chance, ledger, LIVES_A_SEED)
        ledger.forget_behind(last.broker.store.log.end)
        last.note()
        run_out(last, clock)
        last.check_end()
        last.broker.timers.engine.close()
    except BaseException as error:
        error.add_note(f"lost at the deaths: {lost}")
        raise


def start_and_die(disk: MemoryDisk, clock: SimulatedClock) -> None:
    """Start, if it comes to that, and be gone."""
    broker = open_broker(disk, clock, store=STORE)
    broker.timers.engine.close()
    broker.far_names.close()


def live_once(
    chance: Random, clock: SimulatedClock, disk: MemoryDisk, ledger: Ledger, number: int, *, is_failing: bool
) -> MemoryDisk:
    """One life, and the disk that it leaves."""
    life = LossyLife(disk, clock, chance, ledger, number)
    ledger.forget_behind(life.broker.store.log.end)
    life.note()
    life.check_listing()
    if is_failing:
        disk.before_step = lambda operation, path: fail_sometimes(chance, operation, path)
    life.work()
    disk.before_step = lambda operation, path: None
    life.note()
    life.check_listing()
    _, disk = end_life(life.broker, disk, chance)
    life.broker.timers.engine.close()
    return disk


def run_out(life: LossyLife, clock: SimulatedClock) -> None:
    """Let all that waits come due, in steps: rolls need the records that they write to be flushed."""
    for by_ms in (0, *[30_000] * 8, LONGEST_WAIT_MS):
        clock.advance(by_ms)
        run_until_quiet(life.broker)
        life.broker.store.flush()
        run_until_quiet(life.broker)


@pytest.mark.parametrize("first_seed", range(0, SEEDS, SEEDS_A_TEST))
def test_whatever_is_lost_at_a_death_all_that_was_acknowledged_comes_once(first_seed: int) -> None:
    run_seeds(live, first_seed, SEEDS_A_TEST)
