"""Retention beside timers: no segment goes that holds one which waits, however old or full everything is."""

from collections.abc import Iterator
from random import Random

import msgspec
import pytest

from latermq.clock import SimulatedClock
from latermq.config import Duration, TimerConfig
from latermq.message.names import TIMER_TOPIC
from latermq.model.timers import Verdict
from latermq.store.files.memory_disk import MemoryDisk
from tests.support.brokers_in_memory import STORE, messages, open_broker, pass_time, run_until_quiet, send
from tests.support.faults.aging_broker import AgingBroker
from tests.support.needs import LONG
from tests.unit.timer.test_timers import ENGINES

# Records are written again when they are two thirds as old, so timers further ahead than 20 s roll.
SHORT = msgspec.structs.replace(STORE, retention=Duration.parse("30s"))
RUN_S = 900 if LONG else 120


class Rolling:
    """A broker whose segments are full within seconds and old within half a minute."""

    def __init__(self, engine: str) -> None:
        self.disk = MemoryDisk()
        self.clock = SimulatedClock()
        self._timer = TimerConfig(engine=engine)  # type: ignore[arg-type]
        self.broker = open_broker(self.disk, self.clock, self._timer, SHORT)
        self.dues_ms: dict[str, int] = {}
        self.removed = 0

    def schedule(self, name: str, delay_ms: int) -> None:
        send(self.broker, name.encode(), UNIQ_KEY=name, TIMER_DELAY_MS=str(delay_ms))
        self.dues_ms[name] = self.clock.now_ms() + delay_ms

    def fill(self, segments: int = 1) -> None:
        """Messages for now, enough to fill so many segments."""
        for _ in range(segments * 6):
            send(self.broker, b"x" * 50_000, topic="traffic")

    def retain(self) -> None:
        """Checkpoint, let retention remove what it may, and see that nothing is gone that waits."""
        run_until_quiet(self.broker)
        self.broker.store.save(self.broker.store.plan_checkpoint())
        for gone in self.broker.retention.run():
            self.disk.remove(gone.path)
            self.removed += 1
        self.check_kept()

    def check_kept(self) -> None:
        now_ms = self.clock.now_ms()
        waiting = {timer.unique_key: timer.due_ms for timer in self.broker.pending.list(limit=10_000).timers}
        assert waiting == {name: due_ms for name, due_ms in self.dues_ms.items() if due_ms > now_ms}
        assert self.broker.pending.count() == len(waiting)

    def live(self, seconds: int) -> None:
        for _ in range(seconds):
            pass_time(self.broker, self.clock, 1_000)
            self.fill()
            self.retain()

    def restart(self) -> None:
        self.disk = self.disk.after_process_crash()
        self.broker.timers.engine.close()
        self.broker = open_broker(self.disk, self.clock, self._timer, SHORT)


@pytest.fixture(params=ENGINES)
def rolling(request: pytest.FixtureRequest) -> Iterator[Rolling]:
    rolling = Rolling(request.param)
    yield rolling
    rolling.broker.timers.engine.close()


def test_old_segments_go_once_their_timers_have_rolled_and_not_before(rolling: Rolling) -> None:
    """Delivered records go with their segments, so each is looked for when it is due."""
    chance = Random(30)
    found: dict[str, int] = {}
    rolled = 0
    for second in range(RUN_S):
        for number in range(5):
            rolling.schedule(f"{second}.{number}", chance.choice((900, 15_000, 25_000, 70_000, 130_000)))
        name = chance.choice(list(rolling.dues_ms))
        is_pending = rolling.dues_ms[name] > rolling.clock.now_ms()
        if chance.random() < 0.3:
            outcome = rolling.broker.pending.cancel("orders", name)
            assert (outcome.verdict == Verdict.CANCELLED) == is_pending
            if is_pending:
                del rolling.dues_ms[name]
        elif is_pending:
            due_ms = rolling.clock.now_ms() + chance.choice((2_000, 80_000))
            assert rolling.broker.pending.move("orders", name, due_ms).verdict == Verdict.MOVED
            rolling.dues_ms[name] = due_ms
        rolling.live(1)
        if second % 60 == 59:
            rolling.restart()
        for message in messages(rolling.broker):
            name = message.properties["UNIQ_KEY"]
            assert found.setdefault(name, message.physical_offset) == message.physical_offset, f"{name} came twice"
            assert message.store_timestamp_ms == rolling.dues_ms[name]
            rolled += "TIMER_ROLL_TIMES" in message.properties
    assert rolling.broker.store.log.start > rolling.broker.store.log.end * 0.7
    assert rolling.removed > RUN_S // 2
    assert rolled
    now_ms = rolling.clock.now_ms()
    assert found.keys() == {name for name, due_ms in rolling.dues_ms.items() if due_ms <= now_ms}


