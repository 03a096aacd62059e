"""A stalled POP journal collects more operations than a record or a segment can have."""

import pytest

from latermq.broker.broker import Broker
from latermq.clock import SimulatedClock
from latermq.config import BrokerConfig, Size, StoreConfig
from latermq.errors import StoreError
from latermq.group.pop.operations import Outcome
from latermq.group.pop.rows import Rows
from latermq.group.pop.table import InFlightTable
from latermq.message.names import POP_TOPIC
from latermq.store.files.memory_disk import MemoryDisk
from tests.support.brokers_in_memory import bodies, messages, open_broker, send
from tests.support.pop_parts import GROUP, Held, ack, expire, pop

SEGMENT_BYTES = 1 << 20
STORE = StoreConfig(segment=Size(SEGMENT_BYTES), reserve_step=Size(64 * 1024), queue_file_entries=4_096)
SETTINGS = BrokerConfig(max_message=Size(SEGMENT_BYTES // 2))
MESSAGES = 1_000
CHANGES = 100_000
_COLUMNS = ("first", "mask", "pop_ms", "visible_ms")


def opened(disk: MemoryDisk, clock: SimulatedClock) -> Broker:
    return open_broker(disk, clock, store=STORE, settings=SETTINGS)


def popped(broker: Broker) -> list[Held]:
    for number in range(MESSAGES):
        send(broker, b"%d" % number)
    broker.groups.require(GROUP, b"")
    broker.tables.save()
    held: list[Held] = []
    while len(held) < MESSAGES:
        held += pop(broker)
    return held


def change_all(broker: Broker, held: list[Held], changes: int = CHANGES) -> list[Held]:
    """Change invisible times again and again, without a record."""
    for _ in range(changes // len(held)):
        changed = [broker.acknowledgements.change(one.place, 60_000, is_suspended=False) for one in held]
        held = [
            Held(one.message, one.place._replace(pop_ms=after.pop_ms)) for one, after in zip(held, changed, strict=True)
        ]
    return held


def rows(table: InFlightTable) -> list[tuple[int, ...]]:
    columns: Rows = table.rows
    return sorted(row for row in zip(*(getattr(columns, name) for name in _COLUMNS), strict=True) if row[1])


def journal_bytes(broker: Broker) -> list[int]:
    return [len(one.body) for one in messages(broker, POP_TOPIC)]


def test_100_000_changes_are_journalled_with_segments_of_a_mebibyte() -> None:
    disk, clock = MemoryDisk(), SimulatedClock()
    broker = opened(disk, clock)
    held = change_all(broker, popped(broker))
    assert broker.pop_positions.try_commit() is None
    sizes = journal_bytes(broker)
    assert sum(sizes) > 30 * CHANGES > 2 * SEGMENT_BYTES > 16 * max(sizes)
    restarted = opened(disk.after_process_crash(), clock)
    assert rows(restarted.in_flight) == rows(broker.in_flight)
    assert ack(restarted, held[0]) is Outcome.DONE


@pytest.mark.parametrize("reserves", [0, 3, 8])
def test_a_disk_that_is_full_in_the_middle_leaves_the_rest_for_the_next_turn(reserves: int) -> None:
    disk, clock = MemoryDisk(), SimulatedClock()
    broker = opened(disk, clock)
    held = change_all(broker, popped(broker), 50_000)
    left = reserves

    def fail(operation: str, path: str) -> None:
        nonlocal left
        left -= operation == "reserve"
        if left < 0:
            raise StoreError("the disk is full")

    disk.before_step = fail
    assert broker.pop_positions.try_commit() is not None
    after_kill = opened(disk.after_process_crash(), clock)  # the first part is a valid journal by itself
    assert after_kill.in_flight.held == MESSAGES
    disk.before_step = lambda operation, path: None
    assert broker.pop_positions.try_commit() is None
    restarted = opened(disk.after_process_crash(), clock)
    assert rows(restarted.in_flight) == rows(broker.in_flight)
    assert ack(restarted, held[0]) is Outcome.DONE


def test_copies_of_large_messages_are_written_although_many_operations_wait() -> None:
    disk, clock = MemoryDisk(), SimulatedClock()
    broker = opened(disk, clock)
    held = popped(broker)
    send(broker, b"small")
    pop(broker, invisible_ms=1_000)
    clock.advance(1_000)
    expire(broker)  # creates the retry topic
    send(broker, b"x" * (SEGMENT_BYTES // 2 - 1_000))
    pop(broker, invisible_ms=1_000, queue_id=0)
    change_all(broker, held)
    clock.advance(1_000)
    expire(broker)
    assert [body[:1] for body in bodies(broker, f"%RETRY%{GROUP}_orders")] == [b"s", b"x"]
    assert rows(opened(disk.after_process_crash(), clock).in_flight) == rows(broker.in_flight)
