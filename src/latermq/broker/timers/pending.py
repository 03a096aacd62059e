"""Timers that wait, as their owners see them: cancelled, moved, looked up, listed and counted."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from latermq.broker.timers.pending_pages import MAX_NAMES, DueRange, PendingPages
from latermq.clock import Clock
from latermq.errors import InvalidParameter, ServiceUnavailable
from latermq.message.ids import pack_host
from latermq.message.names import TIMER_TOPIC
from latermq.message.properties import (
    MAX_PROPERTIES_BYTES,
    MOVE,
    REAL_QUEUE_ID,
    TAGS,
    TIMER_DELETE_KEY,
    TIMER_DELIVER_MS,
    TIMER_ID,
    TIMER_ROLL_TIMES,
    UNIQUE_KEY,
    encode_properties,
)
from latermq.message.record import decode_record
from latermq.message.timer_name import names_of, timer_name
from latermq.model.timers import Density, Outcome, PendingPage, Verdict
from latermq.store.log_reader import LogReader
from latermq.store.log_writer import Draft, LogWriter
from latermq.timer.admission import Admission, waiting_properties
from latermq.timer.directory import RECALL_TAG, Directory, Entry, Fate, History
from latermq.timer.far.far_names import FarNames
from latermq.timer.intake.cancellations import CancelPlan
from latermq.timer.intake.timer_topic import GONE
from latermq.timer.service import TimerService
from latermq.timer.steps import Steps, at_once

MAX_STEPS_AT_ONCE = 2_000  # of a look-up for a cancel that is sent as a message: some 40 ms, and others wait meanwhile
_VERDICTS = {
    Fate.UNKNOWN: Verdict.NOT_FOUND,
    Fate.PENDING: Verdict.PENDING,
    Fate.CANCELLED: Verdict.CANCELLED,
    Fate.DELIVERED: Verdict.DELIVERED,
}


class SeenTimers(NamedTuple):
    """Which timers of a name whoever asks has seen: a name may stand for others by now."""

    timer_ids: frozenset[int]
    before: int | None  # all timers first scheduled before this entry were seen; None: only those of the ids were

    def is_all(self, pending: Iterable[Entry]) -> bool:
        """Whether one that is meant is pending, and none that was not seen. A cancel or a move ends all of a name."""
        ids = {entry.timer_id for entry in pending}
        unseen = ids - self.timer_ids if self.before is None else {one for one in ids if one >= self.before}
        return bool(ids & self.timer_ids) and not unseen


class Toll(NamedTuple):
    """All that a cancel or a move ends: what is to be done for it, and how many timers wait no longer."""

    plan: CancelPlan
    topics: Counter[str]

    @property
    def timers(self) -> int:
        return self.topics.total()


class PendingTimers:
    """Acts on timers by their names. The order of the log is the verdict, and one thread writes it."""

    def __init__(
        self,
        reader: LogReader,
        writer: LogWriter,
        timers: TimerService,
        far_names: FarNames,
        admission: Admission,
        clock: Clock,
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
        self._store_host = store_host
        self._on_changed = on_changed
        self._far_names = far_names
        self._directory = Directory(reader, far_names, timers.marks.all_wake_from_ms)
        self._pages = PendingPages(reader, timers, self._directory)

    # Cancelling

    def pending_under(self, names: Sequence[str]) -> tuple[str, Toll]:
        """Which of these names a cancel means, the first under which a timer is known, and what it would cancel now.

        Asked before the cancel is stored: the index may fail for want of space, and nothing may fail afterwards.
        """
        for name in names:
            histories = [self._look_up_at_once(*one) for one in names_of(name)]
            if any(history.fate != Fate.UNKNOWN for history in histories):
                return name, self._toll(entry for history in histories for entry in history.pending.values())
        return names[0], self._toll([])

    def _look_up_at_once(self, topic: str, unique_key: str) -> History:
        return at_once(self._directory.look_up(topic, unique_key, only_pending=True), MAX_STEPS_AT_ONCE)

    def _toll_of(self, history: History, topic: str, unique_key: str) -> Toll:
        """What a cancel or a move of this name ends: also what another topic and key have the same text for."""
        others = [one for one in names_of(timer_name(topic, unique_key)) if one != (topic, unique_key)]
        histories = [history, *(self._look_up_at_once(*one) for one in others)]
        return self._toll(entry for one in histories for entry in one.pending.values())

    def _toll(self, entries_ended: Iterable[Entry]) -> Toll:
        ended = list(entries_ended)
        columns = [(one.entry, one.due_ms, one.physical_offset if one.size else GONE, one.size) for one in ended]
        entries, dues, physical, sizes = np.array(columns, np.int64).reshape(len(ended), 4).T
        plan = self._timers.cancellations.plan(entries, dues, physical, sizes)
        return Toll(plan, Counter(one.topic for one in ended))

    def act(self, entry: int, end_offset: int, toll: Toll) -> None:
        """A cancel or a move was stored as `entry`, and ends what it was going to end. Nothing here can fail."""
        if not toll.topics:
            return
        self._timers.cancellations.cancel(entry, end_offset, toll.plan)
        for topic, number in toll.topics.items():
            self._timers.counters.leave(topic, number)

    def is_pending_steps(self, topic: str, unique_key: str, entry: int) -> Steps[bool]:
        """Whether this very entry of a name waits still."""
        history = yield from self._directory.look_up(topic, unique_key, only_pending=True)
        return entry in history.pending

    def status(self, topic: str, unique_key: str) -> Outcome:
        """What became of the timers of this name."""
        return at_once(self.status_steps(topic, unique_key), self._max_steps)

    def status_steps(self, topic: str, unique_key: str) -> Steps[Outcome]:
        """The same, a piece at a time."""
        history = yield from self._directory.look_up(topic, unique_key)
        return Outcome(_VERDICTS[history.fate], topic, unique_key, history.due_ms, len(history.pending))

    def cancel(self, topic: str, unique_key: str, seen: SeenTimers | None = None) -> Outcome:
        """Cancel every timer of this name that is pending now; where none is, or not what is meant, it does nothing."""
        return at_once(self.cancel_steps(topic, unique_key, seen), self._max_steps)

    def cancel_steps(self, topic: str, unique_key: str, seen: SeenTimers | None = None) -> Steps[Outcome]:
        """The same, a piece at a time; the last piece looks and writes."""
        history = yield from self._directory.look_up(topic, unique_key)
        refused = _refused(history, topic, unique_key, seen)
        if refused is not None:
            return refused
        now_ms = self._clock.now_ms()
        toll = self._toll_of(history, topic, unique_key)
        draft = self.cancel_draft(topic, timer_name(topic, unique_key), history.due_ms)
        (appended,) = self._writer.append_all([draft], self._writer.monotonic_store_ms(TIMER_TOPIC, now_ms))
        self.act(appended.queue_offset, appended.end_offset, toll)
        self._timers.tallies.cancelled += toll.timers
        self._on_changed()
        return Outcome(Verdict.CANCELLED, topic, unique_key, history.due_ms, toll.timers)

    def cancel_draft(self, topic: str, name: str, due_ms: int) -> Draft:
        """The record of a cancel."""
        properties = {TIMER_DELIVER_MS: str(due_ms), TIMER_DELETE_KEY: name, UNIQUE_KEY: name, TAGS: RECALL_TAG}
        encoded = encode_properties(waiting_properties(properties, topic, 0, due_ms)).encode()
        return Draft(TIMER_TOPIC, 0, b"0", encoded, self._clock.now_ms(), self._store_host)

    def cancel_key(self, topic: str, key: str) -> list[Outcome]:
        """Cancel what was scheduled with this message key: an outcome for each name."""
        return at_once(self.cancel_key_steps(topic, key), self._max_steps)

    def cancel_key_steps(self, topic: str, key: str) -> Steps[list[Outcome]]:
        """The same, a piece at a time."""
        outcomes = []
        for unique_key in (yield from self._directory.unique_keys(topic, key, MAX_NAMES)):
            outcomes.append((yield from self.cancel_steps(topic, unique_key)))
        return outcomes

    # Moving

    def records_to_fetch(self, topic: str, unique_key: str, key: str) -> list[tuple[int, int]]:
        """What a move needs that has left the log: entries of far timers and their due times."""
        return at_once(self.fetch_steps(topic, unique_key, key), self._max_steps)

    def fetch_steps(self, topic: str, unique_key: str, key: str) -> Steps[list[tuple[int, int]]]:
        """The same, a piece at a time."""
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
        """Give what is pending under this name another due time, unless it is not what was meant.

        One record does it, which schedules itself and ends all that was scheduled before under its name. `fetched` are
        records of far timers, by entry.
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
        """The same, a piece at a time; the last piece looks and writes."""
        if due_ms < 0:
            raise InvalidParameter(f"{due_ms} is no time", hint="Give milliseconds since 1970")
        self._admission.check_due(due_ms, self._clock.now_ms(), f"the new due time is {due_ms}")
        history = yield from self._directory.look_up(topic, unique_key)
        refused = _refused(history, topic, unique_key, seen)
        if refused is not None:
            return refused
        now_ms = self._clock.now_ms()
        due_ms = max(due_ms, now_ms)
        newest = _newest(history)
        assert newest is not None
        toll = self._toll_of(history, topic, unique_key)
        moved = self._moved(newest, topic, due_ms, fetched)
        (appended,) = self._writer.append_all([moved], self._writer.monotonic_store_ms(TIMER_TOPIC, now_ms))
        self.act(appended.queue_offset, appended.end_offset, toll)
        self._timers.pending[topic] += 1
        self._timers.tallies.moved += 1
        self._on_changed()
        return Outcome(Verdict.MOVED, topic, unique_key, due_ms, toll.timers)

    def _moved(self, current: Entry, topic: str, due_ms: int, fetched: Mapping[int, bytes]) -> Draft:
        message = self._reader.read_message(current.physical_offset) if current.size else None
        if message is None:
            if current.entry not in fetched:
                raise ServiceUnavailable(
                    "the record of this timer has left the log and is not at hand", hint="Try again in a moment"
                )
            message = decode_record(fetched[current.entry])
        properties = {name: value for name, value in message.properties.items() if name != TIMER_ROLL_TIMES}
        properties |= {TIMER_ID: str(current.timer_id), MOVE: "1"}
        queue_id = properties.get(REAL_QUEUE_ID, "")
        if not queue_id.isdecimal() or len(queue_id) > 9:
            raise InvalidParameter("the timer names no queue", hint="Cancel it; it would become a dead letter")
        waiting = waiting_properties(properties, topic, int(queue_id), due_ms)
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
        return at_once(self.move_key_steps(topic, key, due_ms, fetched or {}), self._max_steps)

    def move_key_steps(self, topic: str, key: str, due_ms: int, fetched: Mapping[int, bytes]) -> Steps[list[Outcome]]:
        """The same, a piece at a time."""
        outcomes = []
        for unique_key in (yield from self._directory.unique_keys(topic, key, MAX_NAMES)):
            outcomes.append((yield from self.move_steps(topic, unique_key, due_ms, fetched)))
        return outcomes

    # Looking

    def list(
        self, *, topic: str = "", key: str = "", from_ms: int = 0, until_ms: int = 0, limit: int = 100, cursor: str = ""
    ) -> PendingPage:
        """A page of what is pending and due in [from, until), where 0 is no bound."""
        steps = self.list_steps(DueRange(topic, from_ms, until_ms), key=key, limit=limit, cursor=cursor)
        return at_once(steps, self._max_steps)

    def list_steps(self, asked: DueRange, *, key: str, limit: int, cursor: str) -> Steps[PendingPage]:
        """The same, a piece at a time."""
        return self._pages.list(asked, key=key, limit=limit, cursor=cursor)

    def count(self, *, topic: str = "", key: str = "", from_ms: int = 0, until_ms: int = 0) -> int:
        """How many of them there are."""
        return at_once(self.count_steps(DueRange(topic, from_ms, until_ms), key=key), self._max_steps)

    def count_steps(self, asked: DueRange, *, key: str) -> Steps[int]:
        """The same, a piece at a time."""
        return self._pages.count(asked, key=key)

    def density(self) -> Density:
        """How many timers are due in each of the coming seconds, minutes and hours."""
        return self._pages.density(self._clock.now_ms())


def _refused(history: History, topic: str, unique_key: str, seen: SeenTimers | None) -> Outcome | None:
    """Why a cancel or a move does nothing; None where it acts."""
    if history.fate != Fate.PENDING:
        return Outcome(_VERDICTS[history.fate], topic, unique_key, history.due_ms)
    if seen is not None and not seen.is_all(history.pending.values()):
        return Outcome(Verdict.REPLACED, topic, unique_key, history.due_ms)
    return None


def _newest(history: History) -> Entry | None:
    """The timer of a name that a move writes again: the one that was scheduled last."""
    return max(history.pending.values(), key=lambda entry: entry.timer_id, default=None)
