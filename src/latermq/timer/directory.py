"""The directory: which timers of a name are pending, and what became of the others.

It is no file of its own. Every record of the timer topic and every delivered one carries the name it concerns as a key,
so the key index finds all that ever happened to a name, and the order of the log is the verdict. Nothing has to be
kept in step with it, and nothing rebuilt after a crash. Only Spark's timers outlive their records; what was known of
them when those went is in far_names.py, and is older than anything in the log.

A cancel or a move ends all there was before it. So a name is read from its newest record back to the last one that
ended something, and what happened before costs nothing.
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
from latermq.store.key_index import NO_HIT
from latermq.store.log_reader import LogReader
from latermq.timer.far.far_names import FarName, FarNames
from latermq.timer.steps import Steps, in_haste

RECALL_TAG = "_RECALL_TAG_"
# A name under which others schedule all the time would else be read in slices again and again.
PATIENT_TRIES = 3
STEPS_IN_HASTE = 2_000  # some 40 ms, for which all others wait


class Fate(Enum):
    """What became of a name's timers."""

    UNKNOWN = 0
    PENDING = 1
    CANCELLED = 2
    DELIVERED = 3


@dataclass(slots=True)
class Entry:
    """What schedules: a timer, a renewal of one, or a move."""

    entry: int
    timer_id: int  # the entry that first scheduled it
    due_ms: int
    topic: str
    physical_offset: int  # where its record lies in the log,
    size: int  # and how long it is; 0 where it has left


@dataclass(slots=True)
class History:
    """What happened to one name, told by the log."""

    fate: Fate = Fate.UNKNOWN
    due_ms: int = 0  # of what was last scheduled
    pending: dict[int, Entry] = field(default_factory=dict)


class Directory:
    """Looks names up in the store."""

    def __init__(self, reader: LogReader, far_names: FarNames, wake_from_ms: Callable[[], int]) -> None:
        """`wake_from_ms` is T: what is due before was delivered or cancelled."""
        self._reader = reader
        self._far_names = far_names
        self._wake_from_ms = wake_from_ms

    def look_up(self, topic: str, unique_key: str, *, only_pending: bool = False) -> Steps[History]:
        """What happened to the timers of this name, back to the last record that ended all there was.

        With `only_pending` nobody asks for the fate of what is not.
        """
        log = self._reader.log
        for tries in itertools.count():
            start, end = log.start, log.end
            told = _Told(topic, unique_key, self._reader)
            steps = self._read_back(told, end, only_pending=only_pending)
            yield from steps if tries < PATIENT_TRIES else in_haste(steps, STEPS_IN_HASTE)
            # Others may have worked between the steps: what was read in the log may have left it, and is to be told by
            # the far names now; and more may have been appended.
            if start == log.start and (end == log.end or not self._is_changed(told, end)):
                return told.finish()
        raise AssertionError("it is tried again for as long as others come in between")

    def _read_back(self, told: "_Told", before: int, *, only_pending: bool) -> Steps[None]:
        schedules, cancels, delivered, buried = _places(told.topic, told.unique_key)
        for offset in self._newest_first(before, schedules, cancels):
            yield
            message = self._reader.read_message(offset) if offset != NO_HIT else None
            if message is not None and message.topic == TIMER_TOPIC:
                told.tell(message)
            if told.is_decided:
                break
        else:
            for far in self._far_names.pending(told.topic, told.unique_key, self._wake_from_ms()):
                yield
                if self._has_left(far):
                    told.tell_far(far)
            told.cancelled_due_ms = self._far_names.cancelled_due_ms(told.topic, told.unique_key)
        if not told.asks_for_deliveries(only_pending=only_pending):
            return
        for offset in self._newest_first(before, delivered, buried):
            yield
            record = self._reader.log.read_record(offset) if offset != NO_HIT else None
            if record is not None:
                told.tell_delivered(record)
                if not told.asks_for_deliveries(only_pending=only_pending, before=offset):
                    return

    def _has_left(self, far: FarName) -> bool:
        """Whether its record has left the log. If not, the log tells of it, and what in it is older did not take it."""
        queue = self._reader.queues.find(TIMER_TOPIC, 0)
        return queue is None or far.entry < queue.min_offset

    def _newest_first(self, before: int, *places: tuple[str, str]) -> Iterator[int]:
        streams = [self._reader.search_key(*place) for place in places]
        return (offset if offset < before else NO_HIT for offset in _newest_first(streams))

    def _is_changed(self, told: "_Told", since: int) -> bool:
        """Whether a record with this name was appended at this log offset or later."""
        places = _places(told.topic, told.unique_key)
        return any(offset != NO_HIT for place in places for offset in self._reader.search_key(*place, start=since))

    def unique_keys(self, topic: str, key: str, limit: int, *, only_pending: bool = False) -> Steps[list[str]]:
        """The unique keys of timers that were scheduled with this message key; refused where there are too many.

        All whose record in the timer topic is kept, pending or not, and far ones. Where there is none, also those of
        delivered messages, unless nobody asks for what is not pending: plain messages with the same key may be many.
        """
        keys: dict[str, None] = {}
        for offset in self._reader.search_key(TIMER_TOPIC, key):
            yield
            message = self._reader.read_message(offset) if offset != NO_HIT else None
            if message is not None and message.topic == TIMER_TOPIC:
                self._note_key(keys, message, topic, key, limit)
        for unique_key in self._far_names.unique_keys(topic, key):
            yield
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


