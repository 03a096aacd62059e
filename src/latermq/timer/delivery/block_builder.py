"""Turns waiting records into the records they become when they are due, as blocks that wait in the stage."""

from typing import NamedTuple

import numpy as np

from latermq.arrays import Bools, Ints
from latermq.message.entry_id import FLAG, LEVEL_SHIFT
from latermq.message.properties import REAL_QUEUE_ID, REAL_TOPIC, find_property
from latermq.message.record import (
    BORN_HOST_AT,
    MAGIC,
    MAGIC_LONG_TOPIC,
    MAX_SHORT_TOPIC_BYTES,
    MIN_RECORD_BYTES,
    QUEUE_ID_AT,
    SYSFLAG_AT,
    SYSFLAG_BORN_V6,
    SYSFLAG_STORE_V6,
)
from latermq.store.block import Block
from latermq.store.dispatch import hash_keys, queue_tags_code

_REAL_TOPIC = REAL_TOPIC.encode()
_REAL_QUEUE_ID = REAL_QUEUE_ID.encode()
_TOPIC_NAME = b"\x02" + _REAL_TOPIC + b"\x01"
_QUEUE_ID_NAME = b"\x02" + _REAL_QUEUE_ID + b"\x01"


class Built(NamedTuple):
    """What became of some waiting records."""

    block: Block | None
    rows: list[int]  # which of them are in the block, in order
    unusable: list[int]  # and which name no real topic and queue


def build(level: int, entries: Ints, raw: bytes, sizes: Ints) -> Built:
    """Build what replaces these entries of a level, whose records lie end to end in `raw`.

    Fields are read and written in all records at once; only what has no fixed place in a record is looked for one by
    one: 3.7 µs a record with its keys' hashes, instead of 8.
    """
    parts = _layout_all(raw, sizes)
    pieces: list[bytes] = []
    properties: list[bytes] = []
    places = _Places()
    number_of: list[int] = []
    rows: list[int] = []
    unusable: list[int] = []
    spans = (parts.whole, parts.starts, parts.body_ends, parts.tails_at, parts.ends)
    for row, (whole, start, body_end, tail_at, end) in enumerate(zip(*(s.tolist() for s in spans), strict=True)):
        tail = raw[tail_at:end] if whole else b""
        number = places.number_of(tail)
        if number is None:
            unusable.append(row)
            continue
        pieces += (raw[start:body_end], places.topic_fields[number], tail)
        properties.append(tail[2:])
        number_of.append(number)
        rows.append(row)
    if not rows:
        return Built(None, rows, unusable)
    queue_of = np.array(number_of, np.intp)
    data = bytearray().join(pieces)
    field_sizes = np.array(list(map(len, places.topic_fields)), np.int64)
    kept_sizes = parts.body_ends - parts.starts + parts.ends - parts.tails_at
    new_sizes = kept_sizes[rows] + field_sizes[queue_of]
    starts = np.cumsum(new_sizes) - new_sizes
    words = np.ndarray((len(data) - 3,), ">u4", data, strides=(1,))
    words[starts] = new_sizes
    words[starts + 4] = np.where(field_sizes > MAX_SHORT_TOPIC_BYTES + 1, MAGIC_LONG_TOPIC, MAGIC)[queue_of]
    words[starts + QUEUE_ID_AT] = np.array([queue_id for _, queue_id in places.queues])[queue_of]
    longs = np.ndarray((len(data) - 7,), ">i8", data, strides=(1,))
    longs[starts + parts.prepared_at[rows]] = FLAG | level << LEVEL_SHIFT | entries[rows]
    key_hashes, key_rows = hash_keys([places.queues[number][0] for number in number_of], properties)
    block = Block(
        data=data,
        sizes=new_sizes,
        store_timestamp_at=parts.store_timestamp_at[rows],
        tags=_tags(raw, properties),
        queues=places.queues,
        queue_of=queue_of,
        key_hashes=key_hashes,
        key_rows=key_rows,
        level=level,
        entries=entries[rows],
    )
    return Built(block, rows, unusable)


