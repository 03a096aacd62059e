"""Cancels and moves replayed at a start: finds the timers that each of them ended, for many at once.

After a change of engines these are all cancels and moves in the log. So the key index is searched for all their names
together. Queue entries supply the kind and due time of its hits. Only records of timers that may be cancelled and are
not delivered are read, each once.
"""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from latermq.arrays import Bools, Ints
from latermq.message.names import TIMER_TOPIC
from latermq.message.properties import REAL_TOPIC, TIMER_DELETE_KEY, UNIQUE_KEY, find_property
from latermq.message.record import record_properties
from latermq.message.record_fields import QUEUE_OFFSET_AT
from latermq.message.timer_code import CANCEL, MOVED, schedules
from latermq.message.timer_name import timer_name
from latermq.store.dispatch import HashedKeys
from latermq.store.log_reader import LogReader
from latermq.timer.counters import Counters
from latermq.timer.far.far_names import FarNames
from latermq.timer.intake.cancellations import Cancellations
from latermq.timer.intake.marks import Marks
from latermq.timer.intake.settled import Settled
from latermq.timer.intake.timer_topic import GONE, TimerTopic

Name = tuple[str, str]  # a topic and a unique key
_REAL_TOPIC, _UNIQUE_KEY, _DELETE_KEY = REAL_TOPIC.encode(), UNIQUE_KEY.encode(), TIMER_DELETE_KEY.encode()


class ReplayedCancel(NamedTuple):
    """A cancel or a move, and a name whose timers it ends."""

    entry: int
    end_offset: int  # where its record ends in the log
    name: Name
    is_counted: bool  # whether the timers it ends still count as pending


class _Scheduled(NamedTuple):
    """An entry that can be cancelled: a timer, a renewal or a move."""

    entry: int
    due_ms: int
    physical_offset: int
    size: int


class _Hits(NamedTuple):
    """Entries of the timer topic that the index returns for some names. Each array has one row per hit."""

    rows: Ints  # indexes of the names
    entries: Ints
    physical_offsets: Ints
    sizes: Ints
    kinds: Ints
    dues: Ints

    def where(self, kept: Bools) -> "_Hits":
        return _Hits(*(column[kept] for column in self))


