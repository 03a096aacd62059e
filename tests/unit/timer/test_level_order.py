"""Levels whose queues are not in due order: what is read, how much is kept, and that everything comes in its order."""

from random import Random

import pytest

from latermq.broker.broker import Broker
from latermq.clock import SimulatedClock
from latermq.config import Size, StoreConfig, TimerConfig
from latermq.message.batch import BatchMember, encode_batch
from latermq.message.names import SCHEDULE_TOPIC
from latermq.store.files.memory_disk import MemoryDisk
from latermq.store.queues.consume_queue import ConsumeQueue
from latermq.timer.delivery.level_runs import CHUNK, SCAN
from latermq.timer.delivery.level_source import MANY_RUNS
from tests.support.brokers_in_memory import HOST, bodies, messages, open_broker, pass_time, run_until_quiet, send

LARGE = StoreConfig(segment=Size(64 << 20), reserve_step=Size(1 << 20), queue_file_entries=50_000)
LEVELS = TimerConfig(levels="1s 1h")
WAITING = 40_000


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock()


@pytest.fixture
def disk() -> MemoryDisk:
    return MemoryDisk()


class Reads:
    """How many entries of the schedule topic are read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.entries = 0
        array, gather = ConsumeQueue.array, ConsumeQueue.gather

        def count_array(queue: ConsumeQueue, offset: int, count: int) -> object:
            found = array(queue, offset, count)
            self.entries += len(found) if queue.topic == SCHEDULE_TOPIC else 0
            return found

        def count_gather(queue: ConsumeQueue, offsets: object) -> object:
            found = gather(queue, offsets)  # type: ignore[arg-type]
            self.entries += len(found) if queue.topic == SCHEDULE_TOPIC else 0
            return found

        monkeypatch.setattr(ConsumeQueue, "array", count_array)
        monkeypatch.setattr(ConsumeQueue, "gather", count_gather)

    def take(self) -> int:
        entries, self.entries = self.entries, 0
        return entries


def wait_in_level(broker: Broker, count: int, level: int) -> None:
    batch = [BatchMember(0, b"waits", f"DELAY\x01{level}\x02".encode())] * 5_000
    for _ in range(count // 5_000):
        broker.writer.send_batch("orders", 0, encode_batch(batch), 1_700_000_000_000, HOST)


def test_a_small_step_back_costs_what_was_stored_since_and_not_what_waits(
    disk: MemoryDisk, clock: SimulatedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = open_broker(disk, clock, LEVELS, LARGE)
    wait_in_level(broker, WAITING, 2)
    run_until_quiet(broker)
    reads = Reads(monkeypatch)
    clock.step(-1)
    rounds = []
    for number in range(50):
        send(broker, b"%d" % number, DELAY="2")
        clock.advance(20)
        run_until_quiet(broker)
        rounds.append(reads.take())
    assert sum(rounds) <= 2 * CHUNK
    assert max(rounds[1:]) <= 100


@pytest.mark.parametrize("restarted", [False, True])
def test_a_changed_table_costs_what_was_stored_since_and_not_what_waits(
    disk: MemoryDisk, clock: SimulatedClock, monkeypatch: pytest.MonkeyPatch, restarted: bool
) -> None:
    broker = open_broker(disk, clock, LEVELS, LARGE)
    wait_in_level(broker, WAITING, 2)
    broker.close()
    shorter = TimerConfig(levels="1s 1m")
    disk = disk.after_process_crash()
    broker = open_broker(disk, clock, shorter, LARGE)
    send(broker, b"before", DELAY="2")
    if restarted:
        broker.close()
        disk = disk.after_process_crash()
        broker = open_broker(disk, clock, shorter, LARGE)
    reads = Reads(monkeypatch)
    for number in range(70):
        send(broker, b"%d" % number, DELAY="2")
        clock.advance(1_000)
        run_until_quiet(broker)
    assert reads.take() <= 3 * CHUNK
    assert bodies(broker) == [b"before", *(b"%d" % number for number in range(11))]


def test_a_clock_that_steps_back_all_the_time_keeps_few_runs_and_loads_little(
    disk: MemoryDisk, clock: SimulatedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = open_broker(disk, clock, TimerConfig(levels="1m"), LARGE)
    count = 3 * MANY_RUNS
    reads = Reads(monkeypatch)
    for number in range(count):
        send(broker, b"%d" % number, DELAY="1")
        clock.advance(3)
        clock.step(-5 if number % 2 else 4)
        if number % 100 == 0:
            run_until_quiet(broker)
    assert broker.timers.statistics()["level_runs"] <= MANY_RUNS
    assert reads.take() <= 2 * CHUNK + count
    pass_time(broker, clock, 70_000)
    found = messages(broker)
    assert sorted(int(message.body) for message in found) == list(range(count))
    dues = [int(message.properties["LMQ_DUE_MS"]) for message in found]
    assert dues == sorted(dues)
    assert all(message.store_timestamp_ms == due for message, due in zip(found, dues, strict=True))


@pytest.mark.parametrize("seed", range(8))
def test_whatever_the_clock_does_each_message_arrives_once_at_its_time_and_in_order(
    disk: MemoryDisk, clock: SimulatedClock, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = Random(seed)
    monkeypatch.setattr("latermq.timer.delivery.level_runs.CHUNK", chance.choice([3, 17, CHUNK]))
    monkeypatch.setattr("latermq.timer.delivery.level_runs.SCAN", chance.choice([5, 40, SCAN]))
    monkeypatch.setattr("latermq.timer.delivery.level_source.MANY_RUNS", chance.choice([1, 4, MANY_RUNS]))
    tables = [TimerConfig(levels=levels) for levels in ("2s 9s", "5s 1s", "1s 2s")]
    broker = open_broker(disk, clock, tables[0])
    sent = 0
    for _ in range(60):
        for _ in range(chance.randrange(12)):
            if chance.random() < 0.3:
                members = [BatchMember(0, b"%d" % (sent + more), b"DELAY\x012\x02") for more in range(3)]
                broker.writer.send_batch("orders", 0, encode_batch(members), 1_700_000_000_000, HOST)
                sent += 3
            else:
                send(broker, b"%d" % sent, DELAY=str(chance.randrange(1, 3)))
                sent += 1
            clock.advance(chance.randrange(30))
        pass_time(broker, clock, chance.randrange(800))
        if chance.random() < 0.4:
            clock.step(-chance.choice([1, 50, 700, 4_000]))
        if chance.random() < 0.15:
            broker.store.flush()
            disk = disk.after_process_crash()
            broker = open_broker(disk, clock, chance.choice(tables))
    pass_time(broker, clock, 30_000)
    found = messages(broker)
    assert sorted(int(message.body) for message in found) == list(range(sent))
    assert all(message.store_timestamp_ms >= int(message.properties["LMQ_DUE_MS"]) for message in found)
    assert broker.timers.needed_from() == broker.store.log.end


def test_what_is_overdue_in_a_queue_out_of_order_leaves_others_their_share(
    disk: MemoryDisk, clock: SimulatedClock
) -> None:
    broker = open_broker(disk, clock)
    for number in range(4_000):
        send(broker, b"old %d" % number, DELAY="3")
        if number == 2_000:
            clock.step(-500)
    clock.advance(60_000)
    broker = open_broker(disk.after_process_crash(), clock)
    for number in range(10):
        send(broker, b"new %d" % number, topic="bills", DELAY="3")
    clock.advance(10_000)
    for _ in range(4):
        broker.timers.run()
    assert len(bodies(broker, "bills")) == 10
    assert len(bodies(broker)) < 4_000
    run_until_quiet(broker)
    assert len(bodies(broker)) == 4_000
