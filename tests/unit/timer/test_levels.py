"""Delay levels with a simulated clock: never early, never lost, never twice."""

import msgspec
import pytest

from latermq.broker.broker import Broker
from latermq.clock import SimulatedClock
from latermq.config import TimerConfig
from latermq.errors import ConfigError, IllegalMessage, StoreError
from latermq.message.batch import BatchMember, encode_batch
from latermq.message.entry_id import decode_entry_id, encode_entry_id
from latermq.message.names import SCHEDULE_TOPIC, TIMER_DEAD_LETTER_TOPIC
from latermq.message.properties import DEAD_LETTER_REASON
from latermq.message.tags import tags_code
from latermq.store.files.memory_disk import MemoryDisk
from latermq.timer.levels import LevelTable
from tests.support.brokers_in_memory import HOST, STAMP, bodies, messages, open_broker, pass_time, run_until_quiet, send

DELAYS_MS = [
    1_000, 5_000, 10_000, 30_000, 60_000, 120_000, 180_000, 240_000, 300_000, 360_000, 420_000, 480_000, 540_000,
    600_000, 1_200_000, 1_800_000, 3_600_000, 7_200_000,
]  # fmt: skip


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock()


@pytest.fixture
def disk() -> MemoryDisk:
    return MemoryDisk()


@pytest.fixture
def broker(disk: MemoryDisk, clock: SimulatedClock) -> Broker:
    return open_broker(disk, clock)


@pytest.mark.parametrize("level", range(1, 19))
def test_each_level_arrives_at_its_millisecond_and_not_before(
    broker: Broker, clock: SimulatedClock, level: int
) -> None:
    start_ms = clock.now_ms()
    send(broker, b"later", DELAY=str(level), TAGS="red", KEYS="k")
    pass_time(broker, clock, DELAYS_MS[level - 1] - 1)
    assert bodies(broker) == []
    pass_time(broker, clock, 1)
    [message] = messages(broker)
    assert message.body == b"later"
    assert message.store_timestamp_ms == start_ms + DELAYS_MS[level - 1]


def test_a_waiting_message_lies_in_the_schedule_topic_as_rocketmq_stores_it(
    broker: Broker, clock: SimulatedClock
) -> None:
    send(broker, b"later", queue_id=2, DELAY="3", TAGS="red")
    [waiting] = messages(broker, SCHEDULE_TOPIC, 2)
    assert waiting.properties["REAL_TOPIC"] == "orders"
    assert waiting.properties["REAL_QID"] == "2"
    queue = broker.store.queues.find(SCHEDULE_TOPIC, 2)
    assert queue is not None
    entry = queue.entry(0)
    assert entry is not None
    assert entry[2] == clock.now_ms() + 10_000 == waiting.store_timestamp_ms + 10_000


def test_a_delivered_message_is_the_message_with_its_own_tags_code_and_an_entry_id(
    broker: Broker, clock: SimulatedClock
) -> None:
    send(broker, b"later", queue_id=3, DELAY="1", TAGS="red", KEYS="k1", colour="blue")
    pass_time(broker, clock, 1_000)
    [message] = messages(broker, "orders", 3)
    wanted = {"DELAY": "1", "REAL_TOPIC": "orders", "REAL_QID": "3", "TAGS": "red", "KEYS": "k1", "colour": "blue"}
    assert wanted.items() <= message.properties.items()
    assert decode_entry_id(message.prepared_transaction_offset) == (1, 0)
    queue = broker.store.queues.find("orders", 3)
    assert queue is not None
    entry = queue.entry(0)
    assert entry is not None
    assert entry[2] == tags_code("red")
    assert list(broker.store.reader.find_by_key("orders", "k1", 0, 1 << 60)) == [message.physical_offset]


def test_entry_ids_are_told_from_transactions_and_nothing() -> None:
    assert decode_entry_id(encode_entry_id(18, 123_456)) == (18, 123_456)
    assert decode_entry_id(0) is None
    assert decode_entry_id(1 << 50) is None
    assert decode_entry_id(-1) is None


def test_level_zero_is_no_delay_and_a_level_too_high_is_the_last(broker: Broker, clock: SimulatedClock) -> None:
    send(broker, b"now", DELAY="0")
    assert bodies(broker) == [b"now"]
    send(broker, b"two hours", DELAY="99")
    pass_time(broker, clock, 7_199_999)
    assert bodies(broker) == [b"now"]
    pass_time(broker, clock, 1)
    assert bodies(broker) == [b"now", b"two hours"]


