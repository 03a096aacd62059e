"""A wall clock that is set while messages are in flight: they come back after their invisible time all the same."""

from random import Random

import pytest

from latermq.broker.broker import Broker
from latermq.broker.pop.pop_clock import STEP_MS, PopClock
from latermq.clock import SimulatedClock
from latermq.model.group import Group
from latermq.model.topic import Topic
from latermq.server.handlers.pops import deadline_ms
from latermq.store.files.memory_disk import MemoryDisk
from latermq.timer.delivery.clock_guard import HOLD_S
from tests.support.brokers_in_memory import open_broker, send
from tests.support.faults.seeds import run_seeds
from tests.support.needs import LONG
from tests.support.pop_parts import GROUP, ack, change, expire, pop

SEEDS = 500 if LONG else 20
SECOND_MS, MINUTE_MS, HOUR_MS = 1_000, 60_000, 3_600_000
LEASE = 7
STEPS = [-26 * HOUR_MS, -2 * HOUR_MS, -5 * MINUTE_MS, 5 * MINUTE_MS, 30 * MINUTE_MS, 2 * HOUR_MS, 4 * HOUR_MS]


def scene(group: Group | None = None) -> tuple[Broker, SimulatedClock]:
    clock = SimulatedClock()
    broker = open_broker(MemoryDisk(), clock)
    broker.topics.put(Topic(name="orders", read_queues=1, write_queues=1))
    broker.groups.put(group or Group(name=GROUP))
    send(broker, b"one")
    return broker, clock


def live(broker: Broker, clock: SimulatedClock, for_ms: int, *, reported: bool = False) -> int:
    """Let time pass until a message has come back, and return how long that took; at most this time."""
    passed_ms = 0
    while passed_ms < for_ms and not broker.pop_expiry.revived:
        clock.advance(SECOND_MS)
        passed_ms += SECOND_MS
        broker.timers.run()  # which checks the clock, too
        if reported and passed_ms % 5_000 == 0:
            broker.pop_operations.renew([LEASE], broker.pop_clock.now_ms())
        expire(broker)
    return passed_ms


@pytest.mark.parametrize("step_ms", STEPS)
@pytest.mark.parametrize("is_noticed_by_timers", [True, False])
def test_a_message_comes_back_after_its_invisible_time(step_ms: int, is_noticed_by_timers: bool) -> None:
    broker, clock = scene()
    [held] = pop(broker, invisible_ms=5 * MINUTE_MS)
    clock.advance(SECOND_MS)
    clock.step(step_ms)
    if is_noticed_by_timers:
        broker.timers.run()
    expire(broker)
    assert broker.pop_expiry.revived == 0
    assert live(broker, clock, HOUR_MS) == 5 * MINUTE_MS - SECOND_MS
    [again] = pop(broker)
    assert again.message.reconsume_times == 1
    assert ack(broker, held).name == "STALE"


@pytest.mark.parametrize("step_ms", STEPS)
def test_a_client_that_is_reported_keeps_its_messages(step_ms: int) -> None:
    broker, clock = scene()
    [held] = pop(broker, lease=LEASE)
    clock.advance(SECOND_MS)
    clock.step(step_ms)
    expire(broker)
    live(broker, clock, 20 * MINUTE_MS, reported=True)
    assert broker.pop_expiry.revived == 0
    assert ack(broker, held).name == "DONE"


@pytest.mark.parametrize("step_ms", STEPS)
def test_the_messages_of_a_client_that_has_died_come_back_after_the_lease(step_ms: int) -> None:
    broker, clock = scene()
    pop(broker, lease=LEASE)
    clock.advance(SECOND_MS)
    clock.step(step_ms)
    left_ms = broker.config.pop.lease - SECOND_MS
    # After a large jump forward, nothing is delivered until the clock is trusted again.
    assert left_ms <= live(broker, clock, HOUR_MS) <= left_ms + HOLD_S * 1000


@pytest.mark.parametrize("step_ms", STEPS)
def test_in_order_a_queue_is_blocked_for_the_invisible_time(step_ms: int) -> None:
    broker, clock = scene(Group(name=GROUP, is_ordered=True))
    send(broker, b"two")
    pop(broker, count=1, attempt="a")
    clock.step(step_ms)
    assert pop(broker, attempt="b") == []
    clock.advance(MINUTE_MS - 1)
    assert pop(broker, attempt="b") == []
    clock.advance(1)
    assert [one.body for one in pop(broker, count=1, attempt="b")] == [b"one"]


@pytest.mark.parametrize("step_ms", STEPS)
def test_a_message_that_is_popped_or_changed_after_a_step_counts_from_then(step_ms: int) -> None:
    broker, clock = scene()
    clock.step(step_ms)
    [held] = pop(broker)
    clock.step(-step_ms)
    assert change(broker, held, 2 * MINUTE_MS).outcome.name == "DONE"
    assert live(broker, clock, HOUR_MS) == 2 * MINUTE_MS


