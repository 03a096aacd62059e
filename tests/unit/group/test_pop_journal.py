"""The POP journal: its bytes are those of the format page, and a replay leads to the same table."""

import zlib
from collections.abc import Callable
from random import Random

import pytest

from latermq.errors import CorruptStore
from latermq.group.pop import operations as operations_module
from latermq.group.pop import rows
from latermq.group.pop.journal import HEAD, JournalReader
from latermq.group.pop.operations import Limits, PopOperations
from latermq.group.pop.popped_queue import PoppedQueue
from latermq.group.pop.snapshot_file import copy_table, encode_snapshot
from latermq.group.pop.table import InFlightTable

NOW_MS = 1_700_000_000_000
LEASE = 0x0102030405060708
ATTEMPT = 0x1112131415161718
T0, T60 = "0000018bcfe56800", "0000018bcfe65260"  # NOW_MS, and a minute later
Step = Callable[[PopOperations, PoppedQueue], object]
STEPS: dict[str, tuple[Step, str]] = {
    "pop": (
        lambda do, queue: do.pop(queue, [5, 6, 7], 8, NOW_MS, 60_000),
        f"02 00000000 0000000000000005 00000007 {T0} {T60}",
    ),
    "pop with filtered messages": (
        lambda do, queue: do.pop(queue, [5, 36, 37], 40, NOW_MS, 60_000),
        f"02 00000000 0000000000000005 80000001 {T0} {T60}"
        f"02 00000000 0000000000000025 00000001 {T0} {T60}"
        "08 00000000 0000000000000028",
    ),
    "pop with a lease": (
        lambda do, queue: do.pop(queue, [5], 6, NOW_MS, 60_000, LEASE),
        f"03 00000000 0000000000000005 00000001 {T0} 0000018bd08a3380 0102030405060708",
    ),
    "pop in order": (
        lambda do, queue: do.pop_in_order(queue, [5, 6], 7, NOW_MS, 60_000, ATTEMPT, 0),
        f"04 00000000 0000000000000005 00000003 {T0} {T60} 0000000000000000 1112131415161718 01",
    ),
    "next offset": (lambda do, queue: do.advance(queue, 9), "08 00000000 0000000000000009"),
    "reset": (lambda do, queue: do.reset(queue, 3), "09 00000000 0000000000000003"),
    "removed": (lambda do, queue: do.remove_group("g"), "0a 00000000"),
}
FOLLOWING: dict[str, tuple[Step, str]] = {
    "acknowledged": (lambda do, queue: do.ack(queue, 6, NOW_MS), "05 00000000 0000000000000005 00000002"),
    "all acknowledged": (
        lambda do, queue: do.ack_all(queue, [(5, 0b111)], NOW_MS),
        "05 00000000 0000000000000005 00000007",
    ),
    "changed": (
        lambda do, queue: do.change(queue, 6, NOW_MS, NOW_MS + 1, 59_999),
        f"07 00000000 0000000000000006 0000018bcfe56801 {T60} 00",
    ),
    "changed without an attempt": (
        lambda do, queue: do.change(queue, 6, NOW_MS, NOW_MS + 1, 59_999, is_suspended=True),
        f"07 00000000 0000000000000006 0000018bcfe56801 {T60} 01",
    ),
    "lease ended": (
        lambda do, queue: do.end_lease(LEASE, NOW_MS),
        f"0c 0102030405060708 0000000000000000 {T0} {T0}",
    ),
    "clock": (
        lambda do, queue: do.follow_clock(LEASE, NOW_MS, -60_000),
        f"0d 0102030405060708 {T0} ffffffffffff15a0",
    ),
    "answer lost": (lambda do, queue: do.lose(LEASE, {NOW_MS}, NOW_MS), f"0c 0102030405060708 {T0} {T0} {T60}"),
}


def opened() -> tuple[PopOperations, PoppedQueue]:
    operations = PopOperations(InFlightTable())
    return operations, operations.open_queue("g", "orders", 3, 5)


def taken(operations: PopOperations) -> bytes:
    body = operations.journal.body()
    operations.note_journalled()
    return body


def image(table: InFlightTable) -> str:
    """Everything that is in a table, whatever rows it uses."""
    queues = sorted(table.queues.values(), key=lambda queue: queue.key)
    rows = [
        (queue.key, *(getattr(table.rows, name)[row] for name in (
            "first", "mask", "pop_ms", "visible_ms", "lease", "count", "flags")))
        for queue in queues
        for row in queue.all_rows()
    ]  # fmt: skip
    positions = [
        (queue.key, queue.number, table.next_of(queue), table.positions.fence_ms[queue.number],
         table.positions.order_pop_ms[queue.number], table.positions.attempt[queue.number])
        for queue in queues
    ]  # fmt: skip
    return repr((rows, positions, table.last_pop_ms, table.fence_ms, table.boot, table.clock_offset_ms))


