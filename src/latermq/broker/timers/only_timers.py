"""Names with one record in the log, a pending timer: looked up in the index and read from the log all together.

Nearly every name of a bulk job is one. Its history is that record, so it needs no look-up of its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np

from latermq.arrays import Bools, Indices, Ints
from latermq.message.names import TIMER_DEAD_LETTER_TOPIC, TIMER_TOPIC
from latermq.message.properties import DUE_MS, MOVE, REAL_TOPIC, TIMER_DELETE_KEY, TIMER_ID, UNIQUE_KEY
from latermq.message.property_spans import PADDING_BYTES, WORD_BYTES, Properties, Spans, numbers
from latermq.message.record_fields import MIN_RECORD_BYTES, PHYSICAL_OFFSET_AT, QUEUE_OFFSET_AT
from latermq.message.record_layouts import Numbers, lay_out
from latermq.message.timer_code import MAX_DUE_DIGITS, MAX_ENTRY_DIGITS
from latermq.message.timer_name import SEPARATOR
from latermq.model.rows import Column
from latermq.store.dispatch import HashedKeys
from latermq.store.log_reader import LogReader
from latermq.timer.directory import Entry
from latermq.timer.far.far_names import FarNames

# Of a record that is read together with others. Larger ones are rare, and copying many of them would take long.
MAX_RECORD_BYTES = 64 << 10
_TIMER_TOPIC, _SEPARATOR = TIMER_TOPIC.encode(), SEPARATOR.encode()


class NameColumns(NamedTuple):
    """Names of timers: row n of each column belongs to the same name."""

    topics: Sequence[str]
    topic_of: Indices
    unique_keys: Column

    def rows(self, start: int, end: int) -> "NameColumns":
        """Return the rows [start, end)."""
        offsets = self.unique_keys.offsets[start : end + 1]
        data = self.unique_keys.data[int(offsets[0]) : int(offsets[-1])]
        return NameColumns(self.topics, self.topic_of[start:end], Column(data, offsets - offsets[0]))


@dataclass(frozen=True, slots=True)
class OnlyTimers:
    """The only timers of their names, as columns."""

    rows: Indices  # of the names
    topic_of: Indices
    entries: Ints
    timer_ids: Ints
    dues: Ints
    physical_offsets: Ints
    sizes: Ints
    cancel_hashes: Ints  # under which the key index will find a cancel of the name

    def where(self, chosen: Bools | Indices | slice) -> "OnlyTimers":
        """Return some of these timers."""
        return OnlyTimers(*(getattr(self, column.name)[chosen] for column in fields(self)))

    def entry(self, index: int, topics: Sequence[str]) -> Entry:
        """Return one of these timers."""
        columns = (self.entries, self.timer_ids, self.dues, self.physical_offsets, self.sizes)
        number, timer_id, due_ms, offset, size = (int(column[index]) for column in columns)
        return Entry(number, timer_id, due_ms, topics[self.topic_of[index]], offset, size)

    def __len__(self) -> int:
        return len(self.rows)


def find_only_timers(reader: LogReader, far_names: FarNames, names: NameColumns) -> OnlyTimers:
    """Return the timers of these names, where the index and the log prove that there is one and nothing ended it.

    About 4 µs per name. The timers may be due by now. All other names need a look-up of their own.
    """
    only, offsets, cancel_hashes = _only_records(reader, far_names, names)
    only &= _are_unambiguous(names)
    sizes = np.zeros(len(only), np.int64)
    sizes[only] = reader.log.record_sizes(offsets[only])
    rows = np.flatnonzero((sizes > 0) & (sizes <= MAX_RECORD_BYTES))
    if not len(rows):
        return OnlyTimers(*(np.empty(0, np.int64) for _ in fields(OnlyTimers)))
    return _read_timers(reader, names, rows, offsets[rows], sizes[rows], cancel_hashes[rows])


def _only_records(reader: LogReader, far_names: FarNames, names: NameColumns) -> tuple[Bools, Ints, Ints]:
    """Which names the index has once, as a timer, the log offsets of those records, and the hashes of cancels."""
    count = len(names.topic_of)
    hashed = HashedKeys(names.unique_keys.data, names.unique_keys.offsets)
    same = np.zeros(count, np.intp)
    schedules = hashed.under([f"{TIMER_TOPIC}#"], same)
    hits, offsets = reader.find_hashes(schedules)
    counts = np.bincount(hits, minlength=count)
    # Of two names with the same hash, which may be the same name, the second must see what the first one did.
    _, firsts, repeats = np.unique(schedules, return_inverse=True, return_counts=True)
    only: Bools = (counts == 1) & (repeats[firsts] == 1)
    at = np.zeros(count, np.int64)
    at[hits] = offsets
    deliveries = hashed.under([f"{topic}#" for topic in names.topics], names.topic_of)
    cancels = hashed.under([f"{TIMER_TOPIC}#{topic}{SEPARATOR}" for topic in names.topics], names.topic_of)
    others = [deliveries, cancels]
    if reader.queues.find(TIMER_DEAD_LETTER_TOPIC, 0) is not None:
        others.append(hashed.under([f"{TIMER_DEAD_LETTER_TOPIC}#"], same))
    hits, _ = reader.find_hashes(np.concatenate(others))
    only[hits % count] = False
    if far_names.upto and only.any():
        rows = np.flatnonzero(only)
        keys = names.unique_keys.values()
        pairs = [(names.topics[names.topic_of[row]], keys[row]) for row in rows.tolist()]
        only[rows] = ~np.array(far_names.known(pairs, 0), bool)
    return only, at, cancels


def _are_unambiguous(names: NameColumns) -> Bools:
    """Which names no other topic and key have the same text as."""
    found: Bools = ~np.array([SEPARATOR in topic for topic in names.topics], bool)[names.topic_of]
    if _SEPARATOR in names.unique_keys.data:
        found &= [_SEPARATOR not in key for key in names.unique_keys.values()]
    return found


def _read_timers(
    reader: LogReader, names: NameColumns, rows: Indices, offsets: Ints, sizes: Ints, cancel_hashes: Ints
) -> OnlyTimers:
    """Read the records at these log offsets, and return those that schedule the timers of their names."""
    data = reader.log.read_all(offsets, sizes)
    padded = data + bytes(max(PADDING_BYTES, MIN_RECORD_BYTES))
    ends = np.cumsum(sizes)
    starts = ends - sizes
    read = Numbers(padded, len(padded))
    parts = lay_out(read, starts, ends)
    right: Bools = parts.fits & (read.i64(starts + PHYSICAL_OFFSET_AT) == offsets)
    octets = np.frombuffer(padded, np.uint8)
    words = np.ndarray((len(padded) - WORD_BYTES + 1,), "<u8", padded, strides=(1,))
    # Where the parts do not fit, the region is empty. It may not begin before the buffer.
    begins = np.where(right, parts.properties_at, ends)
    properties = Properties(octets, words, Spans(begins, ends))
    dues, has_due = numbers(octets, properties.find(DUE_MS), MAX_DUE_DIGITS)
    right &= has_due & ~properties.find(TIMER_DELETE_KEY).present & ~properties.find(MOVE).present
    entries = read.i64(starts + QUEUE_OFFSET_AT)
    first_ids, has_id = numbers(octets, properties.find(TIMER_ID), MAX_ENTRY_DIGITS)
    texts = (Spans(parts.topics_at, parts.topics_end), properties.find(REAL_TOPIC), properties.find(UNIQUE_KEY))
    topics = [topic.encode() for topic in names.topics]
    keys = names.unique_keys.values()
    at = (column.tolist() for spans in texts for column in spans)
    for index, (row, a, b, c, d, e, f) in enumerate(zip(rows.tolist(), *at, strict=True)):  # 0.6 µs
        if data[e:f] != keys[row] or data[c:d] != topics[names.topic_of[row]] or data[a:b] != _TIMER_TOPIC:
            right[index] = False
    ids = np.where(has_id, first_ids, entries)
    found = OnlyTimers(rows, names.topic_of[rows], entries, ids, dues, offsets, sizes, cancel_hashes)
    return found.where(right)
