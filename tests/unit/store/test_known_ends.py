"""Where queues go on of which neither the log nor a checkpoint tells: behind whatever any other file names."""

import msgspec
import pytest

from latermq.broker.timers.ingest_mark import PATH as INGEST_PATH
from latermq.clock import SimulatedClock
from latermq.handover.checked_file import encode_checked
from latermq.message.names import TIMER_TOPIC
from latermq.store.files.memory_disk import MemoryDisk
from latermq.timer import apache_checkpoint, apache_import
from latermq.timer.apache_checkpoint import OWN_STATE, TimerCheckpoint, timer_checkpoint_file
from latermq.timer.far.far_names import FarNames
from tests.support.brokers_in_memory import open_broker, send


@pytest.fixture
def disk() -> MemoryDisk:
    return MemoryDisk()


def next_timer(disk: MemoryDisk) -> int:
    broker = open_broker(disk, SimulatedClock())
    send(broker, b"x", TIMER_DELAY_MS="1000", UNIQ_KEY="k")
    queue = broker.store.queues.ensure(TIMER_TOPIC, 0)
    assert queue.next_offset - queue.min_offset == 1
    assert broker.pending.count() == 1
    broker.close()
    return queue.min_offset


def test_a_new_store_begins_at_0(disk: MemoryDisk) -> None:
    assert next_timer(disk) == 0


def test_timers_go_on_behind_what_spark_has_ingested(disk: MemoryDisk) -> None:
    disk.replace(INGEST_PATH, encode_checked({"epoch": 1, "offset": 50, "version": 1}))
    assert next_timer(disk) == 50


def test_timers_go_on_behind_the_names_that_have_left_the_log(disk: MemoryDisk) -> None:
    names = FarNames(disk)
    names.adopt([], 70, retention_ms=1)
    names.close()
    assert next_timer(disk) == 70


def test_timers_go_on_behind_what_the_timer_checkpoint_says(disk: MemoryDisk) -> None:
    checkpoint = TimerCheckpoint(queue_offset=64, state_version=OWN_STATE)
    disk.replace(apache_checkpoint.PATH, timer_checkpoint_file(checkpoint))
    assert next_timer(disk) == 64


def test_timers_go_on_behind_what_apache_had_done(disk: MemoryDisk) -> None:
    disk.replace(apache_import.PATH, msgspec.json.encode([(0, 10), (20, 30)]))
    assert next_timer(disk) == 30


def test_an_offset_in_a_topic_that_is_gone_does_not_bring_it_back(disk: MemoryDisk) -> None:
    disk.replace("config/consumerOffset.json", b'{"offsetTable":{"gone@G":{"0":12}}}')
    broker = open_broker(disk, SimulatedClock())
    assert broker.store.queues.find("gone", 0) is None
    assert broker.topics.find("gone") is None
    broker.close()