@pytest.mark.parametrize("value", ["", "x", "-1", "1.5", "٣", "9" * 20])
def test_a_level_that_is_no_number_is_refused(broker: Broker, value: str) -> None:
    if value:
        with pytest.raises(IllegalMessage, match="DELAY"):
            send(broker, b"x", DELAY=value)


def test_what_names_our_own_properties_from_outside_cannot_schedule(broker: Broker) -> None:
    send(broker, b"now", LMQ_DUE_MS="9999999999999", TIMER_OUT_MS="5", plain="kept")
    [message] = messages(broker)
    assert message.properties == {"plain": "kept", **STAMP}


def test_order_within_a_level_is_the_order_of_sending(broker: Broker, clock: SimulatedClock) -> None:
    for number in range(500):
        send(broker, b"%d" % number, DELAY="2")
        if number % 50 == 0:
            clock.advance(7)
    pass_time(broker, clock, 5_100)
    assert bodies(broker) == [b"%d" % number for number in range(500)]


def test_everything_due_together_is_delivered_in_blocks_over_many_queues(broker: Broker, clock: SimulatedClock) -> None:
    for number in range(3_000):
        send(broker, b"%05d" % number, topic=f"topic-{number % 3}", queue_id=number % 4, DELAY="1")
    pass_time(broker, clock, 1_000)
    found = [body for topic in range(3) for queue_id in range(4) for body in bodies(broker, f"topic-{topic}", queue_id)]
    assert sorted(found) == [b"%05d" % number for number in range(3_000)]
    assert broker.timers.statistics()["staged_records"] == 0


def batch(*members: tuple[bytes, str]) -> bytes:
    return encode_batch(
        BatchMember(0, body, f"DELAY\x01{level}\x02".encode() if level else b"") for body, level in members
    )


def test_a_batch_may_mix_messages_for_now_and_for_later(broker: Broker, clock: SimulatedClock) -> None:
    send(broker, b"before")
    data = batch((b"one second", "1"), (b"now", ""), (b"five seconds", "2"), (b"now too", ""))
    ids, queue_id, queue_offset, _, _ = broker.writer.send_batch("orders", 0, data, 1, HOST)
    assert (len(ids.split(",")), queue_id, queue_offset) == (4, 0, 1)
    assert bodies(broker) == [b"before", b"now", b"now too"]
    pass_time(broker, clock, 1_000)
    assert bodies(broker)[3:] == [b"one second"]
    pass_time(broker, clock, 4_000)
    assert bodies(broker)[4:] == [b"five seconds"]


def test_a_batch_of_which_all_wait_answers_with_its_first_record(broker: Broker, clock: SimulatedClock) -> None:
    send(broker, b"x", DELAY="2")
    _, _, queue_offset, _, _ = broker.writer.send_batch("orders", 0, batch((b"a", "2"), (b"b", "1")), 1, HOST)
    assert queue_offset == 1
    pass_time(broker, clock, 5_000)
    assert bodies(broker) == [b"b", b"x", b"a"]


def test_a_batch_with_one_bad_delay_is_refused_as_a_whole_and_names_it(broker: Broker) -> None:
    with pytest.raises(IllegalMessage, match="message 2 of the batch"):
        broker.writer.send_batch("orders", 0, batch((b"a", ""), (b"b", "1"), (b"c", "x")), 1, HOST)
    assert bodies(broker) == []
    assert bodies(broker, SCHEDULE_TOPIC, 0) == []


@pytest.mark.parametrize("ending", ["stop", "process", "no checkpoint", "no file", "neither", "old file"])
def test_a_restart_neither_loses_nor_repeats(disk: MemoryDisk, clock: SimulatedClock, ending: str) -> None:
    broker = open_broker(disk, clock)
    for number in range(200):
        send(broker, b"%d" % number, DELAY="2")
        clock.advance(10)
    pass_time(broker, clock, 2_000)
    broker.tables.save()
    old_file = disk.read("config/delayOffset.json")
    broker.store.save(broker.store.plan_checkpoint())
    pass_time(broker, clock, 1_500)
    delivered = len(bodies(broker))
    assert 0 < delivered < 200
    if ending == "stop":
        broker.close()
    disk = disk.after_process_crash()
    if ending in ("no checkpoint", "neither", "old file"):
        disk.remove("latermq.checkpoint")
    if ending in ("no file", "neither"):
        disk.remove("config/delayOffset.json")
    if ending == "old file":
        assert old_file is not None
        disk.replace("config/delayOffset.json", old_file)
    again = open_broker(disk, clock)
    run_until_quiet(again)
    assert len(bodies(again)) == delivered
    pass_time(again, clock, 5_000)
    assert bodies(again) == [b"%d" % number for number in range(200)]


