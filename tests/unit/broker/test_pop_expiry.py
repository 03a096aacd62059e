"""The end of invisible times when some copies cannot be written, and in small segments."""

from latermq.broker.broker import Broker
from latermq.broker.pop.pop_request import PopRequest
from latermq.clock import SimulatedClock
from latermq.config import load_config
from latermq.errors import NoPermission
from latermq.message.names import dead_letter_topic
from latermq.model.topic import Topic
from latermq.store.files.memory_disk import MemoryDisk
from tests.support.admins import HOST

SMALL = (
    "store.segment=1MiB", "store.reserve_step=64KiB", "broker.max_message=500KiB", "store.index_slots=1000",
    "store.index_entries=10000",
)  # fmt: skip


class Popping:
    """A broker, and pops whose messages are never acknowledged."""

    def __init__(self, *settings: str) -> None:
        self.clock = SimulatedClock()
        config = load_config(settings=[*SMALL, *settings], environment={})
        self.broker = Broker(
            config, MemoryDisk(), self.clock, host="127.0.0.1", port=10911, new_store_id="s" * 32,
            random_fraction=lambda: 0.5,
        )  # fmt: skip

    def send(self, topic: str, *bodies: bytes) -> None:
        if self.broker.topics.find(topic) is None:
            self.broker.topics.put(Topic(name=topic, read_queues=1, write_queues=1))
            self.broker.tables.save()
        for body in bodies:
            self.broker.writer.send(topic, 0, body, "", self.clock.now_ms(), HOST)

    def pop_all(self, group: str, topic: str, invisible_ms: int = 1_000) -> int:
        self.broker.groups.require(group)
        count = 0
        while messages := self.broker.pops.pop(PopRequest(group, topic, -1, 32, invisible_ms)).messages:
            count += messages
        self.broker.pop_positions.commit()
        return count

    def run(self) -> int:
        wait_ms = self.broker.pop_expiry.run()
        if self.broker.pop_expiry.needs_save:
            self.broker.tables.save()
            self.broker.pop_expiry.needs_save = False
        return wait_ms


def test_copies_are_written_in_blocks_that_fit_a_segment() -> None:
    popping = Popping()
    popping.send("orders", *[b"x" * 100_000] * 30)
    assert popping.pop_all("readers", "orders") == 30
    popping.clock.advance(2_000)
    for _ in range(5):
        popping.run()
    assert (popping.broker.pop_expiry.failure, popping.broker.in_flight.held) == ("", 0)
    assert popping.broker.pop_expiry.statistics()["revived_messages"] == 30


def test_messages_that_cannot_be_copied_do_not_slow_others() -> None:
    popping = Popping("broker.max_topics=20")
    popping.send("orders", *[b"x"] * 1_000)
    popping.send("bills", b"stuck")
    popping.broker.topics.create_retry_topic("%RETRY%readers_orders", 1)
    number = 0
    try:
        while True:
            popping.broker.topics.put(Topic(name=f"t{number}"))
            number += 1
    except NoPermission:
        popping.broker.tables.save()
    assert popping.pop_all("readers", "bills") == 1
    assert popping.pop_all("readers", "orders") == 1_000
    popping.clock.advance(2_000)
    waits_ms = [popping.run() for _ in range(7)]
    assert waits_ms[:4] == [0, 0, 0, 0]
    assert waits_ms[-1] > 0, "only the message that cannot be copied is left"
    assert popping.broker.in_flight.held == 1
    assert "max_topics" in popping.broker.pop_expiry.failure
    assert popping.broker.pop_expiry.statistics()["revived_messages"] == 1_000


def test_a_message_whose_retry_topic_has_no_valid_name_becomes_a_dead_letter() -> None:
    popping = Popping()
    topic = "%DLQ%" + "x" * 200
    group = "g" * 120
    popping.send(topic, b"one")
    assert popping.pop_all(group, topic) == 1
    popping.clock.advance(2_000)
    for _ in range(3):
        popping.run()
    assert popping.broker.in_flight.held == 0
    assert popping.broker.pop_expiry.statistics()["buried_messages"] == 1
    queue = popping.broker.store.queues.find(dead_letter_topic(group), 0)
    assert queue is not None
    assert queue.next_offset == 1


def test_retention_gets_many_messages_in_flight_back_in_slices() -> None:
    popping = Popping("store.retention=1h")
    popping.send("orders", *[bytes(500)] * 1_000)
    assert popping.pop_all("readers", "orders", 100 * 3_600_000) == 1_000
    popping.send("other", *[bytes(100_000)] * 10)
    popping.broker.topics.create_retry_topic("%RETRY%readers_orders", 1)
    popping.broker.tables.save()
    popping.clock.advance(2 * 3_600_000)
    popping.send("other", *[bytes(100_000)] * 10)
    popping.broker.pop_expiry.release_log()
    first = 1_000 - popping.broker.in_flight.held
    assert 0 < first < 300
    # What leaves the table before its turn is not copied.
    popping.broker.pop_positions.reset("readers", "orders", 0, 990)
    popping.broker.pops.pop(PopRequest("readers", "orders", 0, 10, 100 * 3_600_000))
    while popping.run() == 0:
        pass
    assert popping.broker.pop_expiry.statistics()["revived_messages"] == first + 10
