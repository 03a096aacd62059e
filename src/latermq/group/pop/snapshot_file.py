"""The file `latermq.pop`: the in-flight table at one position of its journal (docs/formats/pop-journal.md)."""

import zlib
from struct import Struct
from typing import NamedTuple

import numpy as np

from latermq.arrays import Structs
from latermq.errors import CorruptStore
from latermq.group.pop.popped_queue import PoppedQueue
from latermq.group.pop.rows import IN_ORDER, MAX_ROWS, SINGLE
from latermq.group.pop.table import MAX_QUEUES, MAX_VISIBLE_MS, InFlightTable

PATH = "latermq.pop"
MAGIC = b"LMQPOP\r\n"
VERSION = 2
# Magic, version, mark, last pop time, fence, boot, clock offset, queues, rows, bytes of names
_HEAD = Struct(">8sIqqqQqIII")
_HEAD_1 = Struct(">8sIqqqIII")  # of version 1, without the clock
_CRC = Struct(">I")
_QUEUE = np.dtype([
    ("number", ">u4"), ("queue_id", ">u4"), ("next", ">i8"), ("fence_ms", ">i8"), ("order_pop_ms", ">i8"),
    ("attempt", ">u8"), ("group_bytes", ">u2"), ("topic_bytes", ">u2"),
])  # fmt: skip
_ROW = np.dtype([
    ("queue", ">u4"), ("first", ">i8"), ("mask", ">u4"), ("pop_ms", ">i8"), ("visible_ms", ">i8"), ("lease", ">u8"),
    ("count", ">u4"), ("flags", "u1"),
])  # fmt: skip
_ROW_COLUMNS = {
    "queue": "u4", "first": "i8", "mask": "u4", "pop_ms": "i8", "visible_ms": "i8", "lease": "u8", "count": "u4",
    "flags": "u1",
}  # fmt: skip
_QUEUE_COLUMNS = {"next": "i8", "fence_ms": "i8", "order_pop_ms": "i8", "attempt": "u8"}


class TableImage(NamedTuple):
    """A copy of a table. It is made in the thread that changes the table, and encoded in another one."""

    mark: int
    last_pop_ms: int
    fence_ms: int
    boot: int
    clock_offset_ms: int
    queues: list[PoppedQueue]  # only their names and numbers, which never change
    positions: dict[str, bytes]
    rows: dict[str, bytes]


def copy_table(table: InFlightTable, mark: int) -> TableImage:
    """Copy a table at a position of its journal. A table with 200,000 rows takes 2 ms."""
    return TableImage(
        mark,
        table.last_pop_ms,
        table.fence_ms,
        table.boot,
        table.clock_offset_ms,
        list(table.queues.values()),
        {name: getattr(table.positions, name).tobytes() for name in _QUEUE_COLUMNS},
        {name: getattr(table.rows, name).tobytes() for name in _ROW_COLUMNS},
    )


def encode_snapshot(image: TableImage) -> bytes:
    """Encode a copy as a file."""
    names = [(queue.group.encode(), queue.topic.encode()) for queue in image.queues]
    numbers = np.array([queue.number for queue in image.queues], np.int64)
    queues = np.zeros(len(numbers), _QUEUE)
    queues["number"] = numbers
    queues["queue_id"] = [queue.queue_id for queue in image.queues]
    queues["group_bytes"] = [len(group) for group, _ in names]
    queues["topic_bytes"] = [len(topic) for _, topic in names]
    for name, kind in _QUEUE_COLUMNS.items():
        queues[name] = np.frombuffer(image.positions[name], kind)[numbers]
    live = np.flatnonzero(np.frombuffer(image.rows["mask"], _ROW_COLUMNS["mask"]))
    rows = np.zeros(len(live), _ROW)
    for name, kind in _ROW_COLUMNS.items():
        rows[name] = np.frombuffer(image.rows[name], kind)[live]
    texts = b"".join([group + topic for group, topic in names])
    counts = (len(queues), len(rows), len(texts))
    times = image.last_pop_ms, image.fence_ms, image.boot, image.clock_offset_ms
    head = _HEAD.pack(MAGIC, VERSION, image.mark, *times, *counts)
    data = b"".join([head, queues.tobytes(), rows.tobytes(), texts])
    return data + _CRC.pack(zlib.crc32(data))


