"""The timer service: five steps over parts that are given to each other, and the one set of settled timers."""

import ast
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import latermq.timer
from latermq.broker.broker import Broker
from latermq.clock import SimulatedClock
from latermq.errors import StoreError
from latermq.model.timers import Verdict
from latermq.store.files.memory_disk import MemoryDisk
from latermq.store.ranges import RangeSet
from latermq.timer.engine.interface import Units
from tests.support.brokers_in_memory import bodies, open_broker, pass_time, run_until_quiet, send


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock()


@pytest.fixture
def disk() -> MemoryDisk:
    return MemoryDisk()


@pytest.fixture
def broker(disk: MemoryDisk, clock: SimulatedClock) -> Iterator[Broker]:
    broker = open_broker(disk, clock)
    yield broker
    broker.timers.engine.close()


def units(*timers: tuple[int, int]) -> Units:
    """Units of (entry, wake)."""
    entries, wakes = (np.array(column, np.int64) for column in zip(*timers, strict=True))
    return Units(entries, wakes, entries * 100, np.full_like(entries, 100), np.zeros(len(entries), bool))


def ties(tree: ast.AST) -> Iterator[int]:
    """Lines that give an object a method of another one after it was made."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Assign):
            continue
        for target in node.targets:
            is_own = (
                isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self"
            )
            is_method = isinstance(node.value, ast.Lambda) or (
                isinstance(node.value, ast.Attribute)
                and isinstance(node.value.value, ast.Name)
                and node.value.value.id == "self"
                and node.value.attr.startswith("_")
            )
            if isinstance(target, ast.Attribute) and not is_own and is_method:
                yield node.lineno


def test_parts_are_tied_by_their_constructors_only() -> None:
    folder = Path(latermq.timer.__file__).parent
    found = [f"{path.name}:{line}" for path in folder.rglob("*.py") for line in ties(ast.parse(path.read_text()))]
    assert not found
    assert list(ties(ast.parse("windows.still_wanted = self._rows"))) == [1]


def test_only_what_is_flushed_reaches_the_engine(broker: Broker, clock: SimulatedClock) -> None:
    send(broker, b"one", TIMER_DELAY_MS="60000")
    run_until_quiet(broker)
    timers = broker.timers
    assert (timers.write_queue.rows, timers.write_queue.put_upto) == (1, 0)
    assert timers.engine.next_slot_ms(0) is None
    assert sum(len(piece.entries) for piece in timers.slots.waiting_from(0, 0)) == 1, "it is pending all the same"
    broker.store.flush()
    run_until_quiet(broker)
    assert (timers.write_queue.rows, timers.write_queue.put_upto) == (0, 1)
    assert timers.engine.next_slot_ms(0) is not None


def test_every_step_knows_of_a_cancel_at_once(broker: Broker, clock: SimulatedClock) -> None:
    due_ms = clock.now_ms() + 500
    for key in ("kept", "cancelled"):
        send(broker, key.encode(), UNIQ_KEY=key, TIMER_DELIVER_MS=str(due_ms))
    broker.store.flush()
    run_until_quiet(broker)
    timers = broker.timers
    assert timers.statistics()["staged_records"] == 2, "it is past the loader and the builder already"
    assert broker.pending.cancel("orders", "cancelled").verdict == Verdict.CANCELLED
    both = units((0, due_ms), (1, due_ms))
    assert timers.settled.is_cancelled(both.entries).tolist() == [False, True]
    assert timers.settled.waiting(both).entries.tolist() == [0]
    assert timers.windows.is_waiting(both.entries, both.wakes).tolist() == [True, False]
    assert [entry for piece in timers.slots.waiting_from(0, 0) for entry in piece.entries.tolist()] == [0]
    pass_time(broker, clock, 1_000)
    assert bodies(broker) == [b"kept"]


def test_delivered_and_cancelled_timers_are_one_set(broker: Broker) -> None:
    settled = broker.timers.settled
    own = units((3, 1_000), (4, 1_000), (5, 1_000))
    settled.deliver(own.entries[:1], own.wakes[:1], is_far=False)
    settled.cancel(own.where(np.array([1])), 9, np.zeros(1, bool))
    assert settled.waiting(own).entries.tolist() == [5]
    assert settled.is_delivered(own.entries, own.wakes).tolist() == [True, False, False]
    # Of Spark's timers, whose marks go on apart, none was delivered.
    assert settled.is_far_waiting(own.entries, own.wakes).tolist() == [True, False, True]
    settled.move_marks(5, 2_000, 2_000, RangeSet())
    assert (settled.rows, settled.waiting(own).entries.tolist()) == (0, [5])


def test_the_marks_never_go_back(broker: Broker) -> None:
    settled = broker.timers.settled
    settled.move_marks(5, 2_000, 3_000, RangeSet())
    with pytest.raises(AssertionError, match="T moved back"):
        settled.move_marks(6, 1_999, 3_000, RangeSet())
    with pytest.raises(AssertionError, match="near T moved back"):
        settled.move_marks(6, 2_000, 2_999, RangeSet())


def test_t_does_not_pass_what_is_in_flight(disk: MemoryDisk, broker: Broker, clock: SimulatedClock) -> None:
    def refuse(operation: str, path: str) -> None:
        if "consumequeue/orders" in path:
            raise StoreError("injected")

    due_ms = clock.now_ms() + 500
    send(broker, b"stuck", TIMER_DELIVER_MS=str(due_ms))
    broker.store.flush()
    disk.before_step = refuse
    pass_time(broker, clock, 10_000)
    assert broker.timers.failure == "injected"
    assert broker.timers.marks.all_wake_from_ms() == due_ms
    disk.before_step = lambda operation, path: None
    pass_time(broker, clock, 10_000)
    assert (bodies(broker), broker.timers.failure) == ([b"stuck"], "")
    assert broker.timers.marks.all_wake_from_ms() > due_ms
