"""Timers when something is short or wrong: a full disk, a full engine, topics that go, clocks that are set."""

import contextlib
import resource
from collections.abc import Iterator
from itertools import pairwise
from types import SimpleNamespace

import pytest

from latermq.clock import SimulatedClock
from latermq.config import ClockConfig, Size
from latermq.errors import StoreError
from latermq.message.names import TIMER_DEAD_LETTER_TOPIC
from latermq.message.properties import DEAD_LETTER_REASON
from latermq.message.record import Message
from latermq.model.timers import Verdict
from latermq.store.files.memory_disk import MemoryDisk
from latermq.timer.delivery.clock_guard import HOLD_S
from latermq.timer.delivery.kept_back import LONGEST_PAUSE_MS
from latermq.timer.engine.timer_log import UNIT_BYTES
from latermq.timer.intake.loader import RETRY_MS
from tests.support.brokers_in_memory import bodies, messages, open_broker, run_until_quiet, send
from tests.unit.timer.test_timers import ENGINES, Scene

MAX_STEP_MS = int(ClockConfig().max_step)
HOLD_MS = int(HOLD_S * 1_000)


@pytest.fixture(params=ENGINES)
def scene(request: pytest.FixtureRequest) -> Iterator[Scene]:
    scene = Scene(request.param)
    yield scene
    scene.broker.timers.engine.close()


def fail(scene: Scene, *paths: str) -> None:
    """From now on there is no space for files whose paths begin so."""

    def refuse(operation: str, path: str) -> None:
        if operation in ("reserve", "map") and path.startswith(paths):
            raise StoreError(f"no space for {path}")

    scene.disk.before_step = refuse


def heal(scene: Scene) -> None:
    scene.disk.before_step = lambda operation, path: None


def due_of(message: Message) -> int:
    return int(message.properties["LMQ_DUE_MS"])


def check_punctual(found: list[Message], count: int, late_until_ms: int = 0) -> None:
    """All are there once and to the millisecond; those due by a time may be late, but not early."""
    assert sorted(int(message.body.split()[0]) for message in found) == list(range(count))
    for message in found:
        if due_of(message) > late_until_ms:
            assert message.store_timestamp_ms == due_of(message)
        assert message.store_timestamp_ms >= due_of(message)


# A disk without space


@pytest.mark.parametrize("full", ["commitlog", "consumequeue/orders", "index", ""])
@pytest.mark.parametrize("killed", [False, True])
def test_a_disk_that_is_full_for_a_while_makes_timers_late_and_loses_none(
    scene: Scene, full: str, killed: bool
) -> None:
    count = 200
    keys = " ".join(f"key{number}" for number in range(20))  # so many that the index needs a second file
    for number in range(count):
        scene.send(b"%d " % number + b"x" * 1_000, 5_000 + 100 * number, KEYS=keys)
    scene.checkpoint()
    scene.pass_time(7_000)
    before = bodies(scene.broker)
    assert len(before) == 21
    fail(scene, full)
    scene.pass_time(8_000)
    during = bodies(scene.broker)
    assert len(during) < 101, "what was reserved before has lasted"
    assert during[:21] == before
    assert scene.broker.timers.failure.startswith("no space")
    assert scene.broker.timers.statistics()["kept_back"]
    if killed:
        scene.restart()
        fail(scene, full)
        scene.pass_time(1_000)
    heal(scene)
    tried_again_ms = scene.clock.now_ms() + LONGEST_PAUSE_MS
    scene.pass_time(30_000)
    found = messages(scene.broker)
    check_punctual(found, count, late_until_ms=tried_again_ms)
    assert all(message.store_timestamp_ms <= max(due_of(message), tried_again_ms) for message in found)
    if not killed:
        assert all(due_of(one) <= due_of(other) for one, other in pairwise(found)), "one overtook another"
    assert scene.broker.timers.failure == ""
    assert scene.broker.pending.count() == 0


def test_timers_of_other_queues_go_on_while_one_queue_has_no_space(scene: Scene) -> None:
    places = [("orders", 0), ("orders", 1), ("bills", 0)]
    for number in range(60):
        for topic, queue_id in places:
            send(scene.broker, b"%d" % number, topic, queue_id, TIMER_DELAY_MS=str(1_000 + 100 * number))
    scene.checkpoint()
    fail(scene, "consumequeue/orders/1")
    scene.pass_time(4_000)
    assert bodies(scene.broker, "orders", 1) == []
    assert scene.broker.timers.failure.startswith("no space")
    late_until_ms = scene.clock.now_ms() + LONGEST_PAUSE_MS
    heal(scene)
    scene.pass_time(10_000)
    check_punctual(messages(scene.broker, "orders", 0), 60)
    check_punctual(messages(scene.broker, "bills", 0), 60)
    check_punctual(messages(scene.broker, "orders", 1), 60, late_until_ms)
    assert bodies(scene.broker, "orders", 1) == [b"%d" % number for number in range(60)]