def operations_in(body: bytes) -> str:
    return body[HEAD.size :].hex()


def test_the_body_in_the_format_page() -> None:
    operations, queue = opened()
    operations.pop(queue, [5, 6, 7], 8, NOW_MS, 60_000)
    assert operations.journal.body() == bytes.fromhex(
        "01 00000002 155b4375"
        "01 00000000 00000003 0000000000000005 0001 0006 67 6f7264657273"
        "02 00000000 0000000000000005 00000007 0000018bcfe56800 0000018bcfe65260"
    )


@pytest.mark.parametrize("name", STEPS)
def test_an_operation_has_these_bytes(name: str) -> None:
    operations, queue = opened()
    taken(operations)
    step, expected = STEPS[name]
    step(operations, queue)
    assert operations_in(operations.journal.body()) == expected.replace(" ", "")


@pytest.mark.parametrize("name", FOLLOWING)
def test_an_operation_on_popped_messages_has_these_bytes(name: str) -> None:
    operations, queue = opened()
    operations.pop(queue, [5, 6, 7], 8, NOW_MS, 60_000, LEASE if name in ("lease ended", "answer lost") else 0)
    taken(operations)
    step, expected = FOLLOWING[name]
    step(operations, queue)
    assert operations_in(operations.journal.body()) == expected.replace(" ", "")


def test_a_message_that_is_gone_has_these_bytes_and_they_come_last() -> None:
    operations, queue = opened()
    operations.pop(queue, [5, 6, 7], 8, NOW_MS, 0)
    due, _ = operations.due(NOW_MS)
    body = operations.journal.body(due)
    assert body.endswith(bytes.fromhex("06 00000000 0000000000000005 00000007"))
    assert operations.journal.body(due) == body, "it is kept until it is in the log"
    operations.note_journalled(due)
    assert operations.journal.body() == b""


def test_every_operation_leads_to_the_same_table_when_it_is_replayed() -> None:
    operations, queue = opened()
    replayed = InFlightTable()
    reader = JournalReader(replayed)
    for name in ("pop", "pop with filtered messages", "pop with a lease", "pop in order"):
        step, _ = STEPS[name]
        operations.reset(queue, 5)
        step(operations, queue)
        for after, _ in FOLLOWING.values():
            after(operations, queue)
        reader.apply(taken(operations))
        assert image(replayed) == image(operations.table)
    for name in ("next offset", "reset", "removed"):
        STEPS[name][0](operations, queue)
        reader.apply(taken(operations))
        assert image(replayed) == image(operations.table)
    assert replayed.queues == {}


def test_the_end_of_a_lease_that_an_earlier_version_wrote_is_replayed() -> None:
    operations, queue = opened()
    operations.pop(queue, [5, 6, 7], 8, NOW_MS, 60_000, LEASE)
    replayed = InFlightTable()
    reader = JournalReader(replayed)
    reader.apply(taken(operations))
    operations.end_lease(LEASE, NOW_MS)
    ended = bytes.fromhex(f"0b 0102030405060708 {T0} {T0}")
    reader.apply(HEAD.pack(1, 1, zlib.crc32(ended)) + ended)
    assert image(replayed) == image(operations.table)


def test_acknowledgements_of_a_turn_are_one_operation_per_pop() -> None:
    operations, queue = opened()
    operations.pop(queue, range(5, 37), 37, NOW_MS, 60_000)
    operations.pop(queue, range(37, 69), 69, NOW_MS, 60_000)
    taken(operations)
    for offset in range(5, 69):
        operations.ack(queue, offset, NOW_MS)
    assert len(operations.journal.body()) == HEAD.size + 2 * 17


@pytest.mark.parametrize("seed", range(20))
def test_operations_of_one_turn_are_replayed_in_an_order_that_leads_to_the_same_table(seed: int) -> None:
    chance = Random(seed)
    operations, queue = opened()
    replayed = InFlightTable()
    reader = JournalReader(replayed)
    handles: list[tuple[int, int]] = []
    for _ in range(10):
        for _ in range(chance.randrange(1, 20)):
            next_offset = operations.table.next_of(queue)
            kind = chance.randrange(5)
            if kind == 0:
                offsets = sorted(chance.sample(range(next_offset, next_offset + 60), 10))
                pop_ms = operations.pop(queue, offsets, offsets[-1] + 2, NOW_MS, 60_000, chance.choice((0, LEASE)))
                handles += [(offset, pop_ms) for offset in offsets]
            elif kind == 1 and handles:
                offset, pop_ms = chance.choice(handles)
                changed = operations.change(queue, offset, pop_ms, NOW_MS, 5)
                handles.append((offset, changed.pop_ms))
            elif kind == 2 and chance.random() < 0.1:
                operations.reset(queue, chance.randrange(next_offset + 1))
            elif handles:
                operations.ack(queue, *chance.choice(handles))
        body = taken(operations)
        if body:
            reader.apply(body)
        assert image(replayed) == image(operations.table)