def decode_snapshot(data: bytes, table: InFlightTable) -> int:
    """Fill an empty table, and return the mark of the file. Raises CorruptStore if the file is not valid."""
    if len(data) < _HEAD_1.size + _CRC.size or not data.startswith(MAGIC):
        raise _damaged("it has no head")
    version = int.from_bytes(data[len(MAGIC) : len(MAGIC) + 4], "big")
    if version not in (1, VERSION):
        raise _damaged(f"it has version {version}, this broker reads 1 and {VERSION}")
    head = _HEAD if version == VERSION else _HEAD_1
    if len(data) < head.size + _CRC.size:
        raise _damaged("it has no head")
    _, _, mark, last_pop_ms, fence_ms, *clock, queue_count, row_count, text_bytes = head.unpack_from(data)
    rows_at = head.size + queue_count * _QUEUE.itemsize
    texts_at = rows_at + row_count * _ROW.itemsize
    if texts_at + text_bytes + _CRC.size != len(data):
        raise _damaged(f"it has {len(data)} bytes")
    if zlib.crc32(memoryview(data)[: -_CRC.size]) != _CRC.unpack_from(data, len(data) - _CRC.size)[0]:
        raise _damaged("its checksum is wrong")
    queues = np.frombuffer(data, _QUEUE, queue_count, head.size)
    rows = np.frombuffer(data, _ROW, row_count, rows_at)
    _check(queues, rows)
    table.last_pop_ms = last_pop_ms
    _open_queues(table, queues, data[texts_at : texts_at + text_bytes])
    table.fence_ms = fence_ms
    if clock:
        table.boot, table.clock_offset_ms = clock
    _add_rows(table, rows)
    return int(mark)


def _check(queues: Structs, rows: Structs) -> None:
    numbers = queues["number"]
    if len(np.unique(numbers)) < len(numbers) or not np.isin(rows["queue"], numbers).all():
        raise _damaged("its queue numbers are inconsistent")
    if len(rows) > MAX_ROWS or (len(numbers) and int(numbers.max()) >= MAX_QUEUES):
        raise _damaged("it has too many rows")
    if not rows["mask"].all() or (rows["visible_ms"] > MAX_VISIBLE_MS).any():
        raise _damaged("it has invalid rows")


def _open_queues(table: InFlightTable, queues: Structs, texts: bytes) -> None:
    at = 0
    positions = table.positions
    for number, queue_id, next_offset, fence, order_pop, attempt, group_bytes, topic_bytes in queues.tolist():
        topic_at = at + group_bytes
        group, at = texts[at:topic_at].decode(), topic_at + topic_bytes
        table.open_queue(number, group, texts[topic_at:at].decode(), queue_id, next_offset)
        positions.fence_ms[number], positions.order_pop_ms[number] = fence, order_pop
        positions.attempt[number] = attempt


def _add_rows(table: InFlightTable, rows: Structs) -> None:
    """Add rows to their queues, sorted by offset. This takes about 1 µs per row."""
    order = np.lexsort((rows["first"], rows["queue"]))
    for number, first, mask, pop_ms, visible_ms, lease, count, flags in rows[order].tolist():
        queue = table.by_number[number]
        row = table.rows.add(number, first, mask, pop_ms, visible_ms, lease, flags)
        table.rows.count[row] = count
        if flags & SINGLE:
            queue.add_single(first, row)
            queue.ordered += bool(flags & IN_ORDER)
        else:
            queue.add_batch(first, row)
        held = mask.bit_count()
        queue.held += held
        table.held += held
        if lease:
            table.leases.add(lease, row)
    table.rebuild_heap()


def _damaged(what: str) -> CorruptStore:
    return CorruptStore(
        f"{PATH} is damaged: {what}",
        hint="Restore it from a copy, or remove it: then messages that are popped and not consumed come again",
    )
