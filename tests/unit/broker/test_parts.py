"""The broker's parts work on their own: each is built from what it needs, without a Broker around it."""

import ast
from pathlib import Path

import pytest

import latermq
from latermq.broker.messages.progress import ConsumerProgress
from latermq.broker.messages.reader import MessageReader
from latermq.broker.messages.write_gate import WriteGate
from latermq.broker.metrics.traffic import Traffic
from latermq.broker.tables.table_loader import open_tables
from latermq.broker.tables.topics import UnsavedTopic
from latermq.broker.tables.writable_topics import WritableTopics, reject_unsaved
from latermq.clock import SimulatedClock
from latermq.config import BrokerConfig, StoreConfig
from latermq.errors import ServiceUnavailable
from latermq.model.pull_status import PullStatus
from latermq.model.topic import Topic
from latermq.store.files.memory_disk import MemoryDisk
from tests.support.stores import append, open_store


class Filled:
    """A store on a disk that is so full."""

    def __init__(self, used: float) -> None:
        self._used = used

    def used_ratio(self) -> float:
        return self._used


class Parts:
    """A store with three messages, and the tables of a new broker."""

    def __init__(self) -> None:
        disk, clock, self.settings = MemoryDisk(), SimulatedClock(), BrokerConfig()
        self.store = open_store(disk, clock=clock)
        self.topics, self.groups, self.offsets, self.modes = open_tables(disk, self.settings, clock, clock, [])
        self.topics.put(Topic(name="orders"))
        self.traffic = Traffic()
        for number in range(3):
            append(self.store, b"message %d" % number)


class NothingPopped:
    """The positions of a broker whose groups all pull."""

    def committed(self, group: str, topic: str, queue_id: int, offset: int, *, is_reset: bool) -> int:
        return offset


def test_a_reader_needs_only_a_store_and_tables() -> None:
    parts = Parts()
    reader = MessageReader(parts.store.reader, parts.topics, parts.groups, parts.settings, parts.traffic)
    reader.check_readable("readers", "orders", 0)
    pulled = reader.pull("orders", 0, 1, 32)
    assert (pulled.status, pulled.messages, pulled.next_offset) == (PullStatus.FOUND, 2, 3)
    assert parts.traffic.messages_out == 2


def test_progress_is_committed_up_to_the_end_of_the_queue() -> None:
    parts = Parts()
    progress = ConsumerProgress(
        parts.store.reader, parts.topics, parts.groups, parts.offsets, parts.settings, NothingPopped()
    )
    progress.commit("readers", "orders", 0, 99)
    assert progress.committed("readers", "orders", 0) == 3


def test_a_full_disk_refuses_new_messages_before_retries() -> None:
    for used, refused in ((0.5, []), (0.9, [False]), (0.97, [False, True])):
        gate = WriteGate(Filled(used), StoreConfig())
        gate.check_disk()
        found = []
        for is_retry in (False, True):
            try:
                gate.check(is_retry=is_retry)
            except ServiceUnavailable:
                found.append(is_retry)
        assert found == refused


def test_a_topic_is_writable_only_once_it_is_saved() -> None:
    parts = Parts()
    topics = WritableTopics(parts.topics, WriteGate(parts.store, StoreConfig()), reject_unsaved)
    with pytest.raises(UnsavedTopic):
        topics.find("orders", "", 8)
    assert "orders" not in topics.open
    parts.topics.saved_version = parts.topics.version
    assert topics.find("orders", "", 8) is topics.open["orders"]


def names_broker(path: Path) -> bool:
    """Whether a module refers to the class Broker, if only in an annotation."""
    return any(isinstance(node, ast.Name) and node.id == "Broker" for node in ast.walk(ast.parse(path.read_text())))


def test_no_part_and_no_handler_takes_a_broker() -> None:
    source = Path(latermq.__file__).parent
    composed = [source / "broker" / name for name in ("admin", "messages", "metrics", "tables", "timers")]
    composed += [source / "server" / name for name in ("broker", "handlers", "remoting", "windows")]
    modules = [path for folder in composed for path in folder.rglob("*.py")]
    # These two compose the process.
    expected = {"server/broker/composition.py", "server/broker/process.py"}
    assert {str(path.relative_to(source)) for path in modules if names_broker(path)} == expected