def deliver_before_removing(rolling: Rolling, name: str) -> None:
    """See that a timer arrives at its time, though retention goes on for as long as a minute before."""
    due_ms = rolling.dues_ms[name]
    rolling.live(min(60, (due_ms - rolling.clock.now_ms()) // 1_000 - 1))
    pass_time(rolling.broker, rolling.clock, due_ms - rolling.clock.now_ms())
    found = [message for message in messages(rolling.broker) if message.body == name.encode()]
    assert [message.store_timestamp_ms for message in found] == [due_ms]


@pytest.mark.parametrize("back_ms", [10_000, 100_000, 3_000_000])
def test_a_clock_that_is_set_back_lets_no_segment_go_with_a_timer(rolling: Rolling, back_ms: int) -> None:
    """Store times fall, so they do not tell any more from where on the log is needed."""
    rolling.schedule("before", 19_000)
    run_until_quiet(rolling.broker)
    rolling.clock.step(-back_ms)
    for number in range(5):
        rolling.schedule(f"short {number}", 2_000)
        rolling.schedule(f"long {number}", 100_000)
        rolling.live(1)
    deliver_before_removing(rolling, "before")
    rolling.live(60)
    assert rolling.removed


@pytest.mark.parametrize("back_ms", [0, 100_000])
def test_a_full_disk_takes_young_segments_but_none_with_a_timer(rolling: Rolling, back_ms: int) -> None:
    rolling.fill(3)
    pass_time(rolling.broker, rolling.clock, 25_000)
    rolling.retain()
    rolling.clock.step(-back_ms)
    rolling.schedule("waits", 15_000)
    rolling.fill(3)
    rolling.retain()
    before = rolling.removed
    for _ in range(10):
        rolling.disk.capacity_bytes = int(rolling.disk.used_bytes / 0.99)
        rolling.retain()
    assert (before, rolling.removed) == (0, 3), "the timer lies in the fourth segment"
    rolling.disk.capacity_bytes = 1 << 40
    deliver_before_removing(rolling, "waits")


@pytest.mark.parametrize("engine", ENGINES)
def test_what_was_delivered_and_left_the_log_since_the_checkpoint_is_not_missed_after_a_crash(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine goes back to the checkpoint and knows such a timer still; that is no reason for an alarm."""
    aging = AgingBroker(engine)
    # As in stores of earlier versions, whose retention did not ask what the checkpoint says.
    monkeypatch.setattr(aging.broker.timers.marks, "needed_from", lambda: aging.broker.store.log.end)
    aging.schedule("one", 10_000)
    for _ in range(12):
        aging.send("x" * 50_000, topic="traffic")
    aging.pass_time(9_000)
    aging.broker.store.save(aging.broker.store.plan_checkpoint())
    aging.pass_time(35_000)
    aging.send("x", topic="traffic")
    aging.broker.store.flush()
    for removed in aging.broker.retention.run():
        aging.disk.remove(removed.path)
    assert aging.broker.store.queues.ensure(TIMER_TOPIC, 0).min_offset == 1
    aging.restart()
    aging.pass_time(5_000)
    assert (aging.bodies(), aging.broker.timers.failure) == (["one"], "")
    aging.retain()
    aging.pass_time(5_000)
    assert aging.broker.timers.settled.delivered_ranges() == [], "once the marks tell of it, its id is forgotten"
    aging.close()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("moved", [False, True])
def test_counts_are_right_after_a_crash_though_what_was_taken_since_the_checkpoint_is_old(
    engine: str, moved: bool
) -> None:
    aging = AgingBroker(engine)
    aging.schedule("one", 10_000)
    for _ in range(12):
        aging.send("x" * 50_000, topic="traffic")
    aging.pass_time(5_000)
    aging.broker.store.save(aging.broker.store.plan_checkpoint())
    if moved:
        assert aging.broker.pending.move("orders", "one", aging.clock.now_ms() + 60_000).verdict == Verdict.MOVED
    else:
        assert aging.broker.pending.cancel("orders", "one").verdict == Verdict.CANCELLED
    aging.pass_time(20_000)
    aging.pass_time(16_000)
    aging.send("x", topic="traffic")
    aging.broker.store.flush()
    for removed in aging.broker.retention.run():
        aging.disk.remove(removed.path)
    aging.restart()
    aging.pass_time(3_000)
    assert (aging.broker.pending.count(), aging.broker.timers.failure) == (int(moved), "")
    aging.retain()
    aging.retain()  # by the marks of the first checkpoint
    assert aging.broker.store.queues.ensure(TIMER_TOPIC, 0).min_offset > 0
    aging.pass_time(60_000)
    assert (aging.broker.pending.count(), aging.bodies()) == (0, ["one"] if moved else [])
    aging.close()
