"""The broker's parts work on their own: each is built from what it needs, without a Broker around it."""

from latermq.broker.messages.progress import ConsumerProgress
from latermq.broker.messages.reader import MessageReader
from latermq.broker.metrics.traffic import Traffic
from latermq.broker.tables.table_loader import open_tables
from latermq.clock import SimulatedClock
from latermq.config import BrokerConfig
from latermq.model.pull_status import PullStatus
from latermq.model.topic import Topic
from latermq.store.files.memory_disk import MemoryDisk
from tests.support.stores import append, open_store


class Parts:
    """A store with three messages, and the tables of a new broker."""

    def __init__(self) -> None:
        disk, clock, self.settings = MemoryDisk(), SimulatedClock(), BrokerConfig()
        self.store = open_store(disk, clock=clock)
        self.topics, self.groups, self.offsets = open_tables(disk, self.settings, clock, clock, [])
        self.topics.put(Topic(name="orders"))
        self.traffic = Traffic()
        for number in range(3):
            append(self.store, b"message %d" % number)


def test_a_reader_needs_only_a_store_and_tables() -> None:
    parts = Parts()
    reader = MessageReader(parts.store.reader, parts.topics, parts.groups, parts.settings, parts.traffic)
    reader.check_readable("readers", "orders", 0)
    pulled = reader.pull("orders", 0, 1, 32)
    assert (pulled.status, pulled.messages, pulled.next_offset) == (PullStatus.FOUND, 2, 3)
    assert parts.traffic.messages_out == 2


def test_progress_is_committed_up_to_the_end_of_the_queue() -> None:
    parts = Parts()
    progress = ConsumerProgress(parts.store.reader, parts.topics, parts.groups, parts.offsets, parts.settings)
    progress.commit("readers", "orders", 0, 99)
    assert progress.committed("readers", "orders", 0) == 3
