"""The snapshot of messages in flight: when it is written, what it covers, and what happens if it is lost."""

import contextlib
import zlib
from random import Random

import pytest

from latermq.clock import SimulatedClock
from latermq.errors import CorruptStore, StoreError
from latermq.group.pop.operations import Outcome, PopOperations
from latermq.group.pop.pop_journal import PopJournal
from latermq.group.pop.popped_queue import PoppedQueue
from latermq.group.pop.snapshot import PopSnapshot
from latermq.group.pop.snapshot_file import PATH, copy_table, decode_snapshot, encode_snapshot
from latermq.group.pop.table import InFlightTable
from latermq.message.names import POP_TOPIC
from latermq.store.checkpoint import PATH as CHECKPOINT
from latermq.store.files.memory_disk import MemoryDisk, SimulatedCrash
from latermq.store.log_writer import Draft
from latermq.store.message_store import MessageStore
from tests.support.stores import HOST, SMALL, append

NOW_MS = 1_800_000_000_000
MINUTE_MS = 60_000


class Pops:
    """A store with POP consumption, and no broker around it."""

    def __init__(self, disk: MemoryDisk, min_growth_bytes: int = 0, max_pinned_bytes: int = 1 << 30) -> None:
        self.disk = disk
        table = InFlightTable()
        self.snapshot = PopSnapshot(disk, table, min_growth_bytes, max_pinned_bytes)
        self.store = MessageStore(
            disk, SMALL, SimulatedClock(), store_host=HOST, new_store_id="a" * 32, participants=[self.snapshot]
        )
        self.operations = PopOperations(table)
        self.journal = PopJournal(self.store, self.operations, self.snapshot, born_host=HOST)

    def send(self, count: int) -> None:
        for number in range(count):
            append(self.store, b"%d" % number)

    def queue(self) -> PoppedQueue:
        return self.operations.open_queue("shop", "orders", 0, 0)

    def pop(self, count: int) -> int:
        queue = self.queue()
        first = self.operations.table.next_of(queue)
        pop_ms = self.operations.pop(queue, range(first, first + count), first + count, NOW_MS, MINUTE_MS)
        self.journal.append()
        return pop_ms

    def ack(self, offset: int, pop_ms: int) -> Outcome:
        outcome = self.operations.ack(self.queue(), offset, pop_ms)
        self.journal.append()
        return outcome

    def save(self) -> None:
        self.store.save(self.store.plan_checkpoint())

    def held(self) -> list[int]:
        due, _ = self.operations.due(NOW_MS + MINUTE_MS)
        return sorted(offset for one in due for offset in one.offsets)

    def killed(self) -> "Pops":
        return Pops(self.disk.after_process_crash())


def test_a_kill_forgets_nothing_that_was_answered() -> None:
    pops = Pops(MemoryDisk())
    pops.send(10)
    pop_ms = pops.pop(5)
    pops.ack(2, pop_ms)
    again = pops.killed()
    assert again.held() == [0, 1, 3, 4]
    assert again.operations.table.next_of(again.queue()) == 5
    assert again.ack(3, pop_ms) is Outcome.DONE, "handles are valid across a restart"


def test_a_start_reads_the_snapshot_and_only_the_journal_after_it() -> None:
    pops = Pops(MemoryDisk())
    pops.send(50)
    pop_ms = pops.pop(5)
    pops.pop(5)
    pops.save()
    pops.ack(1, pop_ms)
    again = pops.killed()
    assert (again.snapshot.mark, again.journal.replayed) == (2, 1)
    assert again.held() == [0, *range(2, 10)]


def test_a_snapshot_is_written_only_when_the_journal_has_grown() -> None:
    pops = Pops(MemoryDisk(), min_growth_bytes=2_000)
    pops.send(50)
    pops.pop(1)
    pops.save()
    assert pops.disk.read(PATH) is None
    for _ in range(20):
        pops.pop(1)
    pops.save()
    first = pops.disk.read(PATH)
    assert first is not None
    pops.pop(1)
    pops.save()
    assert pops.disk.read(PATH) == first
    again = Pops(pops.disk.after_process_crash(), min_growth_bytes=2_000)
    assert again.journal.replayed == 1
    assert again.held() == list(range(22))


