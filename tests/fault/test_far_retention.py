"""Far timers outlive their records: delivered, cancelled and known by name after the log they came in is gone."""

from random import Random

import msgspec
import pytest

from latermq.errors import CorruptStore, ServiceUnavailable
from latermq.model.timers import Verdict
from latermq.pipeline.driver.ingest import check_agreement
from latermq.timer.steps import at_once
from tests.fault.test_far_model import LameTwin
from tests.support.brokers_in_memory import messages, pass_time, send
from tests.support.pipeline.far_broker import FAR_MS, FarBroker
from tests.support.pipeline.spark_twin import SparkTwin, state_of


@pytest.fixture
def far() -> FarBroker:
    return FarBroker()


def test_a_far_timer_arrives_to_the_millisecond_after_its_segment_is_gone(far: FarBroker) -> None:
    far.schedule("a")
    due_ms = far.clock.now_ms() + FAR_MS
    far.lose_log()
    far.crash()
    far.pass_time(FAR_MS)
    (message,) = messages(far.broker, "orders", 0)
    assert (message.body, message.store_timestamp_ms) == (b"a", due_ms)
    far.close()


@pytest.mark.parametrize("crashed", [False, True])
def test_a_far_timer_is_cancelled_by_name_after_its_record_is_gone(far: FarBroker, crashed: bool) -> None:
    far.schedule("a")
    far.schedule("b")
    far.lose_log()
    if crashed:
        far.crash()
    assert far.broker.pending.status("orders", "a").verdict == Verdict.PENDING
    assert far.broker.pending.cancel("orders", "a").verdict == Verdict.CANCELLED
    assert far.broker.pending.cancel("orders", "a").verdict == Verdict.CANCELLED
    assert far.broker.pending.cancel("orders", "c").verdict == Verdict.NOT_FOUND
    far.lose_log()  # with the cancel in it
    assert far.broker.pending.cancel("orders", "a").verdict == Verdict.CANCELLED
    far.pass_time(FAR_MS)
    assert far.arrived() == [b"b"]
    assert far.broker.pending.count() == 0
    far.close()


def test_a_cancel_of_a_window_that_is_handed_back_survives_a_crash(far: FarBroker) -> None:
    far.schedule("a")
    far.schedule("b")
    far.lose_log()
    far.pass_time(FAR_MS - 40_000 - 10_000)  # its window is cut, and not due yet
    assert far.broker.far.frontier.handback_ms > far.clock.now_ms() + 5_000
    assert far.broker.pending.cancel("orders", "a").verdict == Verdict.CANCELLED
    far.broker.store.flush()
    pass_time(far.broker, far.clock, 1_000)
    far.broker.store.save(far.broker.store.plan_checkpoint())
    far.crash()
    far.pass_time(30_000)
    assert far.arrived() == [b"b"]
    far.close()


def test_a_message_key_finds_far_timers_whose_records_are_gone(far: FarBroker) -> None:
    far.schedule("a", key="order-1 customer-7")
    far.lose_log()
    (outcome,) = far.broker.pending.cancel_key("orders", "customer-7")
    assert (outcome.verdict, outcome.unique_key) == (Verdict.CANCELLED, "a")
    far.pass_time(FAR_MS)
    assert far.arrived() == []
    far.close()


def test_a_far_timer_is_moved_with_its_record_from_the_timeline(far: FarBroker) -> None:
    far.schedule("a")
    far.lose_log()
    due_ms = far.clock.now_ms() + 5_000
    ((entry, _),) = far.broker.pending.records_to_fetch("orders", "a", "")
    with pytest.raises(ServiceUnavailable):
        far.broker.pending.move("orders", "a", due_ms)
    fetched = {entry: far.twin.timeline[entry].record}
    assert far.broker.pending.move("orders", "a", due_ms, fetched).verdict == Verdict.MOVED
    far.pass_time(FAR_MS)
    (message,) = messages(far.broker, "orders", 0)
    assert (message.body, message.store_timestamp_ms) == (b"a", due_ms)
    far.close()


def test_names_of_delivered_timers_are_forgotten(far: FarBroker) -> None:
    far.schedule("a")
    far.lose_log()
    far.pass_time(FAR_MS)
    far.broker.store.save(far.broker.store.plan_checkpoint())
    far.broker.far.sweep_names()
    names = far.broker.far_names
    assert list(names.pending("orders", "a", 0)) == []
    assert list(names.unique_keys("orders", "key-a")) == [None], "it is removed with all of its period"
    names.sweep(far.clock.now_ms() + (2 << 28), 0)
    assert list(names.unique_keys("orders", "key-a")) == []
    far.close()


def test_nothing_leaves_the_log_that_spark_has_not_ingested(far: FarBroker) -> None:
    far.schedule("a")
    far.twin.ingest = lambda broker: None  # type: ignore[method-assign]
    for _ in range(12):
        send(far.broker, b"x" * 50_000, topic="traffic")
    far.pass_time(60_000)
    send(far.broker, b"x" * 50_000, topic="traffic")
    start = far.broker.store.log.start
    far.upkeep()
    assert far.broker.store.log.start == start
    far.pass_time(FAR_MS)
    assert far.arrived() == [b"a"]
    far.close()


def test_timers_that_have_left_the_log_are_counted_without_a_checkpoint(far: FarBroker) -> None:
    for name in ("a", "b", "c"):
        far.schedule(name)
    far.lose_log()
    far.broker.pending.cancel("orders", "c")
    disk = far.disk.after_process_crash()
    disk.remove("latermq.checkpoint")
    far.replace_disk(disk)
    assert far.broker.pending.count(topic="orders") == 2
    far.pass_time(FAR_MS)
    assert sorted(far.arrived()) == [b"a", b"b"]
    assert far.broker.pending.count(topic="orders") == 0
    far.close()