# Damage


def test_a_full_table_is_replayed_in_which_messages_were_acknowledged_and_popped_in_one_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in (rows, operations_module):
        monkeypatch.setattr(module, "MAX_ROWS", 64)
    operations = PopOperations(InFlightTable(), Limits(in_flight=64, in_flight_per_queue=64))
    queue = operations.open_queue("g", "t", 0, 0)
    held = range(0, 64 * 32, 32)  # each in a row of its own
    operations.pop(queue, held, held[-1] + 1, NOW_MS, 60_000)
    reader = JournalReader(table := InFlightTable())
    reader.apply(taken(operations))
    for done in (1, 40):
        for offset in list(operations.table.rows.first)[:done]:
            operations.ack(queue, offset, NOW_MS)
        start = operations.table.next_of(queue)
        new = range(start, start + (64 - operations.table.held) * 32, 32)
        operations.pop(queue, new, new[-1] + 1, NOW_MS, 60_000)
        assert operations.table.held == 64
        reader.apply(taken(operations))
        assert image(table) == image(operations.table)


def with_crc(body: bytes) -> bytes:
    operations = body[HEAD.size :]
    return HEAD.pack(body[0], int.from_bytes(body[1:5], "big"), zlib.crc32(operations)) + operations


def damaged(body: bytes) -> dict[str, bytes]:
    return {
        "empty": b"",
        "head": body[:8],
        "version": bytes([9]) + body[1:],
        "checksum": body[:-1] + bytes([body[-1] ^ 1]),
        "short": with_crc(body[:-1]),
        "long": with_crc(body + b"\0"),
        "more operations": with_crc(body[:4] + bytes([body[4] + 1]) + body[5:]),
        "fewer operations": with_crc(body[:4] + bytes([body[4] - 1]) + body[5:]),
        "kind": with_crc(body[: HEAD.size] + bytes([99]) + body[HEAD.size + 1 :]),
        "group": with_crc(body.replace(b"g", b"\xff")),
    }


@pytest.mark.parametrize("name", damaged(b"\1" * 20))
def test_a_damaged_body_is_rejected(name: str) -> None:
    operations, queue = opened()
    operations.pop(queue, [5, 6, 7], 8, NOW_MS, 60_000)
    with pytest.raises(CorruptStore, match="journal"):
        JournalReader(InFlightTable()).apply(damaged(operations.journal.body())[name])


def test_operations_on_what_is_not_there_are_damage_unless_the_beginning_is_missing() -> None:
    operations, queue = opened()
    operations.pop(queue, [5, 6, 7], 8, NOW_MS, 60_000)
    first = taken(operations)
    operations.ack(queue, 6, NOW_MS)
    operations.change(queue, 7, NOW_MS, NOW_MS, 5)
    operations.pop(queue, [8], 9, NOW_MS, 5)
    operations.advance(queue, 20)
    second = taken(operations)
    operations.open_queue("g", "bills", 0, 0)
    third = taken(operations)
    with pytest.raises(CorruptStore, match="never opened"):
        JournalReader(InFlightTable()).apply(second)
    twice = JournalReader(InFlightTable())
    twice.apply(first)
    with pytest.raises(CorruptStore, match="opened twice"):
        twice.apply(first)
    table = InFlightTable()
    partial = JournalReader(table, is_partial=True)
    partial.apply(second)
    partial.apply(third)
    assert partial.skipped == 4
    assert list(table.queues) == [("g", "bills", 0)]


@pytest.mark.parametrize("seed", range(30))
def test_random_bytes_with_a_right_checksum_fail_in_the_same_way(seed: int) -> None:
    chance = Random(seed)
    operations, queue = opened()
    operations.pop(queue, [5, 6, 7], 8, NOW_MS, 60_000, LEASE)
    operations.pop_in_order(queue, [8], 9, NOW_MS, 60_000, ATTEMPT, 0)
    operations.ack(queue, 6, NOW_MS)
    body = bytearray(operations.journal.body())
    for _ in range(200):
        changed = bytearray(body)
        for _ in range(chance.randrange(1, 4)):
            changed[chance.randrange(HEAD.size, len(changed))] = chance.randrange(256)
        table = InFlightTable()
        try:
            JournalReader(table, is_partial=chance.random() < 0.5).apply(with_crc(bytes(changed)))
        except CorruptStore:
            continue
        encode_snapshot(copy_table(table, 0))
