"""A topic is on disk before a message of it is acknowledged: after a crash its timers must find it."""

import pytest

from latermq.broker.broker import Broker
from latermq.clock import SimulatedClock
from latermq.errors import StoreError
from latermq.message.names import TIMER_DEAD_LETTER_TOPIC
from latermq.store.files.memory_disk import MemoryDisk
from tests.support.brokers_in_memory import bodies, messages, open_broker, pass_time, send

NOW_MS = 1_700_000_000_000


def fail_topics_file(disk: MemoryDisk) -> None:
    def fail(operation: str, path: str) -> None:
        if path.startswith("config/topics.json"):
            raise StoreError("no disk space for config/topics.json")

    disk.before_step = fail


def after_a_kill(broker: Broker, disk: MemoryDisk, clock: SimulatedClock) -> Broker:
    broker.store.flush()
    return open_broker(disk.after_process_crash(), clock)


def test_no_send_is_acknowledged_while_its_topic_cannot_be_saved() -> None:
    disk, clock = MemoryDisk(), SimulatedClock(NOW_MS)
    broker = open_broker(disk, clock)
    fail_topics_file(disk)
    for _ in range(3):
        with pytest.raises(StoreError):
            send(broker, b"refused", TIMER_DELAY_SEC="5")
    disk.before_step = lambda operation, path: None
    send(broker, b"taken", TIMER_DELAY_SEC="5")
    broker = after_a_kill(broker, disk, clock)
    pass_time(broker, clock, 6_000)
    assert bodies(broker) == [b"taken"]
    assert messages(broker, TIMER_DEAD_LETTER_TOPIC) == []


def test_a_topic_whose_file_is_being_written_beside_the_loop_is_not_saved_yet() -> None:
    disk, clock = MemoryDisk(), SimulatedClock(NOW_MS)
    broker = open_broker(disk, clock)
    broker.topics.create_retry_topic("%RETRY%readers", 1)
    savers = broker.tables.savers()
    assert not broker.topics.is_saved("%RETRY%readers")
    for save in savers:
        save()
    assert broker.topics.is_saved("%RETRY%readers")


def test_a_topic_that_is_saved_does_not_wait_for_others() -> None:
    disk, clock = MemoryDisk(), SimulatedClock(NOW_MS)
    broker = open_broker(disk, clock)
    send(broker, b"first")
    broker.topics.create_retry_topic("%RETRY%readers", 1)
    fail_topics_file(disk)
    send(broker, b"second")
    assert bodies(broker) == [b"first", b"second"]


def test_a_save_that_failed_is_made_up_for_by_the_next_one() -> None:
    disk, clock = MemoryDisk(), SimulatedClock(NOW_MS)
    broker = open_broker(disk, clock)
    fail_topics_file(disk)
    with pytest.raises(StoreError):
        send(broker, b"refused")
    disk.before_step = lambda operation, path: None
    broker.tables.save()
    assert broker.topics.is_saved("orders")
