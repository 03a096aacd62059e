"""Deliveries that do not fit: blocks longer than a segment, topics that are gone, queues that nobody can read."""

import numpy as np
import pytest

from latermq.broker.broker import Broker
from latermq.clock import SimulatedClock
from latermq.config import BrokerConfig, Size, StoreConfig, TimerConfig
from latermq.errors import IllegalMessage, LaterMQError, StoreError
from latermq.message.batch import BatchMember, encode_batch
from latermq.message.names import TIMER_DEAD_LETTER_TOPIC
from latermq.message.properties import DEAD_LETTER_REASON, MAX_PROPERTIES_BYTES
from latermq.model.topic import WRITE, Topic
from latermq.store.block import Block
from latermq.store.files.memory_disk import MemoryDisk
from latermq.store.log_writer import LogWriter
from tests.support.brokers_in_memory import HOST, STORE, bodies, messages, open_broker, pass_time, run_until_quiet, send

SEGMENT = 256 * 1024
LARGEST = SEGMENT // 2
BODY_SIZES = [LARGEST - 500, LARGEST, LARGEST, 10, LARGEST]
# The first leaves a little of a round's share: what comes next goes with it, and makes the two too long.
PADS = {"pad": ""}, {"pad": "p" * 5_000}
WAITS = {"level": {"DELAY": "1"}, "timer": {"TIMER_DELAY_MS": "1000"}}


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock()


@pytest.fixture
def disk() -> MemoryDisk:
    return MemoryDisk()


@pytest.fixture
def broker(disk: MemoryDisk, clock: SimulatedClock) -> Broker:
    return open_broker(disk, clock, settings=BrokerConfig(max_message=Size(LARGEST)))


def set_queues(broker: Broker, read: int, write: int, topic: str = "orders", perm: int = 6) -> None:
    broker.topics.put(Topic(name=topic, read_queues=read, write_queues=write, permissions=perm))


# Blocks that are longer than a segment


@pytest.mark.parametrize("wait", WAITS)
@pytest.mark.parametrize("stage", ["whole", "stuck at first"])
def test_large_messages_that_are_due_together_are_cut_into_blocks_that_fit_a_segment(
    broker: Broker, disk: MemoryDisk, clock: SimulatedClock, wait: str, stage: str
) -> None:
    for number, size in enumerate(BODY_SIZES):
        send(broker, b"%d" % number + b"x" * (size - 1), "orders", 0, **PADS[number > 0], **WAITS[wait])
    broker.store.flush()
    if stage != "whole":

        def refuse(operation: str, path: str) -> None:
            if "consumequeue/orders" in path:
                raise StoreError("injected")

        disk.before_step = refuse
        pass_time(broker, clock, 3_000)
        disk.before_step = lambda operation, path: None
    pass_time(broker, clock, 10_000)
    assert broker.timers.failure == ""
    assert [body[:1] for body in bodies(broker)] == [b"%d" % number for number in range(len(BODY_SIZES))]


def test_large_dead_letters_are_cut_into_blocks_that_fit_a_segment(broker: Broker, clock: SimulatedClock) -> None:
    for number, size in enumerate(BODY_SIZES):
        send(broker, b"%d" % number + b"x" * (size - 1), "doomed", 0, **WAITS["timer"])
    broker.store.flush()
    for step in broker.topic_admin.delete("doomed"):
        step()
    pass_time(broker, clock, 10_000)
    assert broker.timers.failure == ""
    dead = bodies(broker, TIMER_DEAD_LETTER_TOPIC)
    assert sorted(body[:1] for body in dead) == [b"%d" % number for number in range(len(BODY_SIZES))]


def test_large_timers_that_roll_together_are_cut_into_blocks_that_fit_a_segment(
    broker: Broker, clock: SimulatedClock
) -> None:
    day_ms = 86_400_000
    due_ms = clock.now_ms() + 3 * day_ms
    for number, size in enumerate(BODY_SIZES):
        send(broker, b"%d" % number + b"x" * (size - 1), TIMER_DELIVER_MS=str(due_ms))
    while clock.now_ms() < due_ms + 1_000:
        clock.advance(min(600_000, due_ms + 1_000 - clock.now_ms()))
        run_until_quiet(broker)
        broker.store.flush()
    assert broker.timers.failure == ""
    assert broker.timers.tallies.renewed >= len(BODY_SIZES)
    assert sorted(body[:1] for body in bodies(broker)) == [b"%d" % number for number in range(len(BODY_SIZES))]