def test_after_a_long_stop_what_is_overdue_and_what_is_due_share_the_rounds(
    disk: MemoryDisk, clock: SimulatedClock
) -> None:
    broker = open_broker(disk, clock)
    for number in range(4_000):
        send(broker, b"old %d" % number, DELAY="3")
    clock.advance(60_000)
    broker = open_broker(disk.after_process_crash(), clock)
    for number in range(10):
        send(broker, b"new %d" % number, topic="bills", DELAY="1")
    clock.advance(1_000)
    # One round is enough for the punctual ones, although thousands are overdue.
    for _ in range(4):
        broker.timers.run()
    assert len(bodies(broker, "bills")) == 10
    assert len(bodies(broker)) < 4_000
    run_until_quiet(broker)
    assert len(bodies(broker)) == 4_000


def test_pending_messages_keep_their_due_time_when_the_table_changes(disk: MemoryDisk, clock: SimulatedClock) -> None:
    broker = open_broker(disk, clock)
    send(broker, b"by the old table", DELAY="2")
    broker.close()
    broker = open_broker(disk.after_process_crash(), clock, TimerConfig(levels="1s 2s 3s"))
    send(broker, b"by the new table", DELAY="2")
    pass_time(broker, clock, 2_000)
    assert bodies(broker) == [b"by the new table"]
    pass_time(broker, clock, 2_999)
    assert bodies(broker) == [b"by the new table"]
    pass_time(broker, clock, 1)
    assert bodies(broker) == [b"by the new table", b"by the old table"]


def test_a_shorter_table_still_delivers_what_waits_in_its_lost_levels(disk: MemoryDisk, clock: SimulatedClock) -> None:
    broker = open_broker(disk, clock)
    send(broker, b"ten seconds", DELAY="3")
    broker.close()
    broker = open_broker(disk.after_process_crash(), clock, TimerConfig(levels="1s"))
    pass_time(broker, clock, 10_000)
    assert bodies(broker) == [b"ten seconds"]


def test_a_clock_that_steps_back_delivers_nothing_early_and_stalls_only_for_the_step(
    broker: Broker, clock: SimulatedClock
) -> None:
    send(broker, b"first", DELAY="2")
    clock.step(-60_000)
    send(broker, b"second", DELAY="2")
    pass_time(broker, clock, 5_000)
    assert bodies(broker) == [b"second"]
    pass_time(broker, clock, 59_999)
    assert bodies(broker) == [b"second"]
    pass_time(broker, clock, 1)
    assert bodies(broker) == [b"second", b"first"]


def test_a_small_step_forward_delivers_what_is_then_due(broker: Broker, clock: SimulatedClock) -> None:
    send(broker, b"later", DELAY="5")
    run_until_quiet(broker)
    clock.step(60_000)
    run_until_quiet(broker)
    assert bodies(broker) == [b"later"]


def test_a_great_leap_forward_is_held_for_a_minute_and_told(broker: Broker, clock: SimulatedClock) -> None:
    send(broker, b"later", DELAY="5")
    run_until_quiet(broker)
    clock.step(2 * 3_600_000)
    broker.timers.run()
    assert "jumped forward" in broker.timers.guard.alarm
    pass_time(broker, clock, 59_000)
    assert bodies(broker) == []
    pass_time(broker, clock, 2_000)
    assert bodies(broker) == [b"later"]
    assert broker.timers.guard.alarm == ""


def test_a_leap_that_is_set_right_again_delivers_nothing_early(broker: Broker, clock: SimulatedClock) -> None:
    send(broker, b"later", DELAY="5")
    run_until_quiet(broker)
    clock.step(2 * 3_600_000)
    broker.timers.run()
    clock.advance(5_000)
    clock.step(-2 * 3_600_000)
    run_until_quiet(broker)
    assert bodies(broker) == []
    assert not broker.timers.guard.is_holding
    pass_time(broker, clock, 55_000)
    assert bodies(broker) == [b"later"]


