"""Counts of pending timers stay true, whatever is lost or fails: compared with every single record that waits."""

from collections import Counter
from collections.abc import Callable, Iterator
from random import Random

import pytest

from latermq.broker.broker import Broker
from latermq.clock import SimulatedClock
from latermq.config import TimerConfig
from latermq.errors import StoreError
from latermq.message.names import TIMER_DEAD_LETTER_TOPIC, TIMER_TOPIC
from latermq.message.properties import MAX_PROPERTIES_BYTES, REAL_TOPIC, encode_properties
from latermq.model.timers import Verdict
from latermq.store.files.memory_disk import MemoryDisk
from tests.support.brokers_in_memory import HOST, bodies, messages, open_broker, pass_time, run_until_quiet
from tests.support.needs import LONG

DAY_MS = 86_400_000
SEEDS = range(200) if LONG else range(3)
TOPICS = ("orders", "bills", "doomed")
NAMES = tuple(f"name{number}" for number in range(7))
DELAYS_MS = (50, 700, 1_500, 3_000, 8_000, 60_000, DAY_MS, 3 * DAY_MS, 9 * DAY_MS)


class Ground:
    """A broker on a disk that can lose things."""

    def __init__(self, engine: str) -> None:
        self.disk = MemoryDisk()
        self.clock = SimulatedClock()
        self.config = TimerConfig(engine=engine)  # type: ignore[arg-type]
        self.broker: Broker = open_broker(self.disk, self.clock, self.config)

    def reopen(self, *, without: tuple[str, ...] = (), power_cut: Random | None = None, clean: bool = False) -> None:
        """Die or stop, lose these paths, and start again."""
        if clean:
            self.broker.close()
        else:
            self.broker.timers.engine.close()
        disk = self.disk.after_process_crash() if power_cut is None else self.disk.after_machine_crash(power_cut)
        for path in without:
            disk.remove(path)
        self.disk = disk
        self.broker = open_broker(self.disk, self.clock, self.config)

    def send(self, topic: str, **properties: str) -> None:
        self.broker.writer.send(topic, 0, b"body", encode_properties(properties), 1, HOST)

    def schedule(self, delay_ms: int, name: str, topic: str = "orders", **properties: str) -> None:
        self.send(topic, TIMER_DELAY_MS=str(delay_ms), UNIQ_KEY=name, **properties)

    def flush(self) -> None:
        self.broker.store.flush()
        run_until_quiet(self.broker)

    def checkpoint(self) -> None:
        self.flush()
        self.broker.store.save(self.broker.store.plan_checkpoint())

    def pass_time(self, by_ms: int) -> None:
        pass_time(self.broker, self.clock, by_ms)

    def skip(self, by_ms: int) -> None:
        until_ms = self.clock.now_ms() + by_ms
        while self.clock.now_ms() < until_ms:
            self.clock.advance(min(600_000, until_ms - self.clock.now_ms()))
            self.flush()

    def fill_and_retain(self) -> None:
        """Fill a segment with other messages, and let go of what is too old."""
        for _ in range(300):
            self.broker.writer.send("bills", 0, b"y" * 1_000, "", 1, HOST)
        self.checkpoint()
        for removed in self.broker.retention.run():
            self.disk.remove(removed.path)

    def delete_topic(self, topic: str) -> None:
        if self.broker.topics.find(topic) is None:
            return
        for step in self.broker.topic_admin.delete(topic):
            step()

    def fail_at(self, part: str, operation: str = "") -> None:
        """From now on nothing whose path holds this can be written, until `heal`."""

        def fail(done: str, path: str) -> None:
            if part in path and operation in done:
                raise StoreError("injected")

        self.disk.before_step = fail

    def heal(self) -> None:
        self.disk.before_step = lambda operation, path: None

    def pending(self) -> dict[str, int]:
        """What is counted, which must be what waits."""
        waiting: Counter[str] = Counter()
        for units in self.broker.timers.slots.waiting_from(0, 0):
            for offset in units.physical_offsets.tolist():
                message = self.broker.store.reader.read_message(offset)
                assert message is not None
                waiting[message.properties[REAL_TOPIC]] += 1
        counted = {topic: count for topic, count in self.broker.timers.pending.items() if count}
        assert counted == dict(waiting)
        return counted


@pytest.fixture(params=["wheel", "rocksdb"])
def ground(request: pytest.FixtureRequest) -> Iterator[Ground]:
    ground = Ground(request.param)
    yield ground
    ground.heal()
    ground.broker.timers.engine.close()


def test_a_cancel_right_after_a_crash_takes_what_the_engine_kept_without_a_mark(ground: Ground) -> None:
    ground.schedule(60_000, "cancelled")
    ground.schedule(60_000, "moved")
    ground.flush()
    ground.reopen()
    assert ground.broker.pending.cancel("orders", "cancelled").verdict == Verdict.CANCELLED
    ground.broker.pending.move("orders", "moved", ground.clock.now_ms() + 90_000)
    ground.checkpoint()
    assert ground.pending() == {"orders": 1}
    ground.pass_time(89_999)
    assert bodies(ground.broker) == []
    ground.pass_time(1)
    assert len(bodies(ground.broker)) == 1
    assert ground.pending() == {}


