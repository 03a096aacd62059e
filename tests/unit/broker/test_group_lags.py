"""What a broker reports for alerts: stalled groups, new dead letters, overdue timers."""

import json
from collections.abc import Iterator

import pytest

from latermq.broker.admin.runtime_info import Identity
from latermq.broker.broker import Broker
from latermq.broker.metrics import group_lags
from latermq.clock import SimulatedClock
from latermq.message.names import dead_letter_topic
from latermq.message.properties import encode_properties
from latermq.model.topic import Topic
from latermq.store.files.memory_disk import MemoryDisk
from tests.support.brokers_in_memory import HOST, open_broker

IDENTITY = Identity("127.0.0.1:10911", "0", 0)


class Watched:
    """A broker that takes a sample every second, as a process does."""

    def __init__(self) -> None:
        self.clock = SimulatedClock()
        self.broker: Broker = open_broker(MemoryDisk(), self.clock)

    def send(self, count: int, topic: str = "orders", queue_id: int = 0) -> None:
        for _ in range(count):
            self.broker.writer.send(topic, queue_id, b"x", encode_properties({}), 0, HOST)

    def pass_seconds(self, seconds: int) -> None:
        for _ in range(seconds):
            self.clock.advance(1_000)
            self.broker.runtime_info.sample()

    def told(self, name: str) -> list[list[object]]:
        found: list[list[object]] = json.loads(self.broker.runtime_info.table(IDENTITY)[name])
        return found


@pytest.fixture
def watched() -> Iterator[Watched]:
    watched = Watched()
    yield watched
    watched.broker.close()


def test_a_group_that_consumes_nothing_while_messages_arrive_is_stalled_until_it_advances(watched: Watched) -> None:
    watched.send(3)
    watched.broker.offsets.put("readers", "orders", 0, 1)
    watched.pass_seconds(60)
    assert watched.broker.group_lags.lags() == {("readers", "orders"): 2}
    assert watched.told("latermqStalledGroups") == []  # nothing has arrived since
    watched.send(5)
    watched.pass_seconds(20)
    [[group, topic, lag, for_ms]] = watched.told("latermqStalledGroups")
    assert (group, topic, lag) == ("readers", "orders", 7)
    assert isinstance(for_ms, int)
    assert 60_000 <= for_ms <= 80_000
    watched.broker.offsets.put("readers", "orders", 0, 2)
    watched.pass_seconds(20)
    assert watched.told("latermqStalledGroups") == []
    assert watched.broker.group_lags.lags() == {("readers", "orders"): 6}


def test_a_group_that_pops_is_not_stalled_by_one_message_in_flight(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched.send(3)
    watched.broker.offsets.put("readers", "orders", 0, 1)
    popped = 1
    monkeypatch.setattr(watched.broker.group_lags, "_popped_offset", lambda *of: popped)
    for _ in range(6):
        watched.send(1)
        popped += 1
        watched.pass_seconds(10)
    assert watched.told("latermqStalledGroups") == []


def test_a_group_that_keeps_up_and_one_whose_topic_is_gone_are_not_stalled(watched: Watched) -> None:
    watched.broker.offsets.put("readers", "deleted", 0, 5)
    for _ in range(6):
        watched.send(2)
        watched.broker.offsets.put("readers", "orders", 0, watched.broker.offsets.get("readers", "orders", 0) + 2)
        watched.pass_seconds(10)
    assert watched.told("latermqStalledGroups") == []


def test_many_offsets_are_counted_in_several_samples(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_lags, "OFFSETS_PER_SAMPLE", 10)
    monkeypatch.setattr(group_lags, "MAX_EXPORTED", 4)
    watched.send(1)
    for number in range(35):
        watched.broker.offsets.put(f"readers-{number}", "orders", 0, 0)
    watched.pass_seconds(3)
    assert watched.broker.group_lags.statistics() == {"group_lags": 0}
    watched.pass_seconds(2)
    assert watched.broker.group_lags.statistics() == {"group_lags": 35}
    assert len(watched.broker.group_lags.lags()) == 4


def test_only_dead_letters_since_the_start_are_new(watched: Watched) -> None:
    old, new = dead_letter_topic("old"), dead_letter_topic("new")
    for name in (old, new):
        watched.broker.topics.put(Topic(name=name, read_queues=1, write_queues=1))
    watched.send(2, old)
    watched.pass_seconds(10)
    assert watched.told("latermqNewDeadLetters") == []
    watched.send(3, new)
    watched.pass_seconds(30)
    [[topic, stored, age_ms]] = watched.told("latermqNewDeadLetters")
    assert (topic, stored) == (new, 3)
    assert isinstance(age_ms, int)
    assert 20_000 <= age_ms <= 30_000
    assert watched.broker.dead_letter_counts.of_groups == 3


def test_overdue_timers_and_their_lateness_are_reported(watched: Watched) -> None:
    bounds, counts = watched.told("latermqTimerLateness")
    assert len(counts) == len(bounds) + 1
    table = watched.broker.runtime_info.table(IDENTITY)
    assert (table["latermqOverdueTimers"], table["latermqOverdueMs"], table["latermqKeptBack"]) == ("0", "0", "0")
    assert table["latermqClockHeld"] == "false"