def test_a_message_whose_topic_is_gone_goes_to_the_timer_dead_letters(broker: Broker, clock: SimulatedClock) -> None:
    send(broker, b"orphan", topic="doomed", DELAY="1", KEYS="k")
    send(broker, b"fine", DELAY="1")
    broker.topic_admin.delete("doomed")
    pass_time(broker, clock, 1_000)
    assert bodies(broker) == [b"fine"]
    [dead] = messages(broker, TIMER_DEAD_LETTER_TOPIC)
    assert dead.body == b"orphan"
    assert "doomed" in dead.properties[DEAD_LETTER_REASON]
    assert bodies(broker, "doomed") == []


def test_a_failed_delivery_is_tried_until_it_works_and_holds_up_its_own_queue_only(
    broker: Broker, disk: MemoryDisk, clock: SimulatedClock
) -> None:
    for number in range(20):
        send(broker, b"%d" % number, topic="stuck", DELAY="1")
        send(broker, b"%d" % number, topic="free", DELAY="1")

    def fail_for_stuck(operation: str, path: str) -> None:
        if "consumequeue/stuck" in path:
            raise StoreError("injected")

    disk.before_step = fail_for_stuck
    pass_time(broker, clock, 30_000)
    assert len(bodies(broker, "free")) == 20
    assert bodies(broker, "stuck") == []
    assert broker.timers.failure == "injected"
    send(broker, b"after", topic="free", DELAY="1")
    pass_time(broker, clock, 1_000)
    assert bodies(broker, "free")[-1] == b"after"
    disk.before_step = lambda operation, path: None
    pass_time(broker, clock, 6_000)
    assert bodies(broker, "stuck") == [b"%d" % number for number in range(20)]
    assert broker.timers.failure == ""


def test_nothing_overtakes_in_a_queue_that_is_stuck(broker: Broker, disk: MemoryDisk, clock: SimulatedClock) -> None:
    failures = 1

    def fail_once(operation: str, path: str) -> None:
        nonlocal failures
        if "consumequeue/stuck" in path and failures:
            failures -= 1
            raise StoreError("injected")

    send(broker, b"first", topic="stuck", DELAY="1")
    clock.advance(10)
    send(broker, b"second", topic="stuck", DELAY="1")
    send(broker, b"free", DELAY="1")
    disk.before_step = fail_once
    pass_time(broker, clock, 1_005)
    assert bodies(broker, "stuck") == []
    assert bodies(broker) == [b"free"]
    pass_time(broker, clock, 200)
    assert bodies(broker, "stuck") == [b"first", b"second"]


def test_the_exported_offsets_are_apaches_json_and_are_corrected_into_the_queue(
    disk: MemoryDisk, clock: SimulatedClock
) -> None:
    broker = open_broker(disk, clock)
    for _ in range(5):
        send(broker, b"x", DELAY="1")
    pass_time(broker, clock, 1_000)
    broker.close()
    exported = msgspec.json.decode(disk.read("config/delayOffset.json") or b"")
    assert exported["offsetTable"]["1"] == 5
    disk = disk.after_process_crash()
    disk.remove("latermq.checkpoint")
    disk.replace("config/delayOffset.json", b'{"offsetTable":{1:99,2:-7},"dataVersion":{"counter":3}}')
    broker = open_broker(disk, clock)
    assert broker.timers.level_marks()[1] == 5
    send(broker, b"new", DELAY="1")
    pass_time(broker, clock, 1_000)
    assert bodies(broker)[-1] == b"new"


def test_segments_with_waiting_messages_are_not_removed(disk: MemoryDisk, clock: SimulatedClock) -> None:
    broker = open_broker(disk, clock)
    send(broker, b"two hours", DELAY="18")
    for _ in range(200):
        send(broker, b"x" * 5_000)
    clock.advance(100 * 3_600_000)
    send(broker, b"y" * 60_000)
    broker.store.save(broker.store.plan_checkpoint())
    assert broker.retention.run() == []
    run_until_quiet(broker)  # a leap of the clock, but monotonic time passed as well: it is believed
    assert b"two hours" in bodies(broker)
    broker.store.save(broker.store.plan_checkpoint())
    assert broker.retention.run() != []


def test_the_table_is_checked() -> None:
    assert LevelTable("1s 5m 2h 3d").delay_ms(4) == 3 * 86_400_000
    for bad in ("", "1x", "0s", "1s,2s", " ".join(["1s"] * 64)):
        with pytest.raises(ConfigError):
            LevelTable(bad)
