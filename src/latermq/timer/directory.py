"""The directory: the pending timers of a name, and the fate of its other timers.

The directory has no file. Every record of the timer topic and every delivered record carries its timer's name as a key.
So the key index finds the full history of a name, and log order decides. Nothing has to be kept in sync, and nothing is
rebuilt after a crash. Only Spark's timers outlive their records. far_names.py keeps what was known of them when their
records left the log; that is older than anything in the log.

A cancel or a move ends all earlier timers of a name. So a look-up reads from the newest record back to the last one
that ended something, and older history costs nothing.
"""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum

from latermq.errors import InvalidParameter
from latermq.message.entry_id import decode_entry_id
from latermq.message.names import TIMER_DEAD_LETTER_TOPIC, TIMER_TOPIC
from latermq.message.properties import (
    DUE_MS,
    KEY_SEPARATOR,
    KEYS,
    REAL_TOPIC,
    TAGS,
    TIMER_DELETE_KEY,
    TIMER_ID,
    UNIQUE_KEY,
    encode_properties,
)
from latermq.message.record import (
    Message,
    decode_record,
    layout,
    record_prepared_transaction_offset,
)
from latermq.message.timer_code import CANCEL, MOVED, is_due, kind_and_due, timer_id_of, timer_kind
from latermq.message.timer_name import timer_name
from latermq.store.index.key_index import NO_HIT
from latermq.store.log_reader import LogReader
from latermq.timer.far.far_names import FarName, FarNames
from latermq.timer.steps import Steps, merge_first

RECALL_TAG = "_RECALL_TAG_"
# Otherwise a name that other clients schedule all the time would be read in slices again and again.
STEPWISE_TRIES = 3
MERGED_STEPS = 2_000  # about 40 ms, during which all other requests wait


class Fate(Enum):
    """The fate of a name's timers."""

    UNKNOWN = 0
    PENDING = 1
    CANCELLED = 2
    DELIVERED = 3


@dataclass(slots=True)
class Entry:
    """An entry that schedules: a timer, a renewal or a move."""

    entry: int
    timer_id: int  # the entry that first scheduled the timer
    due_ms: int
    topic: str
    physical_offset: int  # where its record starts in the log
    size: int  # size of the record; 0 if it has left the log


@dataclass(slots=True)
class History:
    """The history of one name, according to the log."""

    fate: Fate = Fate.UNKNOWN
    due_ms: int = 0  # due time of the timer scheduled last
    pending: dict[int, Entry] = field(default_factory=dict)


