"""Old segments go while others are served: thousands of queues are brought after the log's start in slices."""

import asyncio

import msgspec
import pytest

from latermq.clock import SimulatedClock
from latermq.config import BrokerConfig, Duration, Size
from latermq.model.topic import Topic
from latermq.server.broker.retainer import Retainer
from latermq.store.files.memory_disk import MemoryDisk
from latermq.store.message_store import MessageStore
from latermq.store.retention import Retention
from latermq.timer.steps import at_once
from tests.support.brokers_in_memory import STORE, bodies, open_broker, send
from tests.support.stores import SMALL, append, open_store
from tests.support.stores import bodies as stored_bodies

QUEUES = 40
CONFIG = msgspec.structs.replace(SMALL, max_open_queues=16, retention=Duration(1000))


def old_store(disk: MemoryDisk, clock: SimulatedClock) -> MessageStore:
    """Each queue has a message in segments that are old, and one behind them."""
    store = open_store(disk, CONFIG, clock)
    for queue_id in range(QUEUES):
        append(store, b"old", queue_id=queue_id)
    while not store.log.closed_segments():
        append(store, bytes(5_000), topic="other")
    clock.advance(2_000)
    for queue_id in range(QUEUES):
        append(store, b"new", queue_id=queue_id)
    store.save(store.plan_checkpoint())
    return store


def test_whatever_is_offered_can_be_read_between_the_steps() -> None:
    store = old_store(MemoryDisk(), clock := SimulatedClock())
    steps = Retention(store, CONFIG, clock).steps()
    taken = 0
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            removed = stop.value
            break
        taken += 1
        offered = [stored_bodies(store, queue_id=queue_id) for queue_id in range(QUEUES)]
        assert offered.count([b"new"]) == min(taken, QUEUES)
        assert offered.count([b"old", b"new"]) == QUEUES - min(taken, QUEUES)
        append(store, b"meanwhile", topic="other")
    assert taken >= QUEUES
    assert removed[0].path.startswith("commitlog/")
    assert store.log.start > 0
    assert stored_bodies(store, queue_id=7) == [b"new"]


def test_a_segment_that_somebody_has_come_to_need_stays() -> None:
    store = old_store(MemoryDisk(), clock := SimulatedClock())
    retention = Retention(store, CONFIG, clock)
    steps = retention.steps()
    next(steps)
    retention.add_guard(lambda: 0)
    assert at_once(steps) == []
    assert store.log.start == 0


@pytest.mark.parametrize("is_saved", [False, True])
def test_a_process_that_dies_between_the_steps_finds_all_again(is_saved: bool) -> None:
    disk, clock = MemoryDisk(), SimulatedClock()
    store = old_store(disk, clock)
    steps = Retention(store, CONFIG, clock).steps()
    for _ in range(QUEUES // 2):
        next(steps)
    if is_saved:
        store.save(store.plan_checkpoint())
    store = open_store(disk.after_process_crash(), CONFIG, clock)
    assert [stored_bodies(store, queue_id=queue_id) for queue_id in range(QUEUES)] == [[b"old", b"new"]] * QUEUES
    assert not store.recovery.rebuilt


def test_a_topic_that_is_deleted_between_the_steps_holds_up_nothing() -> None:
    store = old_store(MemoryDisk(), clock := SimulatedClock())
    steps = Retention(store, CONFIG, clock).steps()
    next(steps)
    store.remove_topic("orders")()
    append(store, b"again", queue_id=3)
    assert at_once(steps)
    assert stored_bodies(store, queue_id=3) == [b"again"]


def test_the_broker_serves_others_between_the_slices() -> None:
    queues = 1_000
    clock = SimulatedClock()
    config = msgspec.structs.replace(STORE, segment=Size(1 << 20), retention=Duration(1000))
    settings = BrokerConfig(max_topic_queues=queues)
    broker = open_broker(disk := MemoryDisk(), clock, store=config, settings=settings)
    broker.topics.put(Topic(name="orders", read_queues=queues, write_queues=queues))
    for queue_id in range(queues):
        send(broker, b"old", queue_id=queue_id)
    while not broker.store.log.closed_segments():
        send(broker, bytes(60_000), "other")
    clock.advance(2_000)
    send(broker, b"new")
    broker.store.save(broker.store.plan_checkpoint())

    async def run() -> int:
        retainer = Retainer(
            broker.retention, broker.far, broker.timers.guard, disk.remove, lambda work: work(), release=lambda: None
        )
        retainer.run()
        turns = 0
        while not broker.store.log.start:
            retainer.run()  # as an operator's request or the next interval may
            await asyncio.sleep(0)
            turns += 1
        return turns

    assert asyncio.run(run()) >= queues // 64
    assert bodies(broker, queue_id=0) == [b"new"]