class _Told:
    """A history as it is told by the records of a name, the newest first: those of the timer topic, then deliveries."""

    def __init__(self, topic: str, unique_key: str, reader: LogReader) -> None:
        self.topic = topic
        self.unique_key = unique_key
        self.is_decided = False  # older records of the timer topic change nothing
        self._reader = reader
        self._history = History()
        self._is_cancelled = False  # whatever is told next
        self._open: dict[int, Entry] = {}  # what was scheduled and may have been delivered before it was cancelled
        self._oldest_offset = 0  # of the last told of them
        self._renewed: set[int] = set()
        self.cancelled_due_ms: int | None = None  # of what is known to be cancelled, but older than all records
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

    def asks_for_deliveries(self, *, only_pending: bool, before: int | None = None) -> bool:
        """Whether it matters what was delivered, before this log offset if one is given."""
        if self._open:
            return before is None or before > self._oldest_offset  # nothing is delivered before it is scheduled
        is_known = self._is_delivered or self._history.fate != Fate.UNKNOWN
        return not (is_known or only_pending)

    def tell(self, message: Message) -> None:
        """A record of the timer topic."""
        properties = message.properties
        kind = timer_kind(encode_properties(properties).encode())
        if kind == CANCEL:
            if properties[TIMER_DELETE_KEY] == timer_name(self.topic, self.unique_key):
                # Ours are written where they cancel something. Others may have come in vain, and what is older decides.
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
        return kind_and_due(self._reader.waiting_code_at(message.physical_offset))[1]  # RocketMQ wrote it

    def _add(self, entry: Entry) -> None:
        self._open[entry.entry] = entry
        self._oldest_offset = entry.physical_offset
        if not self._is_cancelled:
            self._history.pending[entry.entry] = entry

    def _cancel(self, by: Message, *, is_effective: bool) -> None:
        """What is told next was cancelled by this record, if by nothing older."""
        if self._open:
            self.is_decided = True
        elif is_effective:
            self.is_decided = True
            self._history.fate = Fate.CANCELLED
            self._history.due_ms = self._history.due_ms or self._due_ms(by)
        self._is_cancelled = True

    def tell_far(self, far: FarName) -> None:
        """A timer that has left the log, and is older than all records."""
        if far.entry not in self._open and far.entry not in self._renewed:  # its record may not have gone yet
            self._history.due_ms = self._history.due_ms or far.due_ms
            self._add(Entry(far.entry, far.timer_id, far.due_ms, self.topic, 0, 0))

    def tell_delivered(self, record: bytes) -> None:
        """A record of the timers' own topic, or of the dead letters."""
        number = _replaced_timer(record)
        if number is None:
            return
        message = decode_record(record)
        is_own = self.topic in (message.topic, message.properties.get(REAL_TOPIC))
        if is_own and message.properties.get(UNIQUE_KEY) == self.unique_key:
            self._open.pop(number, None)
            self._is_delivered = True


def _places(topic: str, unique_key: str) -> list[tuple[str, str]]:
    """Where a name's records are indexed: what schedules, cancels, deliveries, and what could not be delivered."""
    return [
        (TIMER_TOPIC, unique_key),
        (TIMER_TOPIC, timer_name(topic, unique_key)),
        (topic, unique_key),
        (TIMER_DEAD_LETTER_TOPIC, unique_key),
    ]


def _newest_first(streams: list[Iterator[int]]) -> Iterator[int]:
    """The offsets of descending streams in descending order; NO_HIT stands for a piece of work that found nothing."""
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
    """The entry of the timer topic that this record delivers; None for any other message."""
    parts = layout(record, 0, len(record))
    replaced = decode_entry_id(record_prepared_transaction_offset(record, 0, parts)) if parts is not None else None
    return replaced[1] if replaced is not None and replaced[0] == 0 else None


def _check_number(keys: dict[str, None], key: str, limit: int) -> None:
    if len(keys) > limit:
        raise InvalidParameter(
            f"more than {limit} timers have the key {key[:40]!r}, which is what one request acts on",
            hint="List them by time and name them one by one",
        )