class Directory:
    """Name look-ups in the store."""

    def __init__(self, reader: LogReader, far_names: FarNames, wake_from_ms: Callable[[], int]) -> None:
        """`wake_from_ms` returns T: every timer due before it was delivered or cancelled."""
        self._reader = reader
        self._far_names = far_names
        self._wake_from_ms = wake_from_ms

    def look_up(self, topic: str, unique_key: str, *, only_pending: bool = False) -> Steps[History]:
        """Return the history of this name, back to the last record that ended all earlier timers.

        With `only_pending` the fate of timers that are not pending is not needed.
        """
        log = self._reader.log
        for tries in itertools.count():
            start, end = log.start, log.end
            builder = _HistoryBuilder(topic, unique_key, self._reader)
            steps = self._read_back(builder, end, only_pending=only_pending)
            yield from steps if tries < STEPWISE_TRIES else merge_first(steps, MERGED_STEPS)
            # Other requests may have run between the steps. Records that were read may have left the log, so that the
            # far names must supply them now. New records may have been appended.
            if start == log.start and (end == log.end or not self._is_changed(builder, end)):
                return builder.finish()
        raise AssertionError("the loop ends only with a result")

    def _read_back(self, builder: "_HistoryBuilder", before: int, *, only_pending: bool) -> Steps[None]:
        schedules, cancels, delivered, buried = _places(builder.topic, builder.unique_key)
        for offset in self._newest_first(before, schedules, cancels):
            yield
            message = self._reader.read_message(offset) if offset != NO_HIT else None
            if message is not None and message.topic == TIMER_TOPIC:
                builder.add_record(message)
            if builder.is_decided:
                break
        else:
            for far in self._far_names.pending(builder.topic, builder.unique_key, self._wake_from_ms()):
                yield
                if self._has_left(far):
                    builder.add_far(far)
            builder.cancelled_due_ms = self._far_names.cancelled_due_ms(builder.topic, builder.unique_key)
        if not builder.needs_deliveries(only_pending=only_pending):
            return
        for offset in self._newest_first(before, delivered, buried):
            yield
            record = self._reader.log.read_record(offset) if offset != NO_HIT else None
            if record is not None:
                builder.add_delivered(record)
                if not builder.needs_deliveries(only_pending=only_pending, before=offset):
                    return

    def _has_left(self, far: FarName) -> bool:
        """Whether its record has left the log.

        If not, the log describes it, and no older record in the log cancelled it.
        """
        queue = self._reader.queues.find(TIMER_TOPIC, 0)
        return queue is None or far.entry < queue.min_offset

    def _newest_first(self, before: int, *places: tuple[str, str]) -> Iterator[int]:
        streams = [self._reader.search_key(*place) for place in places]
        return (offset if offset < before else NO_HIT for offset in _newest_first(streams))

    def _is_changed(self, builder: "_HistoryBuilder", since: int) -> bool:
        """Whether a record with this name was appended at this log offset or later."""
        places = _places(builder.topic, builder.unique_key)
        return any(offset != NO_HIT for place in places for offset in self._reader.search_key(*place, start=since))

    def unique_keys(self, topic: str, key: str, limit: int, *, only_pending: bool = False) -> Steps[list[str]]:
        """Return the unique keys of timers scheduled with this message key; raise if there are too many.

        This covers all timers whose record in the timer topic is kept, pending or not, and far timers. If there are
        none, delivered messages are searched too, unless only pending timers matter: many plain messages may have the
        same key.
        """
        keys: dict[str, None] = {}
        for offset in self._reader.search_key(TIMER_TOPIC, key):
            yield
            message = self._reader.read_message(offset) if offset != NO_HIT else None
            if message is not None and message.topic == TIMER_TOPIC:
                self._note_key(keys, message, topic, key, limit)
        for unique_key in self._far_names.unique_keys(topic, key):
            yield
            if unique_key is not None:
                keys[unique_key] = None
                _check_number(keys, key, limit)
        if not keys and not only_pending:
            for offset in self._reader.search_key(topic, key):
                yield
                record = self._reader.log.read_record(offset) if offset != NO_HIT else None
                if record is not None and _replaced_timer(record) is not None:
                    self._note_key(keys, decode_record(record), topic, key, limit)
        return list(keys)

    def _note_key(self, keys: dict[str, None], message: Message, topic: str, key: str, limit: int) -> None:
        properties = message.properties
        is_timer = properties.get(REAL_TOPIC) == topic and not properties.get(TIMER_DELETE_KEY)
        if is_timer and key in properties.get(KEYS, "").split(KEY_SEPARATOR):
            keys[properties.get(UNIQUE_KEY, "")] = None
            _check_number(keys, key, limit)