def test_a_journal_that_hardly_grows_does_not_keep_the_log_from_being_shortened() -> None:
    pops = Pops(MemoryDisk(), min_growth_bytes=1 << 20, max_pinned_bytes=10_000)
    pops.send(3)
    pops.ack(0, pops.pop(1))
    pops.save()
    assert pops.snapshot.mark == 0
    for _ in range(4):
        append(pops.store, b"x" * 4_000, topic="filler")
    assert pops.journal.needed_from() < pops.store.log.end - 10_000
    pops.save()
    assert pops.snapshot.mark == 2
    assert pops.journal.needed_from() == pops.store.log.end
    saved = pops.disk.read(PATH)
    for _ in range(4):
        append(pops.store, b"x" * 4_000, topic="filler")
    pops.save()
    assert pops.disk.read(PATH) == saved, "nothing is popped, so it is still valid"


def test_a_snapshot_is_not_written_while_operations_wait_for_their_record() -> None:
    """Otherwise they would be in the snapshot and after its mark."""
    pops = Pops(MemoryDisk())
    pops.send(10)
    pop_ms = pops.pop(5)
    pops.operations.ack(pops.queue(), 0, pop_ms)
    pops.save()
    assert pops.snapshot.mark == 0
    pops.journal.append()
    pops.save()
    assert pops.snapshot.mark == 2
    assert pops.killed().held() == [1, 2, 3, 4]


def test_a_snapshot_is_of_the_moment_of_its_plan() -> None:
    pops = Pops(MemoryDisk())
    pops.send(10)
    pop_ms = pops.pop(5)
    plan = pops.store.plan_checkpoint()
    pops.ack(0, pop_ms)
    pops.store.save(plan)
    assert pops.snapshot.mark == 1
    again = pops.killed()
    assert (again.journal.replayed, again.held()) == (1, [1, 2, 3, 4])


@pytest.mark.parametrize("seed", range(20))
def test_a_snapshot_never_covers_a_record_that_a_crash_of_the_machine_takes_back(seed: int) -> None:
    chance = Random(seed)
    pops = Pops(MemoryDisk())
    pops.send(50)
    pops.save()
    pop_ms = pops.pop(5)
    plan = pops.store.plan_checkpoint()
    pops.ack(0, pop_ms)
    pops.disk.before_step = lambda operation, path: fail_at(path, CHECKPOINT)
    with pytest.raises(StoreError):
        pops.store.save(plan)
    again = Pops(pops.disk.after_machine_crash(chance))
    assert again.journal.loss == ""
    assert again.snapshot.mark == 1, "it was replaced, and the checkpoint was not"
    assert again.held() in ([0, 1, 2, 3, 4], [1, 2, 3, 4])


def fail_at(path: str, failing: str) -> None:
    if path == failing:
        raise StoreError("injected failure")


def test_an_answer_that_could_not_be_journalled_is_covered_by_the_next_one() -> None:
    pops = Pops(MemoryDisk())
    pops.send(10)
    pop_ms = pops.pop(5)
    pops.operations.ack(pops.queue(), 0, pop_ms)
    pops.disk.before_step = lambda operation, path: fail_at(operation, "reserve")
    with contextlib.suppress(StoreError):
        while True:
            pops.store.writer.append("filler", 0, b"x" * 1_000, b"", 1, HOST)
    with pytest.raises(StoreError):
        pops.journal.append(
            [Draft("filler", 0, b"x" * 2_000, b"", 1, HOST)], pops.operations.due(NOW_MS + MINUTE_MS)[0]
        )
    assert pops.killed().held() == [0, 1, 2, 3, 4]
    assert pops.held() == [1, 2, 3, 4], "nothing is gone"
    pops.disk.before_step = lambda operation, path: None
    assert pops.ack(0, pop_ms) is Outcome.REPEATED
    assert pops.killed().held() == [1, 2, 3, 4]


