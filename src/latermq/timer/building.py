"""Turns waiting records into the records they become when they are due, as blocks that wait in the stage."""

import struct

import numpy as np

from latermq.message.entry_id import encode_entry_id
from latermq.message.properties import REAL_QUEUE_ID, REAL_TOPIC, find_property
from latermq.message.record import (
    HEAD,
    MAGIC,
    MAGIC_LONG_TOPIC,
    MAX_SHORT_TOPIC_BYTES,
    PREPARED_TRANSACTION_AT,
    QUEUE_ID_AT,
    layout,
)
from latermq.store.block import Block, Ints
from latermq.store.dispatch import queue_tags_code

_SIZE_AND_MAGIC = struct.Struct(">II")
_U32 = struct.Struct(">I")
_U16 = struct.Struct(">H")
_LONG = struct.Struct(">q")
_REAL_TOPIC = REAL_TOPIC.encode()
_REAL_QUEUE_ID = REAL_QUEUE_ID.encode()


class BlockBuilder:
    """Collects records for one block."""

    def __init__(self, level: int) -> None:
        self._level = level
        self._records: list[bytearray] = []
        self._timestamps_at: list[int] = []
        self._tags: list[int] = []
        self._queues: dict[tuple[str, int], int] = {}
        self._queue_of: list[int] = []
        self._keys: list[tuple[str, bytes]] = []
        self._entries: list[int] = []
        self._rows: list[int] = []
        self.size = 0

    def add(self, row: int, entry: int, record: bytes) -> bool:
        """Build the record that replaces this one; False where it names no real topic and queue."""
        parts = layout(record, 0, len(record))
        if parts is None:
            return False
        properties = record[parts.properties_at :]
        topic_bytes = find_property(properties, _REAL_TOPIC)
        queue_id = find_property(properties, _REAL_QUEUE_ID)
        if not topic_bytes or not queue_id or not queue_id.isdigit() or len(queue_id) > 9:
            return False
        if len(topic_bytes) <= MAX_SHORT_TOPIC_BYTES:
            magic, topic_length = MAGIC, bytes((len(topic_bytes),))
        else:
            magic, topic_length = MAGIC_LONG_TOPIC, _U16.pack(len(topic_bytes))
        tail = b"".join((topic_length, topic_bytes, _U16.pack(len(properties)), properties))
        body_end = parts.body_at + parts.body_bytes
        built = bytearray(record[:body_end])
        size = body_end + len(tail)
        _SIZE_AND_MAGIC.pack_into(built, 0, size, magic)
        _U32.pack_into(built, QUEUE_ID_AT, int(queue_id))
        # Hosts in IPv6 move the field; it always ends where the body's length begins.
        prepared_at = parts.body_at - (HEAD.size - PREPARED_TRANSACTION_AT)
        _LONG.pack_into(built, prepared_at, encode_entry_id(self._level, entry))
        built += tail
        topic = topic_bytes.decode()
        key = (topic, int(queue_id))
        self._records.append(built)
        self._timestamps_at.append(parts.store_timestamp_at)
        self._tags.append(queue_tags_code(properties))
        self._queue_of.append(self._queues.setdefault(key, len(self._queues)))
        self._keys.append((topic, properties))
        self._entries.append(entry)
        self._rows.append(row)
        self.size += size
        return True

    def block(self) -> Block:
        """The block of everything added."""
        return Block(
            b"".join(self._records),
            np.fromiter(map(len, self._records), np.int64, len(self._records)),
            np.array(self._timestamps_at, np.int64),
            np.array(self._tags, np.int64),
            list(self._queues),
            np.array(self._queue_of, np.intp),
            self._keys,
            self._level,
            np.array(self._entries, np.int64),
        )

    @property
    def rows(self) -> Ints:
        """Which of the rows that were offered are in the block."""
        return np.array(self._rows, np.int64)

    def __len__(self) -> int:
        return len(self._records)
