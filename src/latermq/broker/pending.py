"""Timers that wait, as their owners see them: cancelled, moved, looked up, listed and counted."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from latermq.broker.pending_pages import DueRange, PendingPages
from latermq.clock import Clock
from latermq.errors import InvalidParameter, ServiceUnavailable
from latermq.message.cut import decode_cut
from latermq.message.ids import pack_host
from latermq.message.names import TIMER_TOPIC
from latermq.message.properties import (
    MAX_PROPERTIES_BYTES,
    MOVE,
    REAL_QUEUE_ID,
    REAL_TOPIC,
    TAGS,
    TIMER_DELETE_KEY,
    TIMER_DELIVER_MS,
    TIMER_ID,
    TIMER_ROLL_TIMES,
    UNIQUE_KEY,
    encode_properties,
)
from latermq.message.record import decode_record
from latermq.message.timer_code import CANCEL, CUT, MOVED, TIMER, is_timer_code, kind_and_due, kinds_and_dues
from latermq.message.timer_name import meanings, names_of, timer_name
from latermq.protocol.remoting.timer_bodies import Density, Outcome, PendingPage, Verdict
from latermq.store.message_store import Draft, MessageStore
from latermq.timer.admission import Admission, waiting_properties
from latermq.timer.directory import Directory, Entry, Fate, History
from latermq.timer.far_names import FarNames
from latermq.timer.timers import Timers

RECALL_TAG = "_RECALL_TAG_"
MAX_NAMES = 200  # some 0.2 ms each, and others wait meanwhile
_VERDICTS = {
    Fate.UNKNOWN: Verdict.NOT_FOUND,
    Fate.PENDING: Verdict.PENDING,
    Fate.CANCELLED: Verdict.CANCELLED,
    Fate.DELIVERED: Verdict.DELIVERED,
}


class Meant(NamedTuple):
    """Which timers of a name whoever asks has seen: a name may stand for others by now."""

    timer_ids: frozenset[int]
    before: int | None  # all timers first scheduled before this entry were seen; None: only those of the ids were

    def is_all(self, pending: Iterable[Entry]) -> bool:
        """Whether one that is meant is pending, and none that was not seen. A cancel or a move takes all of a name."""
        ids = {entry.timer_id for entry in pending}
        unseen = ids - self.timer_ids if self.before is None else {one for one in ids if one >= self.before}
        return bool(ids & self.timer_ids) and not unseen


class PendingTimers:
    """Acts on timers by their names. The order of the log is the verdict, and one thread writes it."""

    def __init__(
        self,
        store: MessageStore,
        timers: Timers,
        far_names: FarNames,
        admission: Admission,
        clock: Clock,
        *,
        store_host: bytes,
        on_changed: Callable[[], None],
    ) -> None:
        self._store = store
        self._timers = timers
        self._admission = admission
        self._clock = clock
        self._store_host = store_host
        self._on_changed = on_changed
        self._far_names = far_names
        self._directory = Directory(store, far_names, timers.all_wake_from_ms)
        self._pages = PendingPages(store, timers, self._directory)

    def mark_taken(self) -> None:
        """At a start: let every cut, cancel and move act again that the engine may not know of."""
        queue = self._store.find_queue(TIMER_TOPIC, 0)
        start = self._timers.put_upto_at_start
        if queue is not None:
            # Where the whole log was read again, those that the engine knows of are still to be counted.
            start = min(start, queue.offset_of_log(self._store.recovery.scanned_from))
        while queue is not None and (found := queue.array(start, 1 << 16)).size:
            codes = found["tags"].astype(np.int64)
            kinds, _ = kinds_and_dues(codes)
            for row in np.flatnonzero(~is_timer_code(codes) | (kinds != TIMER)).tolist():
                self.act_again(int(found["offset"][row]), start + row)
            start += len(found)

    def act_again(self, physical_offset: int, entry: int) -> None:
        """Let one of them act on what the log holds before it."""
        kind, _ = kind_and_due(self._store.waiting_code_at(physical_offset))
        message = self._store.read_message(physical_offset)
        if message is not None and kind == CUT:
            cut = decode_cut(message.properties, entry)
            if cut is not None:
                self._timers.frontier.add(cut)
        if message is None or kind not in (CANCEL, MOVED):
            return
        properties = message.properties
        is_replayed = physical_offset >= self._store.recovery.scanned_from
        if kind == CANCEL:
            names = _names_taken_by(properties)
        else:
            names = [(properties[REAL_TOPIC], properties[UNIQUE_KEY])]
            self._timers.pending[properties[REAL_TOPIC]] += is_replayed
        for topic, unique_key in names:
            history = self._directory.history(topic, unique_key, whole=True)
            taken = history.taken_by.get(entry)
            if taken is None:  # RocketMQ's cancels are not indexed by what they take
                taken = [one for one in history.pending.values() if one.entry < entry]
            self.take(entry, taken, count=is_replayed)

    # Cancelling

    def pending_under(self, name: str) -> list[Entry]:
        """What a cancel of this name would take now.

        Asked before the cancel is stored: the index may fail for want of space, and nothing may fail afterwards.
        """
        histories = (self._directory.history(topic, unique_key) for topic, unique_key in names_of(name))
        return [entry for history in histories for entry in history.pending.values()]

    def take(self, entry: int, taken: Sequence[Entry], *, count: bool = True) -> None:
        """A cancel or a move was stored as `entry` and takes these."""
        if not taken:
            return
        places = [(one.message.physical_offset, one.message.size_bytes) if one.message else (0, 0) for one in taken]
        queue_entry = self._store.queue(TIMER_TOPIC, 0).entry(entry)
        assert queue_entry is not None
        self._timers.take_out(
            entry,
            queue_entry[0] + queue_entry[1],
            np.array([one.entry for one in taken], np.int64),
            np.array([offset for offset, _ in places], np.int64),
            np.array([size for _, size in places], np.int64),
            np.array([one.due_ms for one in taken], np.int64),
        )
        if count:
            for topic, number in Counter(one.topic for one in taken).items():
                self._timers.leave(topic, number)

    def status(self, topic: str, unique_key: str) -> Outcome:
        """What became of the timers of this name."""
        history = self._directory.history(topic, unique_key)
        return Outcome(_VERDICTS[history.fate], topic, unique_key, history.due_ms, len(history.pending))

    def cancel(self, topic: str, unique_key: str, meant: Meant | None = None) -> Outcome:
        """Cancel every timer of this name that is pending now; where none is, or not what is meant, it does nothing."""
        history = self._directory.history(topic, unique_key)
        refused = _refused(history, topic, unique_key, meant)
        if refused is not None:
            return refused
        now_ms = self._clock.now_ms()
        draft = self.cancel_draft(topic, timer_name(topic, unique_key), history.due_ms)
        (appended,) = self._store.append_all([draft], self._store.not_before_last(TIMER_TOPIC, now_ms))
        taken = list(history.pending.values())
        self.take(appended.queue_offset, taken)
        self._timers.tallies.cancelled += len(taken)
        self._on_changed()
        return Outcome(Verdict.CANCELLED, topic, unique_key, history.due_ms, len(taken))

    def cancel_draft(self, topic: str, name: str, due_ms: int) -> Draft:
        """The record of a cancel."""
        properties = {TIMER_DELIVER_MS: str(due_ms), TIMER_DELETE_KEY: name, UNIQUE_KEY: name, TAGS: RECALL_TAG}
        encoded = encode_properties(waiting_properties(properties, topic, 0, due_ms)).encode()
        return Draft(TIMER_TOPIC, 0, b"0", encoded, self._clock.now_ms(), self._store_host)

    def cancel_key(self, topic: str, key: str) -> list[Outcome]:
        """Cancel what was scheduled with this message key: an outcome for each name."""
        return [self.cancel(topic, unique_key) for unique_key in self._names(topic, key)]

    def _names(self, topic: str, key: str) -> Sequence[str]:
        names = self._directory.unique_keys(topic, key, MAX_NAMES + 1)
        if len(names) > MAX_NAMES:
            raise InvalidParameter(
                f"more than {MAX_NAMES} timers have the key {key[:40]!r}, which is what one request acts on",
                hint="List them and name them one by one",
            )
        return names

    # Moving

    def records_to_fetch(self, topic: str, unique_key: str, key: str) -> list[tuple[int, int]]:
        """What a move needs that has left the log: entries of far timers and their due times."""
        if not self._far_names.upto:
            return []
        names = self._names(topic, key) if key else [unique_key]
        newest = (_newest(self._directory.history(topic, name)) for name in names)
        return [(entry.entry, entry.due_ms) for entry in newest if entry is not None and entry.message is None]

    def move(
        self,
        topic: str,
        unique_key: str,
        due_ms: int,
        fetched: Mapping[int, bytes] | None = None,
        meant: Meant | None = None,
    ) -> Outcome:
        """Give what is pending under this name another due time, unless it is not what was meant.

        One record does it, which schedules itself and takes all that was scheduled before under its name. `fetched` are
        records of far timers, by entry.
        """
        now_ms = self._clock.now_ms()
        if due_ms < 0:
            raise InvalidParameter(f"{due_ms} is no time", hint="Give milliseconds since 1970")
        self._admission.check_due(due_ms, now_ms, f"the new due time is {due_ms}")
        history = self._directory.history(topic, unique_key)
        refused = _refused(history, topic, unique_key, meant)
        if refused is not None:
            return refused
        due_ms = max(due_ms, now_ms)
        newest = _newest(history)
        assert newest is not None
        taken = list(history.pending.values())
        moved = self._moved(newest, topic, due_ms, fetched or {})
        (appended,) = self._store.append_all([moved], self._store.not_before_last(TIMER_TOPIC, now_ms))
        self.take(appended.queue_offset, taken)
        self._timers.pending[topic] += 1
        self._timers.tallies.moved += 1
        self._on_changed()
        return Outcome(Verdict.MOVED, topic, unique_key, due_ms, len(taken))

    def _moved(self, current: Entry, topic: str, due_ms: int, fetched: Mapping[int, bytes]) -> Draft:
        message = current.message
        if message is None:
            if current.entry not in fetched:
                raise ServiceUnavailable(
                    "the record of this timer has left the log and is not at hand", hint="Try again in a moment"
                )
            message = decode_record(fetched[current.entry])
        properties = {name: value for name, value in message.properties.items() if name != TIMER_ROLL_TIMES}
        properties |= {TIMER_ID: str(current.timer_id), MOVE: "1"}
        waiting = waiting_properties(properties, topic, int(properties[REAL_QUEUE_ID]), due_ms)
        encoded = encode_properties(waiting).encode()
        if len(encoded) > MAX_PROPERTIES_BYTES:
            raise InvalidParameter("the timer's properties leave no room for a move", hint="Cancel it and send another")
        return Draft(
            TIMER_TOPIC,
            0,
            message.body,
            encoded,
            message.born_timestamp_ms,
            pack_host(*message.born_host),
            message.flag,
            message.sysflag,
            message.reconsume_times,
        )

    def move_key(self, topic: str, key: str, due_ms: int, fetched: Mapping[int, bytes] | None = None) -> list[Outcome]:
        """Move what was scheduled with this message key: an outcome for each name."""
        return [self.move(topic, unique_key, due_ms, fetched) for unique_key in self._names(topic, key)]

    # Looking

    def list(
        self, *, topic: str = "", key: str = "", from_ms: int = 0, until_ms: int = 0, limit: int = 100, cursor: str = ""
    ) -> PendingPage:
        """A page of what is pending and due in [from, until), where 0 is no bound."""
        return self._pages.list(DueRange(topic, from_ms, until_ms), key=key, limit=limit, cursor=cursor)

    def count(self, *, topic: str = "", key: str = "", from_ms: int = 0, until_ms: int = 0) -> int:
        """How many of them there are."""
        return self._pages.count(DueRange(topic, from_ms, until_ms), key=key)

    def density(self) -> Density:
        """How many timers are due in each of the coming seconds, minutes and hours."""
        return self._pages.density(self._clock.now_ms())


def _names_taken_by(cancel: Mapping[str, str]) -> Sequence[tuple[str, str]]:
    """The topics and unique keys that the record of a cancel names."""
    key = cancel[TIMER_DELETE_KEY]
    # RocketMQ's own cancels are not indexed by what they take, and may mean several names.
    names = [key] if cancel.get(UNIQUE_KEY) == key else meanings(key, cancel.get(REAL_TOPIC, ""))
    return [found for name in names for found in names_of(name)]


def _refused(history: History, topic: str, unique_key: str, meant: Meant | None) -> Outcome | None:
    """Why a cancel or a move does nothing; None where it acts."""
    if history.fate != Fate.PENDING:
        return Outcome(_VERDICTS[history.fate], topic, unique_key, history.due_ms)
    if meant is not None and not meant.is_all(history.pending.values()):
        return Outcome(Verdict.REPLACED, topic, unique_key, history.due_ms)
    return None


def _newest(history: History) -> Entry | None:
    """The timer of a name that a move writes again: the one that was scheduled last."""
    return max(history.pending.values(), key=lambda entry: entry.timer_id, default=None)