def test_a_batch_that_is_longer_than_a_segment_is_refused_for_good_and_leaves_nothing(broker: Broker) -> None:
    topic = "t" * 120
    batch = encode_batch([BatchMember(0, b"", b"") for _ in range(2_000)])
    with pytest.raises(LaterMQError, match="does not fit a segment") as refused:
        broker.writer.send_batch(topic, 0, batch, 1_700_000_000_000, HOST)
    assert not refused.value.retriable
    assert refused.value.hint
    assert bodies(broker, topic) == []
    send(broker, b"after", topic)
    assert bodies(broker, topic) == [b"after"]


@pytest.mark.parametrize("wait", WAITS)
def test_a_message_whose_delivery_would_not_fit_a_segment_is_refused_when_it_is_sent(
    disk: MemoryDisk, clock: SimulatedClock, wait: str
) -> None:
    store = StoreConfig(
        segment=Size(36 * 1024), reserve_step=Size(4096), queue_file_entries=64, index_slots=97, index_entries=500
    )
    broker = open_broker(disk, clock, store=store, settings=BrokerConfig(max_message=Size(16 * 1024)))
    long = "v" * (MAX_PROPERTIES_BYTES - 1_000)
    refusals = []
    for size in range(1_000, 3_500, 100):
        try:
            send(broker, b"%d " % size + b"x" * size, "t" * 120, 0, long=long, **WAITS[wait])
        except IllegalMessage as error:
            refusals.append(error.message)
    assert 0 < len(refusals) < 25
    assert all("does not fit a segment" in refusal for refusal in refusals)
    broker.store.flush()
    pass_time(broker, clock, 5_000)
    assert len(bodies(broker, "t" * 120)) == 25 - len(refusals)
    assert broker.timers.failure == ""


# Topics that are gone


