"""Delay levels when something is wrong: lost files, a clock set back, records that cannot be read."""

from random import Random

import msgspec
import pytest

from latermq.broker.broker import Broker
from latermq.clock import SimulatedClock
from latermq.errors import NoPermission, StoreError
from latermq.message.names import SCHEDULE_TOPIC, TIMER_DEAD_LETTER_TOPIC
from latermq.message.properties import DEAD_LETTER_REASON, MAX_PROPERTIES_BYTES
from latermq.store.files.memory_disk import MemoryDisk
from latermq.timer.delivery.dead_letters import DEAD_LETTER_ENTRY
from latermq.timer.delivery.kept_back import FIRST_PAUSE_MS, KeptBack
from tests.support.brokers_in_memory import STORE, bodies, messages, open_broker, pass_time, run_until_quiet, send

DELAY_OFFSETS = "config/delayOffset.json"


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock()


@pytest.fixture
def disk() -> MemoryDisk:
    return MemoryDisk()


def test_an_empty_level_goes_on_at_the_offset_that_the_file_says(disk: MemoryDisk, clock: SimulatedClock) -> None:
    disk.replace(DELAY_OFFSETS, b'{"offsetTable":{1:120,2:3},"dataVersion":{"counter":3}}')
    broker = open_broker(disk, clock)
    marks = broker.timers.level_marks()
    assert (marks[1], marks[2], marks[3]) == (120, 3, 0)
    send(broker, b"later", DELAY="1")
    pass_time(broker, clock, 999)
    assert bodies(broker) == []
    assert broker.timers.statistics()["delivered"] == 0
    pass_time(broker, clock, 1)
    assert bodies(broker) == [b"later"]
    assert broker.timers.statistics()["delivered"] == 1
    broker.close()
    assert msgspec.json.decode(disk.read(DELAY_OFFSETS) or b"")["offsetTable"]["1"] == 121


@pytest.mark.parametrize("seed", range(10))
def test_the_exported_offsets_never_tell_of_deliveries_that_a_power_cut_takes_back(
    disk: MemoryDisk, clock: SimulatedClock, seed: int
) -> None:
    broker = open_broker(disk, clock)
    for number in range(20):
        send(broker, b"%d" % number + b"x" * 2_000, DELAY="1")
    broker.store.flush()
    pass_time(broker, clock, 1_000)
    assert len(bodies(broker)) == 20
    broker.tables.save()
    disk = disk.after_machine_crash(Random(seed))
    disk.remove("latermq.checkpoint")
    again = open_broker(disk, clock)
    run_until_quiet(again)
    assert [int(body.rstrip(b"x")) for body in bodies(again)] == list(range(20))


def test_a_delivery_that_failed_waits_anew_when_the_clock_is_set_back(disk: MemoryDisk, clock: SimulatedClock) -> None:
    broker = open_broker(disk, clock)
    send(broker, b"later", DELAY="1")

    def fail(operation: str, path: str) -> None:
        if "consumequeue/orders" in path:
            raise StoreError("injected")

    disk.before_step = fail
    pass_time(broker, clock, 1_000)
    assert broker.timers.failure == "injected"
    clock.step(-60_000)
    disk.before_step = lambda operation, path: None
    pass_time(broker, clock, 59_999)
    assert bodies(broker) == []
    pass_time(broker, clock, 1)
    assert bodies(broker) == [b"later"]
    assert broker.timers.failure == ""


def test_an_append_that_fails_again_pauses_again_after_the_clock_is_set_back() -> None:
    kept_back = KeptBack()
    kept_back.pause(StoreError("injected"), 100_000)
    assert kept_back.wait_ms(100_000) == FIRST_PAUSE_MS
    assert kept_back.wait_ms(50_000) == 0, "a pause that began in the future is over"
    kept_back.pause(StoreError("injected"), 50_000)
    assert kept_back.wait_ms(50_000) == 2 * FIRST_PAUSE_MS


def test_a_failure_is_told_until_nothing_is_kept_back(disk: MemoryDisk, clock: SimulatedClock) -> None:
    broker = open_broker(disk, clock)
    send(broker, b"stuck", topic="stuck", DELAY="1")

    def fail(operation: str, path: str) -> None:
        if "consumequeue/stuck" in path:
            raise StoreError("injected")

    disk.before_step = fail
    pass_time(broker, clock, 1_000)
    send(broker, b"free", DELAY="1")
    pass_time(broker, clock, 1_000)
    assert bodies(broker) == [b"free"]
    assert broker.timers.failure == "injected"
    assert broker.timers.statistics()["kept_back"] == 1


@pytest.mark.parametrize("damaged_at", [4, 84])
def test_a_record_that_cannot_be_read_becomes_a_dead_letter_as_it_is(
    disk: MemoryDisk, clock: SimulatedClock, damaged_at: int
) -> None:
    broker = open_broker(disk, clock)
    send(broker, b"fine", DELAY="1")
    start = broker.store.log.end
    send(broker, b"damaged", DELAY="1")
    end = broker.store.log.end
    send(broker, b"fine too", DELAY="1")
    file = disk.map_file("commitlog/00000000000000000000", STORE.segment)
    file.map[start + damaged_at] ^= 0x55
    record = file.map[start:end]
    pass_time(broker, clock, 1_000)
    assert bodies(broker) == [b"fine", b"fine too"]
    [dead] = messages(broker, TIMER_DEAD_LETTER_TOPIC)
    assert dead.body == record
    assert dead.properties[DEAD_LETTER_ENTRY] == "1:1"
    assert broker.timers.needed_from() == broker.store.log.end


def test_a_dead_letter_without_room_for_its_reason_is_the_record_itself(
    disk: MemoryDisk, clock: SimulatedClock
) -> None:
    broker = open_broker(disk, clock)
    send(broker, b"orphan", topic="doomed", DELAY="1", long="v" * (MAX_PROPERTIES_BYTES - 140))
    for step in broker.topic_admin.delete("doomed"):
        step()
    pass_time(broker, clock, 1_000)
    [dead] = messages(broker, TIMER_DEAD_LETTER_TOPIC)
    assert b"orphan" in dead.body
    assert "doomed" in dead.properties[DEAD_LETTER_REASON]


@pytest.mark.parametrize("restarted", [False, True])
def test_where_messages_wait_nobody_can_consume(disk: MemoryDisk, clock: SimulatedClock, restarted: bool) -> None:
    broker: Broker = open_broker(disk, clock)
    send(broker, b"later", DELAY="1")
    if restarted:
        broker = open_broker(disk.after_process_crash(), clock)
    with pytest.raises(NoPermission, match="cannot be consumed"):
        broker.reader.check_readable("readers", SCHEDULE_TOPIC, 0)
    assert broker.topics.find(SCHEDULE_TOPIC) is None