def test_a_timer_that_is_cancelled_on_its_way_to_the_dead_letters_does_not_get_there(ground: Ground) -> None:
    ground.schedule(3_000, "orphan", topic="doomed")
    ground.flush()
    ground.delete_topic("doomed")
    ground.fail_at(TIMER_DEAD_LETTER_TOPIC)
    ground.pass_time(3_000)
    assert ground.broker.timers.failure == "injected"
    assert ground.broker.pending.cancel("doomed", "orphan").verdict == Verdict.CANCELLED
    ground.heal()
    ground.pass_time(20_000)
    assert messages(ground.broker, TIMER_DEAD_LETTER_TOPIC) == []
    assert ground.pending() == {}
    ground.reopen()
    assert ground.pending() == {}


@pytest.mark.parametrize("restarted", [False, True])
def test_a_dead_letter_that_is_the_record_itself_is_still_known_by_name(ground: Ground, restarted: bool) -> None:
    topic = "doomed" * 20
    # So long that the reason, which names the topic, does not fit beside the properties.
    ground.schedule(3_000, "name", topic, long="v" * (MAX_PROPERTIES_BYTES - 470))
    ground.checkpoint()
    ground.delete_topic(topic)
    ground.pass_time(3_000)
    if restarted:
        ground.reopen()
    (dead,) = messages(ground.broker, TIMER_DEAD_LETTER_TOPIC)
    assert "long" not in dead.properties
    assert ground.pending() == {}
    assert ground.broker.pending.cancel(topic, "name").verdict == Verdict.DELIVERED
    assert ground.pending() == {}


@pytest.mark.parametrize("lost", ["consumequeue/orders", f"consumequeue/{TIMER_TOPIC}", "latermq.checkpoint"])
def test_counts_are_right_when_the_whole_log_is_read_again(ground: Ground, lost: str) -> None:
    ground.send("orders")
    for name in NAMES[:5]:
        ground.schedule(600_000, name)
    ground.flush()
    ground.broker.pending.cancel("orders", NAMES[1])
    ground.broker.pending.move("orders", NAMES[2], ground.clock.now_ms() + 700_000)
    ground.checkpoint()
    ground.pass_time(2_000)
    ground.checkpoint()
    ground.reopen(without=(lost,))
    assert ground.pending() == {"orders": 4}


def test_counts_are_right_when_the_log_no_longer_has_what_was_delivered_or_rolled(ground: Ground) -> None:
    for name in NAMES:
        ground.schedule(1_000, name)
    ground.schedule(9 * DAY_MS, "far")
    ground.schedule(DAY_MS // 2, "near")
    ground.pass_time(2_000)
    for _ in range(5):
        ground.fill_and_retain()
        ground.skip(DAY_MS)
    ground.fill_and_retain()
    assert ground.broker.store.log.start > 0
    assert ground.pending() == {"orders": 1}
    ground.reopen(without=("latermq.checkpoint",))
    assert ground.pending() == {"orders": 1}


def test_counts_are_right_in_a_store_of_which_nothing_of_ours_is_left(ground: Ground) -> None:
    for name in NAMES[:3]:
        ground.schedule(60_000, name)
    ground.reopen(clean=True, without=("latermq.checkpoint", "latermq.storeid", "config/timercheck"))
    assert ground.pending() == {"orders": 3}
    ground.pass_time(60_000)
    assert ground.pending() == {}


@pytest.mark.parametrize("seed", SEEDS)
def test_counts_are_right_after_whatever_chance_brings(ground: Ground, seed: int) -> None:
    chance = Random(seed)
    for topic in TOPICS:
        ground.send(topic)
    for _ in range(50):
        _do_anything(ground, chance)
        ground.pending()


def _do_anything(ground: Ground, chance: Random) -> None:
    topic, name = chance.choice(TOPICS), chance.choice(NAMES)
    soon_ms = ground.clock.now_ms() + chance.choice((0, 500, 5_000, 100_000, 5 * DAY_MS))
    queue = f"consumequeue/{chance.choice(('orders', TIMER_TOPIC))}"
    actions: dict[str, Callable[[], object]] = {
        "schedule": lambda: ground.schedule(chance.choice(DELAYS_MS), name, topic),
        "cancel": lambda: ground.broker.pending.cancel(topic, name),
        "cancel by property": lambda: ground.send(
            topic, TIMER_DELAY_MS="5000", TIMER_DEL_UNIQKEY=f"{topic}+{name}", UNIQ_KEY="x"
        ),
        "move": lambda: ground.broker.pending.move(topic, name, soon_ms),
        "a moment": lambda: ground.pass_time(chance.randint(1, 4_000)),
        "a while": lambda: ground.skip(chance.choice((60_000, DAY_MS // 4, 2 * DAY_MS))),
        "flush": ground.flush,
        "checkpoint": ground.checkpoint,
        "retain": ground.fill_and_retain,
        "stop": lambda: ground.reopen(clean=True),
        "kill": ground.reopen,
        "power cut": lambda: ground.reopen(power_cut=chance),
        "lose a queue": lambda: ground.reopen(without=(queue,)),
        "lose the checkpoint": lambda: ground.reopen(without=("latermq.checkpoint",)),
        "delete": lambda: ground.delete_topic("doomed"),
        "fail for a moment": lambda: _fail_for_a_moment(ground, chance),
    }
    often = {"schedule": 8, "cancel": 2, "move": 2, "a moment": 3}
    chosen = chance.choices(list(actions), [often.get(action, 1) for action in actions])[0]
    actions[chosen]()


def _fail_for_a_moment(ground: Ground, chance: Random) -> None:
    ground.fail_at(chance.choice(("consumequeue/orders", TIMER_DEAD_LETTER_TOPIC, "commitlog")), "reserve")
    ground.pass_time(chance.randint(1, 3_000))
    ground.heal()
