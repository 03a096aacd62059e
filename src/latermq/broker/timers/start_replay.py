"""Replay of the timer topic at a start: notes cuts, and applies cancels and moves that the engine may not have.

A record that cannot be parsed has no effect and does not prevent the start.
"""

from collections.abc import Sequence

import numpy as np

from latermq.errors import CorruptStore
from latermq.handover.cut import Cut, decode_cut
from latermq.message.names import TIMER_TOPIC
from latermq.message.properties import (
    DUE_MS,
    REAL_TOPIC,
    TIMER_DELETE_KEY,
    UNIQUE_KEY,
    decode_properties,
    find_property,
)
from latermq.message.record import record_properties
from latermq.message.timer_code import CANCEL, CUT, MOVED, TIMER, is_timer_code, kinds_and_dues, timer_kind
from latermq.message.timer_name import meanings, names_of
from latermq.store.message_store import MessageStore
from latermq.store.queues.consume_queue import ConsumeQueue
from latermq.timer.far.far_names import FarNames
from latermq.timer.intake.replayed_cancels import Name, ReplayedCancel, ReplayedCancels
from latermq.timer.service import TimerService

READ_AT_ONCE = 1 << 16  # queue entries
CANCELS_AT_ONCE = 1 << 16  # whose names are looked up together: about 30 MB meanwhile
_DELETE_KEY, _REAL_TOPIC, _UNIQUE_KEY = TIMER_DELETE_KEY.encode(), REAL_TOPIC.encode(), UNIQUE_KEY.encode()
_DUE_MS = DUE_MS.encode()

UNREADABLE_KEPT = 20  # unreadable records that are described in detail


class UnreadableRecords:
    """The number of records that were skipped, and descriptions of the first ones, for operators."""

    def __init__(self) -> None:
        self.count = 0
        self.first: list[str] = []

    def note(self, entry: int, reason: str) -> None:
        """Note a skipped record."""
        self.count += 1
        if len(self.first) < UNREADABLE_KEPT:
            self.first.append(f"entry {entry}: {reason}")


class StartReplay:
    """Reads the timer topic's queue, and the records of all entries that are not timers."""

    def __init__(self, store: MessageStore, far_names: FarNames, timers: TimerService) -> None:
        self._store = store
        self._timers = timers
        self._cancels = ReplayedCancels(
            store.reader, far_names, timers.topic, timers.settled, timers.cancellations, timers.marks, timers.counters
        )
        self.unreadable_records = UnreadableRecords()

    def run(self) -> None:
        """Replay the topic. Call it before `TimerService.start`, which needs the owner of each timer."""
        queue = self._store.queues.find(TIMER_TOPIC, 0)
        if queue is None:
            return
        self._load_frontiers(queue)
        # If the whole log was scanned, cancels that the engine has must still be counted.
        start = min(self._timers.intake.next_entry, queue.offset_of_log(self._store.recovery.scanned_from))
        cancels: list[ReplayedCancel] = []
        while (found := queue.array(start, READ_AT_ONCE)).size:
            codes = found["tags"].astype(np.int64)
            kinds, _ = kinds_and_dues(codes)
            rows = np.flatnonzero(~is_timer_code(codes) | (kinds != TIMER))
            for row, offset, size in zip(
                rows.tolist(), found["offset"][rows].tolist(), found["size"][rows].tolist(), strict=True
            ):
                cancels += self._read(offset, size, start + row)
            start += len(found)
            if len(cancels) >= CANCELS_AT_ONCE:
                self._cancels.act(cancels)
                cancels = []
        self._cancels.act(cancels)

    def replay_record(self, physical_offset: int, size: int, entry: int) -> None:
        """Apply a single record to the entries before it in the log."""
        self._cancels.act(self._read(physical_offset, size, entry))

    def _load_frontiers(self, queue: ConsumeQueue) -> None:
        """Load the cuts that the checkpoint lacks, so that the owner of every entry in the log is known.

        The checkpoint lacks cuts if an older version wrote it, or if a segment that was removed is back after a crash.
        """
        frontier = self._timers.frontier
        known_from = frontier.ownership.known_from
        if queue.min_offset >= known_from:
            return
        cuts: list[Cut] = []
        start = queue.min_offset
        while start < known_from and (found := queue.array(start, min(READ_AT_ONCE, known_from - start))).size:
            kinds, _ = kinds_and_dues(found["tags"].astype(np.int64))
            for row in np.flatnonzero(kinds == CUT).tolist():
                properties = self._properties(int(found["offset"][row]), int(found["size"][row]))
                cut = self._cut_of(properties, start + row, cuts[-1:])
                cuts += [cut] if cut is not None else []
            start += len(found)
        frontier.learn_before(queue.min_offset, cuts)

    def _properties(self, physical_offset: int, size: int) -> bytes:
        if not self._store.log.start <= physical_offset <= self._store.log.end - size:
            return b""
        return record_properties(self._store.log.read(physical_offset, size))

    def _cut_of(self, properties: bytes, entry: int, last: Sequence[Cut] = ()) -> Cut | None:
        """Return the cut of a record; None if it is a blank, cannot be parsed, or contradicts other cuts."""
        try:
            cut = decode_cut(decode_properties(properties.decode(errors="replace")), entry)
        except CorruptStore as error:
            self.unreadable_records.note(entry, error.message)
            return None
        if cut is not None and not (self._timers.frontier.fits(cut) and all(map(cut.follows, last))):
            self.unreadable_records.note(entry, "the cut contradicts the cuts before or after it")
            return None
        return cut

    def _read(self, physical_offset: int, size: int, entry: int) -> list[ReplayedCancel]:
        """Read an entry that is not a timer: note a cut; return one item for each name of a cancel or a move."""
        properties = self._properties(physical_offset, size)
        kind = timer_kind(properties)
        if kind == CUT:
            cut = self._cut_of(properties, entry)
            if cut is not None:
                self._timers.frontier.add(cut)
        elif not properties:
            self.unreadable_records.note(entry, f"the log has no record at {physical_offset}")
        if kind not in (CANCEL, MOVED):
            return []
        is_counted = physical_offset >= self._store.recovery.scanned_from
        names = _names_cancelled_by(properties) if kind == CANCEL else [_own_name(properties)]
        if kind == MOVED:
            self._timers.pending[names[0][0]] += is_counted
        return [ReplayedCancel(entry, physical_offset + size, name, is_counted) for name in names]


def _names_cancelled_by(cancel: bytes) -> list[Name]:
    """Return the topics and unique keys that a cancel names."""
    key = find_property(cancel, _DELETE_KEY) or b""
    text = key.decode(errors="replace")
    if find_property(cancel, _UNIQUE_KEY) == key:
        return names_of(text)
    if find_property(cancel, _DUE_MS):
        return []  # it had no effect, because nothing was pending
    # RocketMQ's own cancels are not indexed by the timers they cancel, and may stand for several names.
    return [found for name in meanings(text, _own_name(cancel)[0]) for found in names_of(name)]


def _own_name(properties: bytes) -> Name:
    topic, unique_key = (find_property(properties, name) or b"" for name in (_REAL_TOPIC, _UNIQUE_KEY))
    return topic.decode(errors="replace"), unique_key.decode(errors="replace")