# An engine without space


@contextlib.contextmanager
def no_space_for_the_engine(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whatever the engine writes is refused."""
    fail(scene, "timerlog", "timerwheel")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with monkeypatch.context() as patch:
        if scene.timer.engine == "rocksdb":
            # RocksDB's files are the machine's, which now lets no file grow. Python ignores the signal that comes.
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
            patch.setattr("os.statvfs", lambda path: SimpleNamespace(f_bavail=0, f_frsize=4_096))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            heal(scene)


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("engine", ENGINES)
def test_timers_that_the_engine_has_no_space_for_arrive_on_time_from_memory(
    engine: str, killed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    count, cancelled = 200, (10, 60, 170)
    scene = Scene(engine, log_file=Size(65 * UNIT_BYTES + 50))

    def schedule(numbers: range) -> None:
        for number in numbers:
            scene.send(b"%d" % number, 500 + 97 * number, UNIQ_KEY=f"u{number}")
        scene.flush()

    schedule(range(50))
    scene.checkpoint()
    timers = scene.broker.timers
    assert timers.write_queue.put_upto == 50
    with no_space_for_the_engine(scene, monkeypatch):
        for start in range(50, count, 25):
            schedule(range(start, start + 25))
        put_upto = timers.write_queue.put_upto
        assert put_upto < 70
        assert timers.failure
        for number in cancelled:
            assert scene.broker.pending.cancel("orders", f"u{number}").verdict == Verdict.CANCELLED
        for _ in range(10):
            scene.pass_time(1_000)
            with contextlib.suppress(StoreError):  # RocksDB cannot sync after a failed write: no checkpoint then
                scene.checkpoint()
            first_waiting = 1 + max(int(body) for body in bodies(scene.broker))
            assert timers.write_queue.put_upto <= max(put_upto, first_waiting), (
                "what is neither put nor delivered holds P"
            )
            assert timers.statistics()["timers_unput"] >= count - timers.write_queue.put_upto
    if killed:
        scene.restart()
    scene.pass_time(RETRY_MS)
    scene.flush()
    assert scene.broker.timers.failure == ""
    assert scene.broker.timers.write_queue.put_upto == count + len(cancelled)
    scene.pass_time(20_000)
    found = messages(scene.broker)
    assert [int(message.body) for message in found] == [number for number in range(count) if number not in cancelled]
    assert all(message.store_timestamp_ms == due_of(message) for message in found)
    scene.broker.timers.engine.close()


# Topics that go


def delete_topic(scene: Scene, topic: str) -> None:
    for step in scene.broker.topic_admin.delete(topic):
        step()


@pytest.mark.parametrize("checkpointed", [False, True])
def test_timers_to_a_topic_that_was_deleted_become_dead_letters_once(scene: Scene, checkpointed: bool) -> None:
    for number in range(20):
        send(scene.broker, b"%d" % number, "doomed", UNIQ_KEY=f"u{number}", TIMER_DELAY_MS=str(1_000 + 100 * number))
        scene.send(b"%d" % number, 1_000 + 100 * number)
    scene.checkpoint()
    delete_topic(scene, "doomed")
    assert scene.broker.pending.cancel("doomed", "u7").verdict == Verdict.CANCELLED
    fail(scene, f"consumequeue/{TIMER_DEAD_LETTER_TOPIC}")
    scene.pass_time(1_500)
    assert bodies(scene.broker, TIMER_DEAD_LETTER_TOPIC) == []
    heal(scene)
    scene.pass_time(LONGEST_PAUSE_MS)
    for _ in range(2):
        dead = messages(scene.broker, TIMER_DEAD_LETTER_TOPIC)
        assert sorted(int(message.body) for message in dead) == [number for number in range(20) if number != 7]
        assert all("'doomed'" in message.properties[DEAD_LETTER_REASON] for message in dead)
        assert all(message.store_timestamp_ms >= due_of(message) for message in dead)
        assert bodies(scene.broker, "doomed") == []
        check_punctual(messages(scene.broker), 20)
        assert scene.broker.pending.count() == scene.broker.pending.count(topic="doomed") == 0
        assert scene.broker.pending.cancel("doomed", "u3").verdict == Verdict.DELIVERED
        if checkpointed:
            scene.checkpoint()
        scene.restart()
        scene.pass_time(10_000)


def test_timers_to_a_topic_that_was_deleted_and_made_again_arrive_there(scene: Scene) -> None:
    send(scene.broker, b"0", "doomed", TIMER_DELAY_MS="2000")
    scene.checkpoint()
    delete_topic(scene, "doomed")
    send(scene.broker, b"now", "doomed")
    scene.pass_time(5_000)
    assert bodies(scene.broker, "doomed") == [b"now", b"0"]
    assert bodies(scene.broker, TIMER_DEAD_LETTER_TOPIC) == []


# Clocks that are set


def test_a_leap_of_the_clock_is_held_for_a_minute_and_then_believed(scene: Scene) -> None:
    for number in range(10):
        scene.send(b"%d" % number, 1_000 + 1_000 * number)
    scene.checkpoint()
    scene.pass_time(2_000)
    assert len(bodies(scene.broker)) == 2
    scene.clock.step(MAX_STEP_MS + 1)
    scene.send(b"10", 30_000)
    scene.send(b"11", 90_000)
    scene.pass_time(HOLD_MS - 1)
    assert len(bodies(scene.broker)) == 2
    assert "jumped forward" in scene.broker.timers.guard.alarm
    scene.pass_time(1_000)
    assert scene.broker.timers.guard.alarm == ""
    held_until_ms = scene.clock.now_ms()
    assert len(bodies(scene.broker)) == 11
    scene.pass_time(60_000)
    check_punctual(messages(scene.broker), 12, late_until_ms=held_until_ms)


@pytest.mark.parametrize("restarted", [False, True])
def test_a_leap_that_is_set_right_within_a_minute_delivers_nothing_early(scene: Scene, restarted: bool) -> None:
    for number in range(10):
        scene.send(b"%d" % number, 5_000 + 1_000 * number)
    scene.checkpoint()
    scene.clock.step(2 * MAX_STEP_MS)
    scene.pass_time(3_000)
    scene.checkpoint()
    assert bodies(scene.broker) == []
    scene.clock.step(-2 * MAX_STEP_MS)
    if restarted:
        scene.restart()
    scene.pass_time(20_000)
    check_punctual(messages(scene.broker), 10)


@pytest.mark.parametrize("step_ms", [-1, -999, -20_000, -10 * MAX_STEP_MS])
@pytest.mark.parametrize("restarted", ["", "before", "after"])
def test_a_clock_that_is_set_back_makes_no_timer_early_and_none_scheduled_then_late(
    scene: Scene, step_ms: int, restarted: str
) -> None:
    for number in range(20):
        scene.send(b"%d" % number, 700 + 700 * number, UNIQ_KEY=f"u{number}")
    scene.checkpoint()
    scene.pass_time(7_000)
    scene.checkpoint()
    if restarted == "before":
        scene.restart()
    scene.clock.step(step_ms)
    for number in range(20, 40):
        scene.send(b"%d" % number, 300 + 300 * (number - 20), UNIQ_KEY=f"u{number}")
    scene.send(b"never", 3_000, UNIQ_KEY="never")
    scene.checkpoint()
    if restarted == "after":
        scene.restart()
    scene.pass_time(1_000)
    assert scene.broker.pending.cancel("orders", "never").verdict == Verdict.CANCELLED
    assert scene.broker.pending.cancel("orders", "u1").verdict == Verdict.DELIVERED
    scene.checkpoint()
    scene.pass_time(10_000)
    scene.clock.advance(-step_ms)
    scene.pass_time(10_000)
    found = messages(scene.broker)
    assert sorted(map(int, bodies(scene.broker))) == list(range(40))
    assert all(message.store_timestamp_ms >= due_of(message) for message in found)
    scheduled_then = [message for message in found if int(message.body) >= 20]
    assert all(message.store_timestamp_ms == due_of(message) for message in scheduled_then)
    assert scene.broker.pending.count() == 0


def opened_after_a_death(disk: MemoryDisk, clock: SimulatedClock) -> tuple[set[str], bool]:
    """What is synced while a broker opens, and whether it writes a checkpoint."""
    before = disk.read("latermq.checkpoint")
    synced = set()

    def note(operation: str, path: str) -> None:
        if operation == "sync":
            synced.add(path)

    disk.before_step = note
    broker = open_broker(disk, clock)
    broker.timers.engine.close()
    return synced, disk.read("latermq.checkpoint") != before


def test_whoever_goes_on_from_a_checkpoint_waits_for_no_disk() -> None:
    disk, clock = MemoryDisk(), SimulatedClock()
    broker = open_broker(disk, clock)
    send(broker, b"before", TIMER_DELAY_MS="50000")
    broker.store.flush()
    run_until_quiet(broker)
    broker.store.save(broker.store.plan_checkpoint())
    send(broker, b"behind", TIMER_DELAY_MS="60000")
    broker.store.flush()
    assert opened_after_a_death(disk.after_process_crash(), clock) == (set(), False)
    # Another engine's files, or new ones, are not those that the checkpoint speaks of.
    without_engine = disk.after_process_crash()
    without_engine.remove("timerlog")
    without_engine.remove("timerwheel")
    _, is_new = opened_after_a_death(without_engine, clock)
    assert is_new