class Appends:
    """How much each round of the delivery appends to the dead letters."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.blocks: list[int] = []
        self.drafts = 0
        append_block, append_all = LogWriter.append_block, LogWriter.append_all

        def count_block(writer: LogWriter, block: Block) -> object:
            self.blocks.append(len(block))
            return append_block(writer, block)

        def count_all(writer: LogWriter, drafts: list[object], *rest: object) -> object:
            self.drafts += len(drafts)
            return append_all(writer, drafts, *rest)  # type: ignore[arg-type]

        monkeypatch.setattr(LogWriter, "append_block", count_block)
        monkeypatch.setattr(LogWriter, "append_all", count_all)


@pytest.mark.parametrize("wait", WAITS)
def test_a_round_writes_a_bounded_slice_of_dead_letters_in_one_block(
    disk: MemoryDisk, clock: SimulatedClock, wait: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = open_broker(disk, clock, store=StoreConfig(segment=Size(64 << 20), reserve_step=Size(1 << 20)))
    count = 3_000
    for number in range(count):
        send(broker, b"%d" % number, "doomed", 0, **WAITS[wait])
    send(broker, b"fine", "orders", 0, **WAITS[wait])
    broker.store.flush()
    for step in broker.topic_admin.delete("doomed"):
        step()
    appends = Appends(monkeypatch)
    clock.advance(1_000)
    rounds = []
    while broker.timers.run() == 0:
        rounds.append((sum(appends.blocks), len(appends.blocks), appends.drafts))
        appends.blocks.clear()
        appends.drafts = 0
    assert len(bodies(broker, TIMER_DEAD_LETTER_TOPIC)) == count
    assert bodies(broker) == [b"fine"]
    assert max(records for records, _, _ in rounds) <= 500, "a round writes a slice"
    assert max(blocks for _, blocks, _ in rounds) <= 3, "a slice is a block"
    assert all(drafts == 0 for _, _, drafts in rounds), "none is written by itself"


def test_dead_letters_on_their_way_are_neither_lost_nor_repeated_by_a_death(
    disk: MemoryDisk, clock: SimulatedClock
) -> None:
    broker = open_broker(disk, clock)
    for number in range(700):
        send(broker, b"%d" % number, "doomed", 0, **WAITS["timer" if number % 2 else "level"])
    broker.store.flush()
    for step in broker.topic_admin.delete("doomed"):
        step()
    clock.advance(1_000)
    for _ in range(60):
        for _ in range(3):
            broker.timers.run()
        broker.store.flush()
        broker.store.save(broker.store.plan_checkpoint())
        disk = disk.after_process_crash()
        broker = open_broker(disk, clock)
    run_until_quiet(broker)
    dead = bodies(broker, TIMER_DEAD_LETTER_TOPIC)
    assert sorted(map(int, dead)) == list(range(700))
    assert broker.pending.count() == 0
    assert broker.timers.statistics()["timers_pending"] == 0


def test_a_dead_letter_on_its_way_can_still_be_cancelled(disk: MemoryDisk, clock: SimulatedClock) -> None:
    broker = open_broker(disk, clock)
    for number in range(1_000):
        send(broker, b"%d" % number, "doomed", UNIQ_KEY=f"u{number}", TIMER_DELAY_MS="1000")
    broker.store.flush()
    for step in broker.topic_admin.delete("doomed"):
        step()
    clock.advance(1_000)
    while not bodies(broker, TIMER_DEAD_LETTER_TOPIC):
        broker.timers.run()
    assert broker.pending.cancel("doomed", "u999").timers == 1
    run_until_quiet(broker)
    assert sorted(map(int, bodies(broker, TIMER_DEAD_LETTER_TOPIC))) == list(range(999))


# Queues that nobody can read


@pytest.mark.parametrize("wait", WAITS)
def test_messages_for_a_queue_that_was_given_up_arrive_in_one_that_is_read(
    broker: Broker, clock: SimulatedClock, wait: str
) -> None:
    set_queues(broker, 8, 8)
    for number in range(40):
        send(broker, b"%d" % number, "orders", number % 8, **WAITS[wait])
    broker.store.flush()
    set_queues(broker, 4, 4)
    pass_time(broker, clock, 1_000)
    for queue_id in range(8):
        found = messages(broker, "orders", queue_id)
        assert all(message.queue_id == queue_id for message in found)
        if queue_id >= 4:
            assert not found
            continue
        broker.reader.check_readable("readers", "orders", queue_id)
        expected = [number for number in range(40) if number % 4 == queue_id]
        assert sorted(int(message.body) for message in found) == expected
        for own in (queue_id, queue_id + 4):  # the order within a queue stays
            numbers = [int(message.body) for message in found if int(message.body) % 8 == own]
            assert numbers == sorted(numbers)


def test_a_queue_that_is_still_read_gets_what_waits_for_it(broker: Broker, clock: SimulatedClock) -> None:
    set_queues(broker, 8, 8)
    send(broker, b"7", "orders", 7, DELAY="1")
    set_queues(broker, 8, 4)
    pass_time(broker, clock, 1_000)
    assert bodies(broker, "orders", 7) == [b"7"]


def test_what_nobody_may_read_now_arrives_all_the_same(broker: Broker, clock: SimulatedClock) -> None:
    set_queues(broker, 8, 8)
    send(broker, b"5", "orders", 5, DELAY="1")
    set_queues(broker, 4, 4, perm=WRITE)
    pass_time(broker, clock, 1_000)
    assert bodies(broker, "orders", 1) == [b"5"]


def test_a_topic_without_a_queue_to_read_from_makes_dead_letters(broker: Broker, clock: SimulatedClock) -> None:
    send(broker, b"orphan", DELAY="1")
    broker.topics.adopt(Topic(name="orders", read_queues=0, write_queues=4))
    pass_time(broker, clock, 1_000)
    [dead] = messages(broker, TIMER_DEAD_LETTER_TOPIC)
    assert dead.body == b"orphan"
    assert "no queue to read" in dead.properties[DEAD_LETTER_REASON]


def test_what_is_stuck_follows_when_its_queue_is_given_up(
    broker: Broker, disk: MemoryDisk, clock: SimulatedClock
) -> None:
    set_queues(broker, 8, 8)
    for number in range(5):
        send(broker, b"%d" % number, "orders", 7, DELAY="1")

    def refuse(operation: str, path: str) -> None:
        if "consumequeue/orders/7" in path:
            raise StoreError("injected")

    disk.before_step = refuse
    pass_time(broker, clock, 1_000)
    set_queues(broker, 4, 4)
    pass_time(broker, clock, 10_000)
    assert bodies(broker, "orders", 3) == [b"%d" % number for number in range(5)]
    assert broker.timers.failure == ""


def test_a_block_sends_records_of_one_queue_to_another_without_mixing_their_order() -> None:
    data = bytearray(400)
    block = Block(
        data=data,
        sizes=np.full(4, 100, np.int64),
        store_timestamp_at=np.full(4, 60, np.int64),
        tags=np.zeros(4, np.int64),
        queues=[("orders", 7), ("orders", 3)],
        queue_of=np.array([0, 1, 0, 1], np.intp),
        key_hashes=np.empty(0, np.int32),
        key_rows=np.empty(0, np.int64),
        level=0,
        entries=np.arange(4),
    )
    moved = block.redirect({0: 3})
    assert [rows.tolist() for rows in moved.rows_by_queue().values()] == [[0, 1, 2, 3]]
    assert [data[at + 12 : at + 16][-1] for at in range(0, 400, 100)] == [3, 0, 3, 0]
    assert TimerConfig().block > STORE.segment
