"""Messages in flight without requests: CPU time of pops and acknowledgements with their journal, and its bytes."""

import time
import tracemalloc
from pathlib import Path

from latermq.clock import SystemClock
from latermq.config import StoreConfig
from latermq.group.pop.operations import Limits, Outcome, PopOperations
from latermq.group.pop.pop_journal import PopJournal
from latermq.group.pop.snapshot import PopSnapshot
from latermq.group.pop.snapshot_file import copy_table, encode_snapshot
from latermq.group.pop.table import InFlightTable
from latermq.message.ids import pack_host
from latermq.store.files.disk import FileDisk
from latermq.store.message_store import MessageStore
from tests.bench.load import Figures

_HOST = pack_host("127.0.0.1", 40_000)
QUEUES = 8
ACKS_PER_TURN = 64  # as the sends that one read of a busy socket contains
POP_SIZES = (32, 1)
_INVISIBLE_MS = 60_000


def measure_pop_state(folder: Path, count: int) -> Figures:
    """Pop all messages, copy the table, and acknowledge the messages one by one, in batches of 32 and one by one."""
    figures: Figures = {}
    for size in POP_SIZES:
        figures |= {
            f"pops of {size}: {name}": value for name, value in _measure(folder / str(size), count, size).items()
        }
    return figures


def _measure(folder: Path, count: int, size: int) -> Figures:
    clock, disk, table = SystemClock(), FileDisk(folder), InFlightTable()
    snapshot = PopSnapshot(disk, table)
    store = MessageStore(disk, StoreConfig(), clock, store_host=_HOST, new_store_id="b" * 32, participants=[snapshot])
    operations = PopOperations(table, Limits(count, count))
    journal = PopJournal(store, operations, snapshot, born_host=_HOST)
    queues = [operations.open_queue("bench-group", "bench-pop", queue_id, 0) for queue_id in range(QUEUES)]
    journal.append()
    store.prepare_ahead()
    pops = []
    bytes_before = journal.bytes
    started_ns = time.thread_time_ns()
    for number in range(count // size):
        queue = queues[number % QUEUES]
        first = table.next_of(queue)
        now_ms = clock.now_ms()
        pop_ms = operations.pop(queue, range(first, first + size), first + size, now_ms, _INVISIBLE_MS)
        journal.append(now_ms=now_ms)
        pops.append((queue, first, pop_ms))
    popped_ns = time.thread_time_ns()
    handles = [(queue, first + number, pop_ms) for queue, first, pop_ms in pops for number in range(size)]
    popped_bytes = journal.bytes - bytes_before
    copy_started_ns = time.thread_time_ns()
    image = copy_table(table, 0)
    copied_ns = time.thread_time_ns() - copy_started_ns
    acked = 0
    ack_started_ns = time.thread_time_ns()
    for start in range(0, len(handles), ACKS_PER_TURN):
        for queue, offset, pop_ms in handles[start : start + ACKS_PER_TURN]:
            acked += operations.ack(queue, offset, pop_ms) is Outcome.DONE
        journal.append(now_ms=clock.now_ms())
    acked_ns = time.thread_time_ns() - ack_started_ns
    figures = {
        "pop (µs/message)": (popped_ns - started_ns) / 1000 / count,
        "acknowledgement (µs/message)": acked_ns / 1000 / count,
        "journal, pop (bytes/message)": popped_bytes / count,
        "journal, acknowledgement (bytes/message)": (journal.bytes - bytes_before - popped_bytes) / count,
        "copy for a snapshot (ms)": copied_ns / 1e6,
        "snapshot (bytes/message)": len(encode_snapshot(image)) / count,
        "memory (bytes/message)": _memory(count, size),
        "acknowledged": acked,
    }
    store.close()
    return figures


def _memory(count: int, size: int) -> float:
    """Memory of the table alone."""
    operations = PopOperations(InFlightTable(), Limits(count, count))
    queue = operations.open_queue("bench-group", "bench-pop", 0, 0)
    tracemalloc.start()
    try:
        for first in range(0, count // size * size, size):
            operations.pop(queue, range(first, first + size), first + size, 1_800_000_000_000 + first, _INVISIBLE_MS)
            operations.journal.clear()
        return tracemalloc.get_traced_memory()[0] / count
    finally:
        tracemalloc.stop()
