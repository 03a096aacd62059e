"""Records pulled in bulk: whole, in order, flushed, and as many as were asked for."""

import pytest

from latermq.broker.broker import Broker
from latermq.broker.messages.record_pulls import PulledRecords, RecordPulls
from latermq.clock import SimulatedClock
from latermq.errors import InvalidParameter, NoPermission, QueryNotFound, TopicNotFound
from latermq.message.names import TIMER_TOPIC
from latermq.message.record import decode_records
from latermq.store.files.memory_disk import MemoryDisk
from tests.support.brokers_in_memory import messages, open_broker, send

MAX_BYTES = 48 * 1024


class Scene:
    """A broker in memory, and pulls of one of its queues."""

    def __init__(self) -> None:
        self.disk = MemoryDisk()
        self.broker: Broker = open_broker(self.disk, SimulatedClock())
        self.pulls = RecordPulls(self.broker.store.reader, self.broker.topics, max_bytes=MAX_BYTES)

    def send(self, count: int, size_bytes: int = 20, topic: str = "orders") -> None:
        for number in range(count):
            send(self.broker, str(number).encode().ljust(size_bytes), topic)

    def flush(self) -> None:
        self.broker.store.flush()

    def pull(
        self, offset: int, *, topic: str = "orders", max_bytes: int = MAX_BYTES, until: int | None = None
    ) -> PulledRecords:
        return self.pulls.pull(topic, 0, offset, max_bytes, until)


def numbers(pulled: PulledRecords) -> list[int]:
    return [int(message.body) for message in decode_records(pulled.records)]


def test_a_pull_gives_the_records_as_they_lie_in_the_log() -> None:
    scene = Scene()
    scene.send(10)
    scene.flush()
    pulled = scene.pull(3)
    assert list(decode_records(pulled.records)) == messages(scene.broker)[3:]
    assert pulled[1:] == (10, 0, 10)


def test_records_of_other_queues_between_are_left_out() -> None:
    scene = Scene()
    for number in range(20):
        send(scene.broker, str(number).encode(), "orders" if number % 3 else "bills")
    scene.flush()
    assert numbers(scene.pull(0)) == [number for number in range(20) if number % 3]
    assert numbers(scene.pull(0, topic="bills")) == [number for number in range(20) if number % 3 == 0]


def test_what_is_not_flushed_is_not_told() -> None:
    scene = Scene()
    scene.send(4)
    scene.flush()
    scene.send(3)
    assert numbers(scene.pull(0)) == [0, 1, 2, 3]
    at_the_end = scene.pull(4)
    assert at_the_end == (b"", 4, 0, 4)
    assert scene.pull(6).records == b""  # there, but not flushed
    scene.flush()
    assert numbers(scene.pull(4)) == [0, 1, 2]


def test_a_pull_ends_before_the_record_that_would_be_too_much() -> None:
    scene = Scene()
    scene.send(10, size_bytes=100)
    scene.flush()
    size = len(scene.pull(0, until=1).records)
    assert numbers(scene.pull(0, max_bytes=3 * size)) == [0, 1, 2]
    assert numbers(scene.pull(0, max_bytes=4 * size - 1)) == [0, 1, 2]


def test_at_least_one_record_comes_whatever_its_size() -> None:
    scene = Scene()
    scene.send(3, size_bytes=30_000)
    scene.flush()
    assert numbers(scene.pull(1, max_bytes=10)) == [1]


def test_nobody_gets_more_than_the_bound() -> None:
    scene = Scene()
    scene.send(100, size_bytes=1_000)
    scene.flush()
    pulled = scene.pull(0, max_bytes=1 << 30)
    assert MAX_BYTES - 2_000 < len(pulled.records) <= MAX_BYTES
    assert pulled.next_offset == len(numbers(pulled))


def test_pulls_one_after_the_other_give_everything_across_files_and_segments() -> None:
    scene = Scene()
    scene.send(700, size_bytes=1_000)  # queue files of 64 entries, segments of 256 KiB
    scene.flush()
    found: list[int] = []
    offset = 0
    while (pulled := scene.pull(offset)).records:
        found += numbers(pulled)
        offset = pulled.next_offset
    assert found == list(range(700))


def test_a_pull_stops_where_it_was_told_to() -> None:
    scene = Scene()
    scene.send(10)
    scene.flush()
    assert numbers(scene.pull(2, until=5)) == [2, 3, 4]
    assert scene.pull(5, until=5).records == b""
    assert numbers(scene.pull(8, until=99)) == [8, 9]


def test_a_topic_without_messages_gives_an_empty_answer() -> None:
    scene = Scene()
    assert scene.pull(0, topic=TIMER_TOPIC) == (b"", 0, 0, 0)


def test_the_timer_topic_can_be_pulled() -> None:
    scene = Scene()
    send(scene.broker, b"1", TIMER_DELAY_SEC="60")
    scene.flush()
    assert numbers(scene.pull(0, topic=TIMER_TOPIC)) == [1]


def test_an_offset_whose_record_is_gone_is_refused_and_the_first_one_named() -> None:
    scene = Scene()
    scene.send(700, size_bytes=1_000)
    scene.flush()
    scene.broker.store.log.drop_first_segment()
    queue = scene.broker.store.queues.ensure("orders", 0)
    queue.forget_below(scene.broker.store.log.start)
    assert queue.min_offset > 100
    with pytest.raises(QueryNotFound, match=f"minOffset is {queue.min_offset}"):
        scene.pull(queue.min_offset - 1)
    assert numbers(scene.pull(queue.min_offset))[0] == queue.min_offset


def test_an_offset_beyond_the_queue_is_refused() -> None:
    scene = Scene()
    scene.send(3)
    with pytest.raises(QueryNotFound, match="ends at 3"):
        scene.pull(4)


def test_topics_and_queues_that_cannot_be_read_are_refused() -> None:
    scene = Scene()
    scene.send(1)
    with pytest.raises(TopicNotFound):
        scene.pull(0, topic="bills")
    with pytest.raises(InvalidParameter):
        scene.pulls.pull("orders", 99, 0, 100)
    scene.broker.topics.require("orders").permissions = 2
    with pytest.raises(NoPermission):
        scene.pull(0)
