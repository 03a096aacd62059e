"""Conversion of waiting records into the records that are delivered, as blocks for the stage."""

from typing import NamedTuple

import numpy as np

from latermq.arrays import Ints
from latermq.message.entry_id import FLAG, LEVEL_SHIFT
from latermq.message.properties import REAL_QUEUE_ID, REAL_TOPIC, find_property
from latermq.message.record_fields import MIN_RECORD_BYTES, PROPERTIES_LENGTH_BYTES, SYSFLAG_ABRIDGED, topic_field
from latermq.message.record_layouts import Numbers, lay_out
from latermq.message.record_writer import (
    set_prepared,
    set_properties_lengths,
    set_queue_ids,
    set_sysflags,
    set_topics,
)
from latermq.message.stamp import Stamp
from latermq.store.block import Block
from latermq.store.dispatch import hash_keys, queue_tags_code

_REAL_TOPIC = REAL_TOPIC.encode()
_REAL_QUEUE_ID = REAL_QUEUE_ID.encode()
_TOPIC_NAME = b"\x02" + _REAL_TOPIC + b"\x01"
_QUEUE_ID_NAME = b"\x02" + _REAL_QUEUE_ID + b"\x01"


class Built(NamedTuple):
    """The result of building some waiting records."""

    block: Block | None
    rows: list[int]  # input rows in the block, in order
    unusable: list[int]  # input rows that name no real topic and queue


def build(level: int, entries: Ints, raw: bytes, sizes: Ints, dues: Ints, stamp: Stamp) -> Built:
    """Build the records that replace these entries of a level. `raw` holds the entries' records end to end.

    Timers whose records are abridged get the properties that these leave out.

    Fields are read and written in all records at once. Only fields without a fixed position are searched record by
    record. That takes 3.7 µs per record including the hashes of its keys, instead of 8.
    """
    ends = np.cumsum(sizes)
    starts = ends - sizes
    # Padding after the last record: a damaged record may be shorter than the minimum size.
    padded = raw + bytes(MIN_RECORD_BYTES)
    read = Numbers(padded, len(padded))
    parts = lay_out(read, starts, ends)
    whole = parts.fits & (read.u32(starts) == sizes)
    tails_at = parts.properties_at - PROPERTIES_LENGTH_BYTES
    left_out = stamp.left_out(dues, parts.sysflags, ends - parts.properties_at)
    pieces: list[bytes] = []
    properties: list[bytes] = []
    places = _Places()
    number_of: list[int] = []
    rows: list[int] = []
    unusable: list[int] = []
    spans = (whole, starts, parts.bodies_end, tails_at, ends)
    for row, (is_whole, start, body_end, tail_at, end) in enumerate(zip(*(s.tolist() for s in spans), strict=True)):
        tail = raw[tail_at:end] if is_whole else b""
        number = places.number_of(tail)
        if number is None:
            unusable.append(row)
            continue
        pieces += (raw[start:body_end], places.topic_fields[number], tail)
        if left_out is not None:
            pieces.append(left_out[row])
        properties.append(tail[PROPERTIES_LENGTH_BYTES:])
        number_of.append(number)
        rows.append(row)
    if not rows:
        return Built(None, rows, unusable)
    queue_of = np.array(number_of, np.intp)
    data = bytearray().join(pieces)
    field_sizes = np.array(list(map(len, places.topic_fields)), np.int64)
    kept_sizes = parts.bodies_end - starts + ends - tails_at
    new_sizes = kept_sizes[rows] + field_sizes[queue_of]
    if left_out is not None:
        added = np.fromiter(map(len, left_out), np.int64, len(left_out))[rows]
        new_sizes += added
    new_starts = np.cumsum(new_sizes) - new_sizes
    set_sysflags(data, new_starts, parts.sysflags[rows] & ~SYSFLAG_ABRIDGED)
    if left_out is not None:
        tails = (ends - tails_at)[rows] + added
        set_properties_lengths(data, new_starts + new_sizes - tails, tails - PROPERTIES_LENGTH_BYTES)
    set_topics(data, new_starts, new_sizes, np.array(places.magics)[queue_of])
    set_queue_ids(data, new_starts, np.array([queue_id for _, queue_id in places.queues])[queue_of])
    prepared_at = (parts.prepared_at - starts)[rows]
    set_prepared(data, new_starts + prepared_at, FLAG | level << LEVEL_SHIFT | entries[rows])
    key_hashes, key_rows = hash_keys([places.queues[number][0] for number in number_of], properties)
    block = Block(
        data=data,
        sizes=new_sizes,
        store_timestamp_at=(parts.store_timestamps_at - starts)[rows],
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
    """The real topics and queues that records name, numbered in order of appearance."""

    def __init__(self) -> None:
        self.queues: list[tuple[str, int]] = []
        self.topic_fields: list[bytes] = []  # length-prefixed topics, as in a record
        self.magics: list[int] = []  # the magic of records with this topic
        self._numbers: dict[bytes, int] = {}

    def number_of(self, tail: bytes) -> int | None:
        """Return the number of the queue named in these properties, which follow a two-byte length; None if none is."""
        # Each name occurs once, and admission writes the topic first. So the bytes between them identify the queue.
        at = tail.rfind(_TOPIC_NAME)
        key = tail[at : tail.find(b"\x02", tail.find(_QUEUE_ID_NAME, at) + len(_QUEUE_ID_NAME))]
        number = self._numbers.get(key)
        if number is None:
            number = self._add(tail[PROPERTIES_LENGTH_BYTES:])
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
        magic, field = topic_field(topic)
        self.magics.append(magic)
        self.topic_fields.append(field)
        return len(self.queues) - 1


def _tags(raw: bytes, properties: list[bytes]) -> Ints:
    if b"TAGS\x01" not in raw:
        return np.zeros(len(properties), np.int64)
    return np.fromiter(map(queue_tags_code, properties), np.int64, len(properties))