class _HistoryBuilder:
    """A history in construction. It reads the records of a name newest first: the timer topic, then the deliveries."""

    def __init__(self, topic: str, unique_key: str, reader: LogReader) -> None:
        self.topic = topic
        self.unique_key = unique_key
        self.is_decided = False  # older records of the timer topic change nothing
        self._reader = reader
        self._history = History()
        self._is_cancelled = False  # applies to every record read from here on
        self._open: dict[int, Entry] = {}  # scheduled, and perhaps delivered before it was cancelled
        self._oldest_offset = 0  # log offset of the oldest entry added to `_open`
        self._renewed: set[int] = set()
        self.cancelled_due_ms: int | None = None  # due time of a cancelled timer that is older than all records
        self._is_delivered = False

    def finish(self) -> History:
        history = self._history
        history.pending = {number: entry for number, entry in sorted(history.pending.items()) if number in self._open}
        if history.pending:
            history.fate = Fate.PENDING
        elif self._open:
            history.fate = Fate.CANCELLED
        elif self._is_delivered:
            history.fate = Fate.DELIVERED
        elif history.fate == Fate.UNKNOWN and self.cancelled_due_ms is not None:
            history.fate = Fate.CANCELLED
            history.due_ms = history.due_ms or self.cancelled_due_ms
        return history

    def needs_deliveries(self, *, only_pending: bool, before: int | None = None) -> bool:
        """Whether deliveries matter; if an offset is given, deliveries before that log offset."""
        if self._open:
            return before is None or before > self._oldest_offset  # nothing is delivered before it is scheduled
        is_known = self._is_delivered or self._history.fate != Fate.UNKNOWN
        return not (is_known or only_pending)

    def add_record(self, message: Message) -> None:
        """Read a record of the timer topic."""
        properties = message.properties
        kind = timer_kind(encode_properties(properties).encode())
        if kind == CANCEL:
            if properties[TIMER_DELETE_KEY] == timer_name(self.topic, self.unique_key):
                # LaterMQ writes a cancel only if it cancels something. Other cancels may have had no effect; then older
                # records decide.
                self._cancel(message, is_effective=properties.get(TAGS) == RECALL_TAG)
            return
        if properties.get(REAL_TOPIC) != self.topic or properties.get(UNIQUE_KEY) != self.unique_key:
            return
        due_ms = self._due_ms(message)
        self._history.due_ms = self._history.due_ms or due_ms
        number = message.queue_offset
        if number not in self._renewed:
            timer_id = timer_id_of(properties.get(TIMER_ID, "").encode(), number)
            self._add(Entry(number, timer_id, due_ms, self.topic, message.physical_offset, message.size_bytes))
        replaced = decode_entry_id(message.prepared_transaction_offset)
        if kind == MOVED:
            self._cancel(message, is_effective=True)
        elif replaced is not None:
            self._renewed.add(replaced[1])

    def _due_ms(self, message: Message) -> int:
        due = message.properties.get(DUE_MS, "")
        if is_due(due.encode()):
            return int(due)
        return kind_and_due(self._reader.waiting_code_at(message.physical_offset))[1]  # written by RocketMQ

    def _add(self, entry: Entry) -> None:
        self._open[entry.entry] = entry
        self._oldest_offset = entry.physical_offset
        if not self._is_cancelled:
            self._history.pending[entry.entry] = entry

    def _cancel(self, by: Message, *, is_effective: bool) -> None:
        """Note that this record cancels every older timer that no older record cancelled."""
        if self._open:
            self.is_decided = True
        elif is_effective:
            self.is_decided = True
            self._history.fate = Fate.CANCELLED
            self._history.due_ms = self._history.due_ms or self._due_ms(by)
        self._is_cancelled = True

    def add_far(self, far: FarName) -> None:
        """Add a timer whose record has left the log. It is older than all records."""
        if far.entry not in self._open and far.entry not in self._renewed:  # its record may still be in the log
            self._history.due_ms = self._history.due_ms or far.due_ms
            self._add(Entry(far.entry, far.timer_id, far.due_ms, self.topic, 0, 0))

    def add_delivered(self, record: bytes) -> None:
        """Read a record of the timer's real topic or of the dead letters."""
        number = _replaced_timer(record)
        if number is None:
            return
        message = decode_record(record)
        is_own = self.topic in (message.topic, message.properties.get(REAL_TOPIC))
        if is_own and message.properties.get(UNIQUE_KEY) == self.unique_key:
            self._open.pop(number, None)
            self._is_delivered = True


def _places(topic: str, unique_key: str) -> list[tuple[str, str]]:
    """Where a name's records are indexed: schedules, cancels, deliveries and dead letters."""
    return [
        (TIMER_TOPIC, unique_key),
        (TIMER_TOPIC, timer_name(topic, unique_key)),
        (topic, unique_key),
        (TIMER_DEAD_LETTER_TOPIC, unique_key),
    ]


def _newest_first(streams: list[Iterator[int]]) -> Iterator[int]:
    """Merge descending streams of offsets into one. NO_HIT is a step of work that found nothing."""
    heads: dict[int, int] = {}
    waiting = list(range(len(streams)))
    while True:
        for number in waiting:
            for offset in streams[number]:
                if offset != NO_HIT:
                    heads[number] = offset
                    break
                yield NO_HIT
        if not heads:
            return
        newest = max(heads, key=heads.__getitem__)
        yield heads.pop(newest)
        waiting = [newest]


def _replaced_timer(record: bytes) -> int | None:
    """Return the entry of the timer topic that this record delivers; None for any other message."""
    parts = layout(record, 0, len(record))
    replaced = decode_entry_id(record_prepared_transaction_offset(record, 0, parts)) if parts is not None else None
    return replaced[1] if replaced is not None and replaced[0] == 0 else None


def _check_number(keys: dict[str, None], key: str, limit: int) -> None:
    if len(keys) > limit:
        raise InvalidParameter(
            f"more than {limit} timers have the key {key[:40]!r}, the limit of one request",
            hint="List them by time, and pass their unique keys one by one",
        )
