"""What clients auto-create: how much, what of it goes away, and that nothing goes that a message waits for."""

import msgspec
import pytest

from latermq.broker.broker import Broker
from latermq.clock import SimulatedClock
from latermq.config import BrokerConfig, Duration
from latermq.errors import NoPermission, StoreError
from latermq.group.auto_created import AutoCreated
from latermq.message.ids import pack_host
from latermq.message.names import TIMER_DEAD_LETTER_TOPIC
from latermq.model.group import Group
from latermq.model.retry import SendBack
from latermq.model.topic import Topic
from latermq.store.files.memory_disk import MemoryDisk
from tests.support.brokers_in_memory import HOST, bodies, messages, open_broker, pass_time, send

NOW_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
RETRY = "%RETRY%readers"


def settings(**changes: object) -> BrokerConfig:
    return msgspec.structs.replace(BrokerConfig(), **changes)


def beat(broker: Broker, group: str = "readers") -> None:
    """What a heartbeat makes."""
    broker.groups.require(group, HOST)
    broker.topics.create_retry_topic(f"%RETRY%{group}", 1, HOST)


def fill(made: AutoCreated, host: bytes, count: int, *, unused: bool, prefix: str = "g") -> None:
    for number in range(count):
        made.check(host)
        made.add(host, f"{prefix}{number}", unused=unused)


def test_a_host_that_used_up_its_hour_is_refused_and_others_are_not() -> None:
    made = AutoCreated("groups", SimulatedClock(NOW_MS), 3)
    fill(made, pack_host("10.0.0.1", 1_111), 3, unused=False)
    with pytest.raises(NoPermission, match=r"3 groups .* broker\.max_auto_created"):
        made.check(pack_host("10.0.0.1", 2_222))
    made.check(pack_host("10.0.0.2", 1_111))
    made.check(b"")
    fill(made, pack_host("10.0.0.2", 1_111), 1, unused=False, prefix="other")
    assert made.max_per_host == 3


def test_who_has_one_address_of_an_ipv6_network_has_them_all() -> None:
    made = AutoCreated("groups", SimulatedClock(NOW_MS), 1)
    fill(made, pack_host("2001:db8::1", 1), 1, unused=False)
    with pytest.raises(NoPermission):
        made.check(pack_host("2001:db8::ffff:2", 1))
    made.check(pack_host("2001:db8:0:1::1", 1))


def test_after_an_hour_only_what_nobody_used_still_counts() -> None:
    clock = SimulatedClock(NOW_MS)
    made = AutoCreated("groups", clock, 4)
    fill(made, HOST, 2, unused=True, prefix="unused")
    fill(made, HOST, 2, unused=False, prefix="used")
    clock.advance(HOUR_MS)
    fill(made, HOST, 2, unused=False, prefix="later")
    with pytest.raises(NoPermission):
        made.check(HOST)
    made.use("unused0")
    made.check(HOST)
    clock.advance(HOUR_MS)
    made.use("unused1")
    made.forget_old()
    assert made._created == {}


def test_sends_and_heartbeats_stop_at_the_bound_and_operators_do_not() -> None:
    broker = open_broker(MemoryDisk(), SimulatedClock(NOW_MS), settings=settings(max_auto_created=2))
    beat(broker)
    send(broker, b"first")
    with pytest.raises(NoPermission):
        send(broker, b"second", topic="another")
    with pytest.raises(NoPermission):
        broker.topics.create_retry_topic("%RETRY%others", 1, HOST)
    broker.topics.put(Topic(name="another"))
    send(broker, b"second", topic="another")
    broker.reader.check_readable("g1", "orders", 0, HOST)
    with pytest.raises(NoPermission):
        broker.reader.check_readable("g2", "orders", 0, HOST)
    with pytest.raises(NoPermission):
        broker.progress.commit("g2", "orders", 0, 1, HOST)
    broker.progress.commit("g1", "orders", 0, 1, HOST)


def test_what_an_operator_made_or_changed_stays() -> None:
    clock = SimulatedClock(NOW_MS)
    broker = open_broker(MemoryDisk(), clock)
    beat(broker)
    beat(broker, "others")
    broker.groups.put(Group(name="readers", max_retries=3))
    broker.groups.put(Group(name="own"))
    broker.topics.put(Topic(name=RETRY, read_queues=2, write_queues=2))
    clock.advance(2 * HOUR_MS)
    assert broker.unused_names.remove() == (1, 1)
    assert broker.topics.find(RETRY) is not None
    assert broker.groups.find("readers") is not None
    assert broker.groups.find("own") is not None
    assert broker.groups.find("others") is None


def test_a_retry_that_waits_keeps_its_topic_though_the_broker_died_before_it_came() -> None:
    """The longest level is two hours, and what is unused goes after one."""
    disk, clock = MemoryDisk(), SimulatedClock(NOW_MS)
    broker = open_broker(disk, clock)
    send(broker, b"hard")
    beat(broker)
    broker.tables.save()
    back = SendBack(group="readers", physical_offset=0, delay_level=18)
    broker.retries.send_back(back, HOST)
    broker.store.flush()
    broker = open_broker(disk.after_process_crash(), clock)
    for _ in range(4):
        pass_time(broker, clock, HOUR_MS * 3 // 4)
        broker.unused_names.remove()
    assert bodies(broker, RETRY) == [b"hard"]
    assert messages(broker, TIMER_DEAD_LETTER_TOPIC) == []


def test_a_retry_is_refused_while_it_cannot_be_saved_that_its_topic_is_used() -> None:
    disk, clock = MemoryDisk(), SimulatedClock(NOW_MS)
    broker = open_broker(disk, clock)
    send(broker, b"hard")
    beat(broker)
    broker.tables.save()

    def fail(operation: str, path: str) -> None:
        if path.startswith("latermq.unused"):
            raise StoreError("no disk space for latermq.unused")

    disk.before_step = fail
    for _ in range(2):
        with pytest.raises(StoreError):
            broker.retries.send_back(SendBack(group="readers", physical_offset=0, delay_level=18), HOST)
    disk.before_step = lambda operation, path: None
    broker.retries.send_back(SendBack(group="readers", physical_offset=0, delay_level=18), HOST)
    assert open_broker(disk.after_process_crash(), clock).topics.auto_created.unused == []


def test_unused_names_outlive_a_restart_and_have_their_time_again() -> None:
    disk, clock = MemoryDisk(), SimulatedClock(NOW_MS)
    broker = open_broker(disk, clock)
    beat(broker)
    clock.advance(HOUR_MS - 1)
    broker.close()
    broker = open_broker(disk, clock, settings=settings(keep_unused=Duration(HOUR_MS)))
    clock.advance(HOUR_MS - 1)
    assert broker.unused_names.remove() == (0, 0)
    clock.advance(1)
    assert broker.unused_names.remove() == (1, 1)
    assert broker.topics.find(RETRY) is None
    broker.close()
    broker = open_broker(disk, clock)
    assert broker.topics.find(RETRY) is None
    assert broker.groups.find("readers") is None
    beat(broker)
    assert broker.statistics()["unused_topics"] == 1


def test_a_group_that_is_called_like_a_topic_keeps_its_retry_topic() -> None:
    clock = SimulatedClock(NOW_MS)
    broker = open_broker(MemoryDisk(), clock)
    send(broker, b"message")
    for group in ("%DLQ%readers", "%RETRY%readers"):
        beat(broker, group)
        broker.progress.commit(group, "orders", 0, 1)
    clock.advance(HOUR_MS)
    assert broker.unused_names.remove() == (0, 0)
