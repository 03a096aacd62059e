"""Pending timers, as clients use them: cancel, move, look up, list and count."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from latermq.arrays import Indices, Ints
from latermq.broker.timers.cancel_records import CANCEL_BODY, cancel_block, cancel_properties
from latermq.broker.timers.pending_pages import MAX_NAMES, DueRange, PendingPages
from latermq.clock import Clock
from latermq.errors import InvalidParameter, ServiceUnavailable
from latermq.message.ids import pack_host
from latermq.message.names import TIMER_TOPIC
from latermq.message.properties import (
    MAX_PROPERTIES_BYTES,
    MOVE,
    REAL_QUEUE_ID,
    TAKES,
    TIMER_ID,
    TIMER_ROLL_TIMES,
    encode_properties,
)
from latermq.message.record import decode_record
from latermq.message.record_fields import SYSFLAG_ABRIDGED
from latermq.message.stamp import Stamp
from latermq.message.takes import encode_takes
from latermq.message.timer_name import names_of, timer_name
from latermq.model.timers import Density, Outcome, PendingPage, Verdict
from latermq.store.block import Block
from latermq.store.log_reader import LogReader
from latermq.store.log_writer import Draft, LogWriter
from latermq.timer.admission import Admission, waiting_properties
from latermq.timer.directory import Directory, Entry, Fate, History
from latermq.timer.far.far_names import FarNames
from latermq.timer.intake.cancellations import CancelPlan
from latermq.timer.intake.timer_topic import GONE
from latermq.timer.service import TimerService
from latermq.timer.steps import Steps, at_once

MAX_STEPS_AT_ONCE = 2_000  # of a look-up for a cancel sent as a message: about 40 ms, in which other clients wait
_VERDICTS = {
    Fate.UNKNOWN: Verdict.NOT_FOUND,
    Fate.PENDING: Verdict.PENDING,
    Fate.CANCELLED: Verdict.CANCELLED,
    Fate.DELIVERED: Verdict.DELIVERED,
}


class SeenTimers(NamedTuple):
    """The timers of a name that a client has seen. By now the name may have others."""

    timer_ids: frozenset[int]  # to be cancelled or moved
    before_entry: int | None  # the client saw all timers first scheduled before it; None: only those in `timer_ids`

    def covers(self, pending: Iterable[Entry]) -> bool:
        """Whether a timer in `timer_ids` is pending and no unseen one is. A cancel or a move ends all of a name."""
        ids = {entry.timer_id for entry in pending}
        unseen = ids - self.timer_ids if self.before_entry is None else {one for one in ids if one >= self.before_entry}
        return bool(ids & self.timer_ids) and not unseen


class CancelEffect(NamedTuple):
    """The effect of a cancel or a move: the plan to apply, and the number of timers that it ends in each topic.

    `takes` are the due times of these timers, as the record of the cancel or the move states them.
    """

    plan: CancelPlan
    counts_by_topic: Counter[str]
    takes: str

    @property
    def timer_count(self) -> int:
        return self.counts_by_topic.total()


class PendingTimers:
    """Cancels, moves and finds timers by name. The order of the log decides, and one thread writes it."""

    def __init__(
        self,
        reader: LogReader,
        writer: LogWriter,
        timers: TimerService,
        far_names: FarNames,
        admission: Admission,
        clock: Clock,
        stamp: Stamp,
        *,
        store_host: bytes,
        max_steps: int,
        on_changed: Callable[[], None],
    ) -> None:
        self._reader, self._writer = reader, writer
        self._max_steps = max_steps
        self._timers = timers
        self._admission = admission
        self._clock = clock
        self._stamp = stamp
        self._store_host = store_host
        self._on_changed = on_changed
        self._far_names = far_names
        self._directory = Directory(reader, far_names, timers.marks.all_wake_from_ms)
        self._pages = PendingPages(reader, timers, self._directory)

    # Cancels

    def plan_cancel(self, names: Sequence[str]) -> tuple[str, CancelEffect]:
        """Return the first of these names with a known timer, else the first name, and the effect of cancelling it now.

        Call it before the cancel is stored: the index may fail because the disk is full, and nothing may fail later.
        """
        for name in names:
            histories = [self._look_up_at_once(*one) for one in names_of(name)]
            if any(history.fate != Fate.UNKNOWN for history in histories):
                return name, self.effect_on(entry for history in histories for entry in history.pending.values())
        return names[0], self.effect_on([])

    def _look_up_at_once(self, topic: str, unique_key: str) -> History:
        return at_once(self._directory.look_up(topic, unique_key, only_pending=True), MAX_STEPS_AT_ONCE)

    def _effect_of(self, history: History, topic: str, unique_key: str) -> CancelEffect:
        """Return the effect of cancelling or moving this name, and any other topic and key with the same text."""
        others = [one for one in names_of(timer_name(topic, unique_key)) if one != (topic, unique_key)]
        histories = [history, *(self._look_up_at_once(*one) for one in others)]
        return self.effect_on(entry for one in histories for entry in one.pending.values())

    def effect_on(self, pending: Iterable[Entry]) -> CancelEffect:
        """Return the effect of cancelling or moving these timers."""
        timers = list(pending)
        rows = [(one.entry, one.due_ms, one.physical_offset if one.size else GONE, one.size) for one in timers]
        entries, dues, physical, sizes = np.array(rows, np.int64).reshape(len(timers), 4).T
        return self.effect_on_columns(entries, dues, physical, sizes, Counter(one.topic for one in timers))

    def effect_on_columns(
        self, entries: Ints, dues: Ints, physical: Ints, sizes: Ints, counts_by_topic: Counter[str]
    ) -> CancelEffect:
        """Return the same for timers in columns."""
        plan = self._timers.cancellations.plan(entries, dues, physical, sizes)
        return CancelEffect(plan, counts_by_topic, encode_takes(dues.tolist()))

    def apply(self, entry: int, end_offset: int, effect: CancelEffect) -> None:
        """Apply a cancel or a move that was stored as `entry`. Nothing here can fail."""
        if not effect.counts_by_topic:
            return
        self._timers.cancellations.cancel(entry, end_offset, effect.plan)
        for topic, count in effect.counts_by_topic.items():
            self._timers.counters.leave(topic, count)

    def apply_each(self, by: Ints, ends: Ints, effect: CancelEffect) -> None:
        """Apply cancels and moves that were stored together, each of one timer. Nothing here can fail."""
        self._timers.cancellations.cancel_each(by, ends, effect.plan)
        for topic, count in effect.counts_by_topic.items():
            self._timers.counters.leave(topic, count)

    def note_changed(self, *, cancelled: int, moved: int) -> None:
        """Count the changes of a batch, and note that the next timer may be another one."""
        self._timers.tallies.cancelled += cancelled
        self._timers.tallies.moved += moved
        self._on_changed()

    def is_pending_steps(self, topic: str, unique_key: str, entry: int) -> Steps[bool]:
        """Return in steps whether this entry of a name is still pending."""
        history = yield from self._directory.look_up(topic, unique_key, only_pending=True)
        return entry in history.pending

    def status(self, topic: str, unique_key: str) -> Outcome:
        """Return the state of the timers of this name."""
        return at_once(self.status_steps(topic, unique_key), self._max_steps)

    def status_steps(self, topic: str, unique_key: str) -> Steps[Outcome]:
        """Do the same in steps."""
        history = yield from self._directory.look_up(topic, unique_key)
        return Outcome(_VERDICTS[history.fate], topic, unique_key, history.due_ms, len(history.pending))

    def cancel(self, topic: str, unique_key: str, seen: SeenTimers | None = None) -> Outcome:
        """Cancel every pending timer of this name. Do nothing if there is none, or one that the client has not seen."""
        return at_once(self.cancel_steps(topic, unique_key, seen), self._max_steps)

    def cancel_steps(self, topic: str, unique_key: str, seen: SeenTimers | None = None) -> Steps[Outcome]:
        """Do the same in steps. The last step looks up and writes."""
        history = yield from self._directory.look_up(topic, unique_key)
        refusal = _refusal(history, topic, unique_key, seen)
        if refusal is not None:
            return refusal
        now_ms = self._clock.now_ms()
        effect = self._effect_of(history, topic, unique_key)
        draft = self.cancel_draft(topic, timer_name(topic, unique_key), history.due_ms, effect.takes)
        (appended,) = self._writer.append_all([draft], self._writer.monotonic_store_ms(TIMER_TOPIC, now_ms))
        self.apply(appended.queue_offset, appended.end_offset, effect)
        self._timers.tallies.cancelled += effect.timer_count
        self._on_changed()
        return Outcome(Verdict.CANCELLED, topic, unique_key, history.due_ms, effect.timer_count)

    def cancel_draft(self, topic: str, name: str, due_ms: int, takes: str) -> Draft:
        """Return the record of a cancel."""
        encoded = cancel_properties(topic, name, due_ms, takes).encode()
        return Draft(TIMER_TOPIC, 0, CANCEL_BODY, encoded, self._clock.now_ms(), self._store_host)

    def cancel_block(
        self, topics: Sequence[str], topic_of: Indices, keys: Sequence[bytes], dues: Ints, hashes: Ints
    ) -> Block:
        """Return the records of cancels of many names with one timer each. `hashes` are theirs in the key index."""
        return cancel_block(topics, topic_of, keys, dues, hashes, self._clock.now_ms(), self._store_host)

    def cancel_key(self, topic: str, key: str) -> list[Outcome]:
        """Cancel the timers with this message key; return an outcome for each name."""
        return at_once(self.cancel_key_steps(topic, key), self._max_steps)

    def cancel_key_steps(self, topic: str, key: str) -> Steps[list[Outcome]]:
        """Do the same in steps."""
        outcomes = []
        for unique_key in (yield from self._directory.unique_keys(topic, key, MAX_NAMES)):
            outcomes.append((yield from self.cancel_steps(topic, unique_key)))
        return outcomes

    # Moves

    def records_to_fetch(self, topic: str, unique_key: str, key: str) -> list[tuple[int, int]]:
        """Return entries and due times of far timers that a move needs and whose records have left the log."""
        return at_once(self.records_to_fetch_steps(topic, unique_key, key), self._max_steps)

    def records_to_fetch_steps(self, topic: str, unique_key: str, key: str) -> Steps[list[tuple[int, int]]]:
        """Do the same in steps."""
        if not self._far_names.upto:
            return []
        names = (yield from self._directory.unique_keys(topic, key, MAX_NAMES)) if key else [unique_key]
        places = []
        for name in names:
            newest = _newest((yield from self._directory.look_up(topic, name, only_pending=True)))
            if newest is not None and not newest.size:
                places.append((newest.entry, newest.due_ms))
        return places

    def move(
        self,
        topic: str,
        unique_key: str,
        due_ms: int,
        fetched: Mapping[int, bytes] | None = None,
        seen: SeenTimers | None = None,
    ) -> Outcome:
        """Change the due time of the pending timers of this name. Do nothing if the client has not seen them all.

        A single record schedules the new timer and ends all earlier timers of its name. `fetched` contains records of
        far timers, by entry.
        """
        return at_once(self.move_steps(topic, unique_key, due_ms, fetched or {}, seen), self._max_steps)

    def move_steps(
        self,
        topic: str,
        unique_key: str,
        due_ms: int,
        fetched: Mapping[int, bytes],
        seen: SeenTimers | None = None,
    ) -> Steps[Outcome]:
        """Do the same in steps. The last step looks up and writes."""
        self.check_due(due_ms)
        history = yield from self._directory.look_up(topic, unique_key)
        refusal = _refusal(history, topic, unique_key, seen)
        if refusal is not None:
            return refusal
        now_ms = self._clock.now_ms()
        due_ms = max(due_ms, now_ms)
        newest = _newest(history)
        assert newest is not None
        effect = self._effect_of(history, topic, unique_key)
        draft = self.move_draft(newest, topic, due_ms, effect.takes, fetched)
        (appended,) = self._writer.append_all([draft], self._writer.monotonic_store_ms(TIMER_TOPIC, now_ms))
        self.apply(appended.queue_offset, appended.end_offset, effect)
        self._timers.pending[topic] += 1
        self._timers.tallies.moved += 1
        self._on_changed()
        return Outcome(Verdict.MOVED, topic, unique_key, due_ms, effect.timer_count)

    def check_due(self, due_ms: int) -> None:
        """Refuse a new due time that is not valid or too far ahead."""
        if due_ms < 0:
            raise InvalidParameter(f"{due_ms} is not a valid time", hint="Use milliseconds since 1970")
        self._admission.check_due(due_ms, self._clock.now_ms(), f"the new due time is {due_ms}")

    def move_draft(self, current: Entry, topic: str, due_ms: int, takes: str, fetched: Mapping[int, bytes]) -> Draft:
        """Return the record that moves a timer."""
        message = self._reader.read_message(current.physical_offset) if current.size else None
        if message is None:
            if current.entry not in fetched:
                raise ServiceUnavailable("the record of this timer has left the log and was not fetched", hint="Retry")
            message = decode_record(fetched[current.entry])
        properties = {
            name: value for name, value in message.properties.items() if name not in (TIMER_ROLL_TIMES, TAKES)
        }
        properties |= {TIMER_ID: str(current.timer_id), MOVE: "1"}
        queue_id = properties.get(REAL_QUEUE_ID, "")
        if not queue_id.isdecimal() or len(queue_id) > 9:
            raise InvalidParameter("the timer has no valid queue", hint="Cancel it; otherwise it becomes a dead letter")
        is_abridged = bool(message.sysflag & SYSFLAG_ABRIDGED)
        waiting = waiting_properties(properties, topic, int(queue_id), due_ms, is_abridged=is_abridged)
        most_bytes = MAX_PROPERTIES_BYTES - (self._stamp.most_bytes if is_abridged else 0)
        encoded = with_takes(encode_properties(waiting), takes, most_bytes).encode()
        if len(encoded) > most_bytes:
            raise InvalidParameter("the timer's properties are too large for a move", hint="Cancel it and send another")
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
        """Move the timers with this message key; return an outcome for each name."""
        return at_once(self.move_key_steps(topic, key, due_ms, fetched or {}), self._max_steps)

    def move_key_steps(self, topic: str, key: str, due_ms: int, fetched: Mapping[int, bytes]) -> Steps[list[Outcome]]:
        """Do the same in steps."""
        outcomes = []
        for unique_key in (yield from self._directory.unique_keys(topic, key, MAX_NAMES)):
            outcomes.append((yield from self.move_steps(topic, unique_key, due_ms, fetched)))
        return outcomes

    # Queries

    def list(
        self, *, topic: str = "", key: str = "", from_ms: int = 0, until_ms: int = 0, limit: int = 100, cursor: str = ""
    ) -> PendingPage:
        """Return a page of the pending timers due in [from, until); 0 means no bound."""
        steps = self.list_steps(DueRange(topic, from_ms, until_ms), key=key, limit=limit, cursor=cursor)
        return at_once(steps, self._max_steps)

    def list_steps(self, due_range: DueRange, *, key: str, limit: int, cursor: str) -> Steps[PendingPage]:
        """Do the same in steps."""
        return self._pages.list(due_range, key=key, limit=limit, cursor=cursor)

    def count(self, *, topic: str = "", key: str = "", from_ms: int = 0, until_ms: int = 0) -> int:
        """Return the number of these timers."""
        return at_once(self.count_steps(DueRange(topic, from_ms, until_ms), key=key), self._max_steps)

    def count_steps(self, due_range: DueRange, *, key: str) -> Steps[int]:
        """Do the same in steps."""
        return self._pages.count(due_range, key=key)

    def density(self) -> Density:
        """Return how many timers are due in each of the next seconds, minutes and hours."""
        return self._pages.density(self._clock.now_ms())


def with_takes(encoded: str, takes: str, max_bytes: int) -> str:
    """Return the properties of a cancel or a move with the due times that it takes, unless they do not fit."""
    longer = encoded + encode_properties({TAKES: takes}) if takes else encoded
    return longer if len(longer.encode()) <= max_bytes else encoded


def _refusal(history: History, topic: str, unique_key: str, seen: SeenTimers | None) -> Outcome | None:
    """Return the outcome of a cancel or a move that must do nothing; None if it may proceed."""
    if history.fate != Fate.PENDING:
        return Outcome(_VERDICTS[history.fate], topic, unique_key, history.due_ms)
    if seen is not None and not seen.covers(history.pending.values()):
        return Outcome(Verdict.REPLACED, topic, unique_key, history.due_ms)
    return None


def _newest(history: History) -> Entry | None:
    """Return the timer of a name that a move rewrites: the one scheduled last."""
    return max(history.pending.values(), key=lambda entry: entry.timer_id, default=None)