def test_a_message_and_its_copy_in_the_retry_topic_are_never_both_there_after_a_kill() -> None:
    for calls in range(12):
        pops = Pops(MemoryDisk())
        pops.send(3)
        pops.pop(1)
        due, _ = pops.operations.due(NOW_MS + MINUTE_MS)
        pops.disk.crash_after(calls, halfway=True)
        with contextlib.suppress(SimulatedCrash):
            pops.journal.append([Draft("%RETRY%shop_orders", 0, b"copy", b"", 1, HOST)], due)
        pops.disk.crash_after(None)
        again = pops.killed()
        copies = again.store.queues.find("%RETRY%shop_orders", 0)
        assert (copies.next_offset if copies is not None else 0) + len(again.held()) == 1


# Loss


def test_a_lost_snapshot_is_rebuilt_from_the_journal_if_that_is_whole() -> None:
    pops = Pops(MemoryDisk())
    pops.send(10)
    pop_ms = pops.pop(5)
    pops.save()
    pops.ack(1, pop_ms)
    pops.disk.remove(PATH)
    again = pops.killed()
    assert (again.journal.loss, again.held()) == ("", [0, 2, 3, 4])


def test_without_the_beginning_of_the_journal_a_lost_snapshot_is_reported() -> None:
    pops = Pops(MemoryDisk())
    pops.send(10)
    pops.pop(5)
    pops.save()
    while pops.store.log.end < 3 * SMALL.segment:
        append(pops.store, b"x" * 4_000, topic="filler")
    pops.store.flush()
    pops.pop(2)
    pops.save()
    pops.disk.remove(pops.store.log.drop_first_segment())
    for queue in pops.store.queues:
        queue.forget_below(pops.store.log.start)
    pops.save()
    pops.disk.remove(PATH)
    again = pops.killed()
    assert again.journal.skipped == 1
    assert "latermq.pop" in again.journal.loss
    assert again.held() == []
    assert again.snapshot.mark == again.journal.next_record, "what is known now is saved at once"
    assert again.killed().journal.loss == ""


def test_an_older_copy_of_the_log_keeps_what_is_known_of_its_messages() -> None:
    pops = Pops(MemoryDisk())
    pops.send(4)
    pop_ms = pops.pop(2)
    pops.save()
    older = pops.disk.after_process_crash()
    pops.ack(0, pop_ms)
    pops.send(10)
    pops.pop(8)
    pops.save()
    snapshot = pops.disk.read(PATH)
    assert snapshot is not None
    older.replace(PATH, snapshot)
    again = Pops(older)
    assert "ends at 1" in again.journal.loss
    queue = again.queue()
    assert (again.operations.table.next_of(queue), again.held()) == (4, []), "reset to the end of the queue"
    assert again.killed().journal.loss == ""


def test_a_lost_checkpoint_changes_nothing() -> None:
    pops = Pops(MemoryDisk())
    pops.send(10)
    pop_ms = pops.pop(5)
    pops.save()
    pops.ack(1, pop_ms)
    pops.disk.remove(CHECKPOINT)
    again = pops.killed()
    assert (again.journal.loss, again.held()) == ("", [0, 2, 3, 4])


# Retention


def test_retention_keeps_messages_in_flight_and_the_journal_after_the_snapshot() -> None:
    pops = Pops(MemoryDisk())
    pops.send(10)
    queue = pops.store.queues.find("orders", 0)
    assert queue is not None
    pop_ms = pops.pop(2)
    first = queue.entry(0)
    second = queue.entry(1)
    assert first is not None
    assert second is not None
    assert pops.journal.needed_from() == first[0]
    pops.ack(0, pop_ms)
    assert pops.journal.needed_from() == second[0]
    pops.ack(1, pop_ms)
    journal = pops.store.queues.find(POP_TOPIC, 0)
    assert journal is not None
    record = journal.entry(0)
    assert record is not None
    assert pops.journal.needed_from() == record[0]
    pops.save()
    assert pops.journal.needed_from() == pops.store.log.end


# The file