class ReplayedCancels:
    """Applies cancels and moves to the timers that precede them in the log."""

    def __init__(
        self,
        reader: LogReader,
        far_names: FarNames,
        topic: TimerTopic,
        settled: Settled,
        cancellations: Cancellations,
        marks: Marks,
        counters: Counters,
    ) -> None:
        self._reader = reader
        self._far_names = far_names
        self._topic = topic
        self._settled = settled
        self._cancellations = cancellations
        self._marks = marks
        self._counters = counters

    def act(self, cancels: Sequence[ReplayedCancel]) -> None:
        """Apply these, given in log order. Earlier ones are already applied."""
        if not cancels:
            return
        found = list(self._cancelled_by(cancels))
        columns = [(number, *scheduled) for number, scheduled in found]
        numbers, entries, dues, physical, sizes = np.array(sorted(columns), np.int64).reshape(len(found), 5).T
        by = np.array([cancel.entry for cancel in cancels], np.int64)[numbers]
        ends = np.array([cancel.end_offset for cancel in cancels], np.int64)[numbers]
        plan = self._cancellations.plan(entries, dues, physical, sizes)
        self._cancellations.cancel_replayed(by, ends, plan)
        left = Counter(cancels[number].name[0] for number, _ in found if cancels[number].is_counted)
        for topic, count in left.items():
            self._counters.leave(topic, count)

    def _cancelled_by(self, cancels: Sequence[ReplayedCancel]) -> Iterator[tuple[int, _Scheduled]]:
        """Yield all cancelled timers, each with the number of the first cancel or move after it."""
        own: defaultdict[Name, dict[int, int]] = defaultdict(dict)  # entries and numbers of each name's cancels
        for number, cancel in enumerate(cancels):
            own[cancel.name][cancel.entry] = number
        names = list(own)
        known = np.array([cancel.entry for cancel in cancels], np.int64)
        scheduled, others = self._scheduled(names, np.array([max(own[name]) for name in names], np.int64), known)
        for row, name in enumerate(names):
            numbers = own[name]
            in_order = sorted(numbers.keys() | others[row]) if scheduled[row] else []
            for one in scheduled[row]:
                at = bisect_right(in_order, one.entry)
                if at < len(in_order) and in_order[at] in numbers:
                    yield numbers[in_order[at]], one

    def _scheduled(
        self, names: Sequence[Name], last_cancels: Ints, known: Ints
    ) -> tuple[defaultdict[int, list[_Scheduled]], defaultdict[int, set[int]]]:
        """Return for each name its pending timers scheduled before its last cancel, and its cancels not in `known`."""
        scheduled: defaultdict[int, list[_Scheduled]] = defaultdict(list)
        cancels: defaultdict[int, set[int]] = defaultdict(set)
        hits = self._hits([key for _, key in names])
        hits = hits.where(schedules(hits.kinds) & (hits.entries < last_cancels[hits.rows]))
        waits = ~self._settled.is_delivered_in_log(hits.entries, hits.dues, hits.physical_offsets)
        for row, waiting, kind, one in self._of_names(hits, waits, waits | (hits.kinds == MOVED), names):
            if kind == MOVED:
                cancels[row].add(one.entry)
            if waiting:
                scheduled[row].append(one)
        self._add_far(names, scheduled)
        # Earlier cancels matter only for names with pending timers that one of them may have ended.
        rows = np.array([row for row, found in scheduled.items() if found], np.int64)
        hits = self._hits([timer_name(*names[row]) for row in rows.tolist()])
        hits = hits.where((hits.kinds == CANCEL) & ~np.isin(hits.entries, known))
        for row, properties, one in self._records(hits):
            name = int(rows[row])
            if find_property(properties, _DELETE_KEY) == timer_name(*names[name]).encode():
                cancels[name].add(one.entry)
        return scheduled, cancels

    def _of_names(
        self, hits: _Hits, waits: Bools, wanted: Bools, names: Sequence[Name]
    ) -> Iterator[tuple[int, bool, int, _Scheduled]]:
        """Yield the wanted hits whose name really matches, because hashes can collide."""
        encoded = [(topic.encode(), unique_key.encode()) for topic, unique_key in names]
        kept = hits.where(wanted)
        marks = zip(waits[wanted].tolist(), kept.kinds.tolist(), strict=True)
        for (waiting, kind), (row, properties, one) in zip(marks, self._records(kept), strict=True):
            name = (find_property(properties, _REAL_TOPIC) or b"", find_property(properties, _UNIQUE_KEY) or b"")
            if name == encoded[row]:
                yield row, waiting, kind, one

    def _records(self, hits: _Hits) -> Iterator[tuple[int, bytes, _Scheduled]]:
        """Yield for each hit its name's index, the properties of its record, and the entry it schedules, if any."""
        columns = (hits.rows, hits.entries, hits.dues, hits.physical_offsets, hits.sizes)
        for row, entry, due_ms, offset, size in zip(*(column.tolist() for column in columns), strict=True):
            yield row, record_properties(self._reader.log.read(offset, size)), _Scheduled(entry, due_ms, offset, size)

    def _hits(self, keys: Sequence[str]) -> _Hits:
        """Return the entries of the timer topic that may have these keys."""
        queue = self._reader.queues.ensure(TIMER_TOPIC, 0)
        encoded = [key.encode() for key in keys]
        ends = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
        hashed = HashedKeys(b"".join(encoded), ends).under([f"{TIMER_TOPIC}#"], np.zeros(len(keys), np.intp))
        rows, offsets = self._reader.find_hashes(hashed)
        # Sort by offset and name and remove duplicates: keys written again after a full disk are in the index twice.
        rows, offsets = np.unique(np.stack((offsets, rows)), axis=1)[::-1]
        entries = self._reader.log.gather(offsets, np.full_like(offsets, QUEUE_OFFSET_AT), ">i8")
        inside = (entries >= queue.min_offset) & (entries < queue.next_offset)
        order = np.flatnonzero(inside)[np.argsort(entries[inside], kind="stable")]
        rows, offsets, entries = rows[order], offsets[order], entries[order]
        found = queue.gather(entries)
        own = found["offset"] == offsets  # otherwise it belongs to another topic with the same hash
        found = found[own]
        kinds, dues = self._topic.kinds_and_dues(found["tags"].astype(np.int64), offsets[own])
        return _Hits(rows[own], entries[own], offsets[own], found["size"].astype(np.int64), kinds, dues)

    def _add_far(self, names: Sequence[Name], scheduled: defaultdict[int, list[_Scheduled]]) -> None:
        """Add far timers that have left the log. They are older than everything in it."""
        if not self._far_names.upto:
            return
        wake_ms = self._marks.all_wake_from_ms()
        known = self._far_names.known([(topic, unique_key.encode()) for topic, unique_key in names], wake_ms)
        start = self._reader.queues.ensure(TIMER_TOPIC, 0).min_offset  # a name can precede its record's removal
        for row in np.flatnonzero(known).tolist():
            gone = [one for one in self._far_names.pending(*names[row], wake_ms) if one.entry < start]
            entries, dues = (np.array([getattr(one, key) for one in gone], np.int64) for key in ("entry", "due_ms"))
            delivered = self._settled.is_delivered_in_log(entries, dues, np.full_like(entries, GONE))
            scheduled[row] += [
                _Scheduled(entry, due_ms, GONE, 0)
                for (entry, _, due_ms), is_delivered in zip(gone, delivered.tolist(), strict=True)
                if not is_delivered
            ]