def test_a_cancel_does_not_take_what_was_scheduled_behind_it_though_the_names_know_that_first(far: FarBroker) -> None:
    """Names are written down before the records go; a start between the two finds both."""
    far.schedule("a")
    assert far.broker.pending.cancel("orders", "a").verdict == Verdict.CANCELLED
    far.schedule("a")
    for _ in range(12):
        send(far.broker, b"x" * 50_000, topic="traffic")
    far.pass_time(FAR_MS - 10_000)  # its window is cut, and not due yet
    send(far.broker, b"x" * 50_000, topic="traffic")
    far.broker.store.save(far.broker.store.plan_checkpoint())
    while (names := far.broker.far.expiring_entries()) is not None:
        far.broker.far.save_names(names)
    assert list(far.broker.far_names.pending("orders", "a", 0))
    disk = far.disk.after_process_crash()
    disk.remove("latermq.checkpoint")
    far.replace_disk(disk)
    assert far.broker.pending.count(topic="orders") == 1
    far.pass_time(FAR_MS)
    assert far.arrived() == [b"a"]
    far.close()


@pytest.mark.parametrize("steps_before", [3, 12, 19])
def test_a_cancel_whose_look_up_pauses_while_the_records_leave_the_log_takes_them(
    far: FarBroker, steps_before: int
) -> None:
    for _ in range(20):
        far.schedule("many")
    far.schedule("other")
    steps = far.broker.pending.cancel_steps("orders", "many")
    for _ in range(steps_before):
        next(steps)
    far.lose_log()
    far.broker.far.run()  # which forgets the frontiers by which they were judged
    outcome = at_once(steps)
    assert (outcome.verdict, outcome.timers) == (Verdict.CANCELLED, 20)
    far.pass_time(FAR_MS)
    assert far.arrived() == [b"other"]
    assert far.broker.pending.count() == 0
    far.close()


@pytest.mark.parametrize("moved", [False, True])
def test_a_cancel_of_a_window_that_is_missing_for_long_survives_a_change_of_engines(
    far: FarBroker, moved: bool
) -> None:
    """The engine alone noted what was taken, as long as the names had forgotten it before the record of the cancel."""
    far.twin = LameTwin(Random(1), withheld=frozenset(range(8)))
    far.twin.begin(far.broker)
    far.schedule("taken", 60_000)
    far.schedule("kept", 60_000)
    for _ in range(12):
        send(far.broker, b"x" * 50_000, topic="traffic")
    far.pass_time(55_000)
    far.upkeep()
    far.upkeep()
    assert far.broker.store.reader.read_message(0) is None, "their records are gone"
    if moved:
        (place,) = far.broker.pending.records_to_fetch("orders", "taken", "")
        fetched = {place[0]: far.twin.timeline[place[0]].record}
        assert far.broker.pending.move("orders", "taken", far.clock.now_ms() + 2_000, fetched).verdict == Verdict.MOVED
    else:
        assert far.broker.pending.cancel("orders", "taken").verdict == Verdict.CANCELLED
    for _ in range(12):
        send(far.broker, b"x" * 50_000, topic="traffic")
    far.pass_time(60_000)  # its window is missing, and the cancel is old
    send(far.broker, b"x" * 50_000, topic="traffic")
    far.upkeep()
    far.timer = msgspec.structs.replace(far.timer, engine="rocksdb")
    far.crash()
    assert far.broker.pending.count() == 1
    far.twin.withheld = frozenset()
    far.pass_time(30_000)
    assert sorted(far.arrived()) == ([b"kept", b"taken"] if moved else [b"kept"])
    assert far.broker.pending.count() == 0
    far.close()


def test_a_timeline_that_is_lost_with_the_log_costs_only_the_timers_that_were_in_both(far: FarBroker) -> None:
    """The last step of docs/operations.md for a lost timeline."""
    far.schedule("lost")
    far.lose_log()
    far.schedule("in the log")
    far.pass_time(1_000)
    far.twin = SparkTwin(Random(2))  # with an empty folder
    state = state_of(far.broker)
    with pytest.raises(CorruptStore, match=f"in entries 0 to {state.min_entry - 1} are missing") as refused:
        check_agreement(state, far.twin.ingested, "the table")
    assert "stop the broker and remove latermq.ingest" in refused.value.hint
    far.schedule("while refused")
    assert far.broker.pending.cancel("orders", "while refused").verdict == Verdict.CANCELLED
    near_ms = far.clock.now_ms() + 3_000
    far.schedule("near", 3_000)
    pass_time(far.broker, far.clock, 4_000)
    assert [(one.body, one.store_timestamp_ms) for one in messages(far.broker, "orders", 0)] == [(b"near", near_ms)]
    far.broker.store.flush()

    disk = far.disk.after_process_crash()
    disk.remove("latermq.ingest")
    far.replace_disk(disk)
    check_agreement(state_of(far.broker), far.twin.ingested, "the table")
    far.twin.begin(far.broker)
    for window in far.broker.far.windows.waiting():
        window.attempt = ""  # the loader does not find the attempts that were chosen before
    far.schedule("later")
    far.pass_time(FAR_MS + 2_000)
    assert sorted(far.arrived()) == [b"in the log", b"later", b"near"]
    far.lose_log()  # the log is freed again
    far.close()
