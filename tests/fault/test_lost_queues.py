"""Queues that are built again after one of their files was lost go on where they were, though the log has aged."""

from collections.abc import Iterator

import pytest

from latermq.message.names import SCHEDULE_TOPIC, TIMER_TOPIC
from latermq.store.files.memory_disk import MemoryDisk
from tests.support.brokers_in_memory import bodies, open_broker
from tests.support.faults.aging_broker import AGING, AgingBroker

CHECKPOINT = "latermq.checkpoint"
LEVEL_1 = f"consumequeue/{SCHEDULE_TOPIC}/0"
TIMERS = f"consumequeue/{TIMER_TOPIC}/0"
TEN = [f"new {number}" for number in range(10)]


@pytest.fixture
def aging() -> Iterator[AgingBroker]:
    aging = AgingBroker()
    yield aging
    aging.close()


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize(
    "lost",
    [["consumequeue/traffic/0"], [LEVEL_1], ["consumequeue"], [LEVEL_1, CHECKPOINT], ["consumequeue", CHECKPOINT]],
)
def test_delays_arrive_after_the_records_of_their_level_have_aged_out(
    aging: AgingBroker, lost: list[str], clean: bool
) -> None:
    for number in range(30):
        aging.delay(f"old {number}")
    aging.pass_time(2_000)
    aging.age()
    aging.restart(*lost, clean=clean)
    for body in TEN:
        aging.delay(body)
    aging.pass_time(2_000)
    assert aging.bodies()[-10:] == TEN


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize(
    "lost", [["consumequeue/traffic/0"], [TIMERS], ["consumequeue"], [TIMERS, CHECKPOINT], ["consumequeue", CHECKPOINT]]
)
@pytest.mark.parametrize("engine", ["wheel", "rocksdb"])
def test_timers_arrive_after_the_records_of_their_topic_have_aged_out(
    engine: str, lost: list[str], clean: bool
) -> None:
    aging = AgingBroker(engine)
    for number in range(30):
        aging.schedule(f"old {number}", 2_000)
    aging.pass_time(3_000)
    aging.age()
    aging.restart(*lost, clean=clean)
    for body in TEN:
        aging.schedule(body, 2_000)
    aging.pass_time(3_000)
    assert aging.bodies()[-10:] == TEN
    assert aging.broker.pending.count() == 0
    aging.close()


def test_the_ids_in_delivered_records_tell_where_a_queue_was(aging: AgingBroker) -> None:
    """Waiting records age out before what they became: the log still holds deliveries of entries that are gone."""
    for number in range(5):
        aging.schedule(f"timer {number}", 15_000)
        aging.delay(f"delay {number}", 3)
    for _ in range(6):
        aging.send("x" * 50_000, "traffic")
    aging.pass_time(16_000)  # what was delivered lies in the second segment
    for _ in range(6):
        aging.send("x" * 50_000, "traffic")
    aging.pass_time(20_000)
    aging.retain()
    assert aging.broker.store.queues.ensure(TIMER_TOPIC, 0).min_offset == 5
    assert len(aging.bodies()) == 10
    aging.restart("consumequeue", CHECKPOINT, "config/delayOffset.json", "config/timercheck")
    assert aging.broker.store.queues.ensure(TIMER_TOPIC, 0).next_offset == 5
    assert aging.broker.store.queues.ensure(SCHEDULE_TOPIC, 2).next_offset == 5
    aging.schedule("new timer", 1_000)
    aging.delay("new delay")
    aging.pass_time(20_000)
    assert {"new timer", "new delay"} <= set(aging.bodies())


@pytest.mark.parametrize("lost", [["consumequeue/orders/0"], ["consumequeue"], ["consumequeue", CHECKPOINT]])
def test_consumers_get_what_comes_after_all_they_had_has_aged_out(aging: AgingBroker, lost: list[str]) -> None:
    for number in range(30):
        aging.send(f"old {number}")
    aging.broker.groups.require("G")
    aging.broker.store.flush()
    aging.broker.progress.commit("G", "orders", 0, 30)
    aging.age()
    aging.restart(*lost)
    aging.send("new")
    committed = aging.broker.progress.committed("G", "orders", 0)
    assert committed == 30
    assert aging.broker.reader.pull("orders", 0, committed, 10).messages == 1


@pytest.mark.parametrize("number", [0, 1, 2])
def test_any_file_of_a_queue_may_be_lost(aging: AgingBroker, number: int) -> None:
    """The first of several leaves a queue that seems to begin later, one in the middle a hole."""
    expected = [f"plain {one}" for one in range(20)]
    for body in expected:
        aging.send(body)
    name = f"{number * 8 * 20:020d}"
    aging.restart(f"consumequeue/orders/0/{name}", clean=True)
    assert aging.bodies() == expected
    aging.restart()
    assert aging.bodies() == expected


def test_any_file_of_an_aged_queue_may_be_lost(aging: AgingBroker) -> None:
    for number in range(30):
        aging.send(f"old {number}")
    aging.age()
    for number in range(20):
        aging.send(f"plain {number}")
    expected = aging.bodies()
    aging.retain()
    for path in [f"consumequeue/orders/0/{name}" for name in aging.disk.list_names("consumequeue/orders/0")]:
        aging.restart(path)
        assert aging.bodies() == expected, path
        assert aging.broker.store.queues.ensure("orders", 0).next_offset == 50


def test_a_queue_that_is_whole_is_not_built_again(aging: AgingBroker) -> None:
    """Also one whose first file begins exactly where the log does."""
    for number in range(30):
        aging.send(f"old {number}")
        aging.schedule(f"timer {number}", 1_000)
    aging.age()
    aging.send("new")
    for _ in range(3):
        aging.restart("consumequeue/traffic/0")
        aging.restart()
        assert aging.broker.store.recovery.rebuilt == ()
        assert aging.broker.store.recovery.scanned_from > aging.broker.store.log.start


class KilledError(Exception):
    """The process ends here."""


@pytest.mark.parametrize("lost", ["consumequeue/orders/0", "index", CHECKPOINT])
def test_a_start_that_is_killed_while_it_rebuilds_leaves_nothing_half(lost: str) -> None:
    aging = AgingBroker()
    expected = [f"plain {number}" for number in range(100)]
    for body in expected:
        aging.send(body, UNIQ_KEY=body)
    aging.broker.close()
    clean = aging.disk.after_process_crash()
    clean.remove(lost)
    steps = 0
    while True:
        disk = clean.after_process_crash()
        left = steps

        def kill(operation: str, path: str, disk: MemoryDisk = disk) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise KilledError

        disk.before_step = kill
        try:
            broker = open_broker(disk, aging.clock, store=AGING)
        except KilledError:
            disk = disk.after_process_crash()
            broker = open_broker(disk, aging.clock, store=AGING)
            steps += 3
        else:
            steps = -1
        queue = broker.store.queues.ensure("orders", 0)
        assert (queue.min_offset, queue.next_offset) == (0, 100)
        assert [body.decode() for body in bodies(broker)] == expected
        assert len(list(broker.store.reader.find_by_key("orders", "plain 7", 0, 1 << 62))) == 1
        broker.timers.engine.close()
        if steps < 0:
            return