@pytest.mark.parametrize("step_ms", STEPS)
def test_a_pop_waits_for_its_poll_time(step_ms: int) -> None:
    clock = SimulatedClock()
    clock.advance(HOUR_MS)
    before_ms = deadline_ms(clock.now_ms() - SECOND_MS, 20 * SECOND_MS, clock)
    clock.advance(4 * SECOND_MS)
    clock.step(step_ms)
    left_ms = before_ms - clock.monotonic_s() * 1000
    assert 14 * SECOND_MS < left_ms <= 15 * SECOND_MS


def test_small_steps_count_when_they_add_up() -> None:
    steps: list[int] = []
    clock = SimulatedClock()
    watched = PopClock(clock, lambda boot, offset_ms, step_ms: steps.append(step_ms) if step_ms else None)
    for _ in range(25):
        clock.step(STEP_MS // 10)
        clock.advance(MINUTE_MS)
        assert watched.now_ms() == clock.now_ms()
    assert steps == [STEP_MS, STEP_MS]


def test_a_machine_that_slept_has_not_set_its_clock() -> None:
    steps: list[int] = []
    clock = SimulatedClock()
    watched = PopClock(clock, lambda boot, offset_ms, step_ms: steps.append(step_ms) if step_ms else None)
    clock.sleep(3 * HOUR_MS)
    assert watched.now_ms() == clock.now_ms()
    assert steps == []


class Restarts:
    """A broker that is killed, and started again on what is on its disk."""

    def __init__(self) -> None:
        self.disk, self.clock = MemoryDisk(), SimulatedClock()
        self.broker = open_broker(self.disk, self.clock)
        self.broker.topics.put(Topic(name="orders", read_queues=1, write_queues=1))
        self.broker.groups.put(Group(name=GROUP))
        self.broker.tables.save()
        send(self.broker, b"one")
        [self.held] = pop(self.broker, invisible_ms=5 * MINUTE_MS)

    def kill(self) -> None:
        self.disk = self.disk.after_process_crash()

    def start(self) -> Broker:
        self.broker = open_broker(self.disk, self.clock)
        return self.broker

    def save_snapshot(self) -> None:
        self.broker.pop_positions.commit()
        self.broker.store.flush()
        self.broker.pop_snapshot.save(self.broker.pop_journal.next_record)


@pytest.mark.parametrize("step_ms", STEPS)
@pytest.mark.parametrize("is_down", [True, False])
@pytest.mark.parametrize("has_snapshot", [True, False])
def test_a_restart_after_a_step_changes_no_invisible_time(step_ms: int, is_down: bool, has_snapshot: bool) -> None:
    """The clock is set while the broker runs or while it is down."""
    life = Restarts()
    if not is_down:
        life.clock.step(step_ms)
        expire(life.broker)
    if has_snapshot:
        life.save_snapshot()
    life.kill()
    if is_down:
        life.clock.step(step_ms)
    for _ in range(2):  # the second one follows no step twice
        expire(life.start())
        assert life.broker.pop_expiry.revived == 0
        life.kill()
    broker = life.start()
    passed_ms = live(broker, life.clock, HOUR_MS)
    # After a large jump forward, nothing is delivered until the clock is trusted again.
    assert 5 * MINUTE_MS <= passed_ms <= 5 * MINUTE_MS + HOLD_S * 1000
    assert ack(broker, life.held).name == "STALE"


def test_after_a_boot_of_the_machine_times_are_those_of_the_wall_clock() -> None:
    life = Restarts()
    life.kill()
    life.clock.reboot(MINUTE_MS)
    assert live(life.start(), life.clock, HOUR_MS) == 4 * MINUTE_MS


def steps_at_random(seed: int) -> None:
    """Messages with various times, popped between steps of the clock. Each is in flight exactly for its time."""
    chance = Random(seed)
    broker, clock = scene()
    pop(broker)
    due: dict[bytes, int] = {b"one": MINUTE_MS}  # body → uptime when it is visible
    for number in range(60):
        if chance.random() < 0.3:
            clock.step(chance.choice(STEPS) + chance.randrange(2 * MINUTE_MS))
        if chance.random() < 0.6:
            body = b"%d" % number
            send(broker, body)
            invisible_ms = chance.randrange(1, 10 * MINUTE_MS)
            assert body in {held.body for held in pop(broker, invisible_ms=invisible_ms)}
            due[body] = uptime_ms(clock) + invisible_ms
        clock.advance(chance.randrange(MINUTE_MS))
        expire(broker)
        left = {message_of(broker, offset) for offset in held_offsets(broker)}
        assert left == {body for body, visible_ms in due.items() if visible_ms > uptime_ms(clock)}


def uptime_ms(clock: SimulatedClock) -> int:
    return round(clock.boot_s() * 1000)


def held_offsets(broker: Broker) -> list[int]:
    queue = broker.in_flight.queues[GROUP, "orders", 0]
    return [offset for offset in range(broker.in_flight.next_of(queue)) if broker.in_flight.holds(queue, offset)]


def message_of(broker: Broker, offset: int) -> bytes:
    queue = broker.store.queues.find("orders", 0)
    entry = queue.entry(offset) if queue is not None else None
    message = broker.store.reader.read_message(entry[0]) if entry is not None else None
    assert message is not None
    return message.body


def test_random_steps_change_no_time_in_flight() -> None:
    run_seeds(steps_at_random, 0, SEEDS)