class _Places:
    """The real topics and queues that records name, numbered as they come."""

    def __init__(self) -> None:
        self.queues: list[tuple[str, int]] = []
        self.topic_fields: list[bytes] = []  # topics with their length before them, as a record holds them
        self._numbers: dict[bytes, int] = {}

    def number_of(self, tail: bytes) -> int | None:
        """The place in these properties, before which their length stands in two bytes; None where there is none."""
        # Names are there once, and admission writes the topic first: the bytes from one to the other decide.
        at = tail.rfind(_TOPIC_NAME)
        key = tail[at : tail.find(b"\x02", tail.find(_QUEUE_ID_NAME, at) + len(_QUEUE_ID_NAME))]
        number = self._numbers.get(key)
        if number is None:
            number = self._add(tail[2:])
            if number is not None and key.startswith(_TOPIC_NAME) and _QUEUE_ID_NAME in key:
                self._numbers[key] = number
        return number

    def _add(self, properties: bytes) -> int | None:
        topic = find_property(properties, _REAL_TOPIC)
        queue_id = find_property(properties, _REAL_QUEUE_ID)
        if not topic or not queue_id or not queue_id.isdigit() or len(queue_id) > 9:
            return None
        queue = (topic.decode(errors="replace"), int(queue_id))
        if queue in self.queues:
            return self.queues.index(queue)
        self.queues.append(queue)
        length_bytes = 1 if len(topic) <= MAX_SHORT_TOPIC_BYTES else 2
        self.topic_fields.append(len(topic).to_bytes(length_bytes, "big") + topic)
        return len(self.queues) - 1


def _tags(raw: bytes, properties: list[bytes]) -> Ints:
    if b"TAGS\x01" not in raw:
        return np.zeros(len(properties), np.int64)
    return np.fromiter(map(queue_tags_code, properties), np.int64, len(properties))


class _Layouts(NamedTuple):
    """Where the parts of many records lie; meaningless where a record is not `whole`."""

    whole: Bools
    starts: Ints
    store_timestamp_at: Ints  # from the record's start
    prepared_at: Ints  # from the record's start
    body_ends: Ints
    tails_at: Ints  # the properties' length, and then the properties
    ends: Ints


def _layout_all(raw: bytes, sizes: Ints) -> _Layouts:
    """What `layout` finds for one record, for many that lie end to end; the waiting topic's name is a short one."""
    ends = np.cumsum(sizes)
    starts = ends - sizes
    # Room behind the last record: a damaged one may point there, and is then found to be damaged.
    padded = raw + bytes(MIN_RECORD_BYTES)
    last = len(padded) - 8
    octets = np.frombuffer(padded, np.uint8)
    shorts = np.ndarray((len(padded) - 1,), ">i2", padded, strides=(1,))
    words = np.ndarray((len(padded) - 3,), ">u4", padded, strides=(1,))
    sysflags = words[starts + SYSFLAG_AT]
    store_timestamp_at = BORN_HOST_AT + np.where(sysflags & SYSFLAG_BORN_V6, 20, 8)
    store_host_bytes = np.where(sysflags & SYSFLAG_STORE_V6, 20, 8)
    prepared_at = store_timestamp_at + 8 + store_host_bytes + 4
    body_at = starts + prepared_at + 8 + 4
    body_ends = body_at + words[np.minimum(body_at - 4, last)].astype(np.int64)
    tails_at = body_ends + 1 + octets[np.minimum(body_ends, last)]
    properties_bytes = shorts[np.minimum(tails_at, last)].astype(np.int64)
    # Each part lies behind the one before: where the last ends with the record, all lie inside it.
    fits = (properties_bytes >= 0) & (tails_at + 2 + properties_bytes == ends)
    whole = fits & (words[starts] == sizes) & (words[starts + 4] == MAGIC) & (sizes >= MIN_RECORD_BYTES)
    return _Layouts(whole, starts, store_timestamp_at, prepared_at, body_ends, tails_at, ends)
