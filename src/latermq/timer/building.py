"""Turns waiting records into the records they become when they are due, as blocks that wait in the stage."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

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
from latermq.store.block import Block, Ints
from latermq.store.dispatch import hash_keys, queue_tags_code

_REAL_TOPIC = REAL_TOPIC.encode()
_REAL_QUEUE_ID = REAL_QUEUE_ID.encode()
_TOPIC_NAME = b"\x02" + _REAL_TOPIC + b"\x01"
_QUEUE_ID_NAME = b"\x02" + _REAL_QUEUE_ID + b"\x01"
_MAX_PLACES = 100_000


class Place(NamedTuple):
    """A real topic and queue."""

    topic: str
    queue_id: int
    topic_field: bytes  # the topic with its length before it, as a record holds it
    magic: int


class Built(NamedTuple):
    """What became of some waiting records."""

    block: Block | None
    rows: list[int]  # which of them are in the block, in order
    unusable: list[int]  # and which name no real topic and queue


class BlockBuilder:
    """Builds blocks. It remembers the places that records name, since they are few."""

    def __init__(self) -> None:
        self._places: dict[bytes, Place] = {}

    def build(self, level: int, entries: Ints, raw: bytes, sizes: Ints) -> Built:
        """Build what replaces these entries of a level, whose records lie end to end in `raw`.

        Fields are read and written in all records at once; only what has no fixed place in a record is looked for one
        by one: 2.5 µs a record with its keys' hashes, instead of 6.
        """
        parts = _layout_all(raw, sizes)
        pieces: list[bytes] = []
        properties: list[bytes] = []
        numbers: dict[Place, int] = {}
        number_of: list[int] = []
        rows: list[int] = []
        unusable: list[int] = []
        spans = zip(*(column.tolist() for column in (parts.whole, parts.starts, parts.body_ends, parts.tails_at, parts.ends)), strict=True)
        for row, (whole, start, body_end, tail_at, end) in enumerate(spans):
            tail = raw[tail_at:end] if whole else b""
            place = self._place(tail) if whole else None
            if place is None:
                unusable.append(row)
                continue
            pieces += (raw[start:body_end], place.topic_field, tail)
            properties.append(tail[2:])
            number_of.append(numbers.setdefault(place, len(numbers)))
            rows.append(row)
        if not rows:
            return Built(None, rows, unusable)
        places = list(numbers)
        queue_of = np.array(number_of, np.intp)
        data = bytearray().join(pieces)
        head_sizes = (parts.body_ends - parts.starts)[rows]
        tail_sizes = (parts.ends - parts.tails_at)[rows]
        new_sizes = head_sizes + _column(len(place.topic_field) for place in places)[queue_of] + tail_sizes
        starts = np.cumsum(new_sizes) - new_sizes
        words = np.ndarray((len(data) - 3,), ">u4", data, strides=(1,))
        words[starts] = new_sizes
        words[starts + 4] = _column(place.magic for place in places)[queue_of]
        words[starts + QUEUE_ID_AT] = _column(place.queue_id for place in places)[queue_of]
        longs = np.ndarray((len(data) - 7,), ">i8", data, strides=(1,))
        longs[starts + parts.prepared_at[rows]] = FLAG | level << LEVEL_SHIFT | entries[rows]
        block = Block(
            data,
            new_sizes,
            parts.store_timestamp_at[rows],
            _tags(raw, properties),
            [(place.topic, place.queue_id) for place in places],
            queue_of,
            *hash_keys([places[number].topic for number in number_of], properties),
            level,
            entries[rows],
        )
        return Built(block, rows, unusable)

    def _place(self, tail: bytes) -> Place | None:
        """The real topic and queue that these properties name, with the two bytes of their length before them."""
        at = tail.rfind(_TOPIC_NAME)
        queue_id_at = tail.find(_QUEUE_ID_NAME, at)
        if at >= 0 and queue_id_at >= 0:
            # As admission writes it, topic first. Names are there once, so these bytes alone decide.
            key = tail[at : tail.find(b"\x02", queue_id_at + len(_QUEUE_ID_NAME))]
            place = self._places.get(key)
            if place is None:
                place = _parse_place(key)
                if place is not None and len(self._places) < _MAX_PLACES:
                    self._places[key] = place
            return place
        return _parse_place(tail[2:])


def _parse_place(properties: bytes) -> Place | None:
    topic = find_property(properties, _REAL_TOPIC)
    queue_id = find_property(properties, _REAL_QUEUE_ID)
    if not topic or not queue_id or not queue_id.isdigit() or len(queue_id) > 9:
        return None
    if len(topic) <= MAX_SHORT_TOPIC_BYTES:
        return Place(topic.decode(), int(queue_id), bytes((len(topic),)) + topic, MAGIC)
    return Place(topic.decode(), int(queue_id), len(topic).to_bytes(2, "big") + topic, MAGIC_LONG_TOPIC)


def _tags(raw: bytes, properties: list[bytes]) -> Ints:
    if b"TAGS\x01" not in raw:
        return np.zeros(len(properties), np.int64)
    return np.fromiter(map(queue_tags_code, properties), np.int64, len(properties))


def _column(values: object) -> Ints:
    return np.array(list(values), np.int64)  # type: ignore[call-overload]


class _Layouts(NamedTuple):
    """Where the parts of many records lie; meaningless where a record is not `whole`."""

    whole: npt.NDArray[np.bool_]
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