def full_table() -> InFlightTable:
    operations = PopOperations(InFlightTable())
    queue = operations.open_queue("shop", "orders", 0, 0)
    pop_ms = operations.pop(queue, [0, 1, 2, 3], 7, NOW_MS, MINUTE_MS, lease=0x0102030405060708)
    operations.change(queue, 2, pop_ms, NOW_MS, 5_000, is_suspended=True)
    ledger = operations.open_queue("ledger", "bills", 9, 3)
    operations.pop_in_order(ledger, [3, 4], 5, NOW_MS, 0, attempt=0x1112131415161718)
    operations.pop_in_order(ledger, [3, 4], 5, NOW_MS, MINUTE_MS, attempt=5)
    operations.follow_clock(0x2122232425262728, NOW_MS, 0)
    return operations.table


def test_the_file_has_the_bytes_of_the_format_page() -> None:
    data = encode_snapshot(copy_table(full_table(), 4_711))
    expected = bytes.fromhex(
        "4c4d51504f500d0a 00000002 0000000000001267 000001a3185c5001 0000000000000000"
        "2122232425262728 000001a3185c5000 00000002 00000004 00000015"
        "00000000 00000000 0000000000000007 0000000000000000 0000000000000000 0000000000000000 0004 0006"
        "00000001 00000009 0000000000000005 0000000000000000 000001a3185c5001 0000000000000005 0006 0005"
        "00000000 0000000000000000 0000000b 000001a3185c5000 000001a319011b80 0102030405060708 00000000 00"
        "00000000 0000000000000002 00000001 000001a3185c5001 000001a3185c6388 0000000000000000 00000000 05"
        "00000001 0000000000000003 00000001 000001a3185c5001 000001a3185d3a60 0000000000000000 00000001 03"
        "00000001 0000000000000004 00000001 000001a3185c5001 000001a3185d3a60 0000000000000000 00000001 03"
    )
    expected += b"shopordersledgerbills"
    assert data.hex(" ", 4) == (expected + zlib.crc32(expected).to_bytes(4, "big")).hex(" ", 4)


def test_a_file_that_is_read_and_written_again_is_the_same() -> None:
    data = encode_snapshot(copy_table(full_table(), 4_711))
    table = InFlightTable()
    assert decode_snapshot(data, table) == 4_711
    assert encode_snapshot(copy_table(table, 4_711)) == data
    due, unblocked = PopOperations(table).due(NOW_MS + MINUTE_MS)
    assert [one.offsets for one in due] == [[2]]
    assert [queue.topic for queue in unblocked] == ["bills"]


@pytest.mark.parametrize("at", [0, 8, 11, 20, 40, 60, 150, -30, -1])
def test_a_damaged_file_is_rejected(at: int) -> None:
    data = bytearray(encode_snapshot(copy_table(full_table(), 4_711)))
    data[at] ^= 1
    with pytest.raises(CorruptStore, match="is damaged"):
        decode_snapshot(bytes(data), InFlightTable())


@pytest.mark.parametrize("size", [0, 10, 50, 100])
def test_a_truncated_file_is_rejected(size: int) -> None:
    data = encode_snapshot(copy_table(full_table(), 4_711))
    with pytest.raises(CorruptStore, match="is damaged"):
        decode_snapshot(data[:size], InFlightTable())


def test_a_snapshot_of_version_1_is_read() -> None:
    """Earlier versions wrote no clock, so steps before the start are not known."""
    pops = Pops(MemoryDisk())
    pops.send(3)
    pops.pop(3)
    pops.operations.follow_clock(5, 6, 0)
    data = encode_snapshot(copy_table(pops.operations.table, 7))
    old = data[:8] + (1).to_bytes(4, "big") + data[12:36] + data[52:-4]
    old += zlib.crc32(old).to_bytes(4, "big")
    table = InFlightTable()
    assert decode_snapshot(old, table) == 7
    assert (table.held, table.boot, table.clock_offset_ms) == (3, 0, 0)
    table = InFlightTable()
    decode_snapshot(data, table)
    assert (table.held, table.boot, table.clock_offset_ms) == (3, 5, 6)
