"""Bulk cancels and moves: many names looked up together, and their records written together, in slices.

A name whose history is one record in the log, the timer itself, needs no look-up of its own. That is nearly every name
of a bulk job. All others take the way of a single request.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from latermq.arrays import Bools, Ints
from latermq.broker.timers.pending import PendingTimers, SeenTimers
from latermq.clock import Clock
from latermq.errors import LaterMQError
from latermq.message.names import TIMER_DEAD_LETTER_TOPIC, TIMER_TOPIC
from latermq.message.properties import (
    DUE_MS,
    REAL_TOPIC,
    TIMER_ID,
    UNIQUE_KEY,
    find_property,
)
from latermq.message.record import layout
from latermq.message.record_fields import I64, QUEUE_OFFSET_AT
from latermq.message.takes import encode_takes
from latermq.message.timer_code import TIMER, is_due, timer_id_of, timer_kind
from latermq.message.timer_name import SEPARATOR, timer_name
from latermq.model.rows import Column
from latermq.model.timer_changes import NO_TIME, ChangeOutcomes, TimerChanges
from latermq.model.timers import Outcome
from latermq.store.dispatch import HashedKeys
from latermq.store.log_reader import LogReader
from latermq.store.log_writer import Draft, LogWriter
from latermq.timer.directory import Entry
from latermq.timer.far.far_names import FarNames
from latermq.timer.service import TimerService
from latermq.timer.steps import Result, Steps, spend, too_many_steps

AT_ONCE = 200  # names per slice: about 5 ms
BLOCK_BYTES = 4 << 20  # of records moved at once, unless a single one is larger
_SEPARATOR = SEPARATOR.encode()
_DUE, _ID, _KEY, _TOPIC = DUE_MS.encode(), TIMER_ID.encode(), UNIQUE_KEY.encode(), REAL_TOPIC.encode()


class NeedsRecord(Exception):
    """A move needs a record that has left the log. A single request fetches it from the timeline."""


class BulkChanges:
    """Changes many timers. Called by the appending thread, which serves other requests between the slices."""

    def __init__(
        self,
        reader: LogReader,
        writer: LogWriter,
        pending: PendingTimers,
        timers: TimerService,
        far_names: FarNames,
        clock: Clock,
        *,
        max_steps: int,
    ) -> None:
        """`max_steps` bounds the look-up of one name."""
        self._reader = reader
        self._writer = writer
        self._pending = pending
        self._timers = timers
        self._far_names = far_names
        self._clock = clock
        self._max_steps = max_steps

    def change_steps(self, changes: TimerChanges, verdicts: Sequence[str]) -> Steps[ChangeOutcomes]:
        """Cancel or move each name as a single request would; each slice is complete when it ends.

        `verdicts` are the outcomes by number; the last but one is a refusal, and the last a name that must be sent
        alone. If the store fails, some names were changed. They have the same outcome when they are sent again.
        """
        number_of = {verdict: number for number, verdict in enumerate(verdicts)}
        outcomes = ChangeOutcomes([number_of[verdicts[-2]]] * len(changes))
        names = _Names(changes)
        for start in range(0, len(changes), AT_ONCE):
            rows = range(start, min(start + AT_ONCE, len(changes)))
            plain = self._plain_timers(names, rows)
            for part in _parts(plain):
                self._change_plain(names, part)
            for row in plain:
                verdict = "cancelled" if names.due_ms[row] == NO_TIME else "moved"
                outcomes.verdicts[row] = number_of[verdict]
            yield from spend(len(rows))
            for row in rows:
                if row not in plain:
                    try:
                        outcome = yield from self._change_alone(names, row)
                        outcomes.verdicts[row] = number_of[outcome.verdict]
                    except NeedsRecord:
                        outcomes.verdicts[row] = len(verdicts) - 1
                    except LaterMQError as error:
                        if error.retriable:
                            raise
                        outcomes.problems[row] = error.remark
        return outcomes

    def _plain_timers(self, names: "_Names", rows: range) -> dict[int, Entry]:
        """The only timer of each of these names, where the index proves that it is the only one and pending."""
        only, offsets = self._only_records(names, rows)
        found: dict[int, Entry] = {}
        now_ms = self._clock.now_ms()
        for index in np.flatnonzero(only).tolist():
            row = rows[index]
            topic, key = names.topics[names.topic_of[row]], names.keys[row]
            entry = self._timer_at(int(offsets[index]), topic, key)
            is_plain = entry is not None and names.seen[row].covers([entry]) and entry.due_ms > now_ms
            # With a separator, another topic and key may have the same text as their name.
            if is_plain and _SEPARATOR not in key and SEPARATOR not in topic and self._may_move(names.due_ms[row]):
                assert entry is not None
                found[row] = entry
        return found

    def _may_move(self, due_ms: int) -> bool:
        if due_ms == NO_TIME:
            return True
        try:
            self._pending.check_due(due_ms)
        except LaterMQError:
            return False
        return True

    def _only_records(self, names: "_Names", rows: range) -> tuple[Bools, Ints]:
        """Which names the index has once, as a timer, and the log offset of that record."""
        hashed = names.hashed(rows)
        topic_of = np.array(names.topic_of[rows.start : rows.stop], np.intp)
        same = np.zeros_like(topic_of)
        schedules = hashed.under([f"{TIMER_TOPIC}#"], same)
        hits, offsets = self._reader.find_hashes(schedules)
        counts = np.bincount(hits, minlength=len(rows))
        # Of two names with the same hash, which may be the same name, the second must see what the first one did.
        _, firsts, repeats = np.unique(schedules, return_inverse=True, return_counts=True)
        only: Bools = (counts == 1) & (repeats[firsts] == 1)
        at = np.zeros(len(rows), np.int64)
        at[hits] = offsets
        prefixes = [
            ([f"{topic}#" for topic in names.topics], topic_of),
            ([f"{TIMER_TOPIC}#{topic}{SEPARATOR}" for topic in names.topics], topic_of),
        ]
        if self._reader.queues.find(TIMER_DEAD_LETTER_TOPIC, 0) is not None:
            prefixes.append(([f"{TIMER_DEAD_LETTER_TOPIC}#"], same))
        for texts, prefix_of in prefixes:
            more, _ = self._reader.find_hashes(hashed.under(texts, prefix_of))
            only[more] = False
        if self._far_names.upto:
            both = [(names.topics[names.topic_of[row]], names.keys[row]) for row in rows]
            only &= ~np.array(self._far_names.known(both, 0), bool)
        return only, at

    def _timer_at(self, offset: int, topic: str, key: bytes) -> Entry | None:
        """The timer whose record is at this log offset; None if it is anything else. About 8 µs."""
        record = self._reader.log.read_record(offset)
        parts = layout(record, 0, len(record)) if record is not None else None
        if record is None or parts is None:
            return None
        properties = record[parts.properties_at :]
        due = find_property(properties, _DUE)
        is_named = find_property(properties, _KEY) == key and find_property(properties, _TOPIC) == topic.encode()
        if not is_named or not due or not is_due(due) or timer_kind(properties) != TIMER:
            return None
        number = I64.unpack_from(record, QUEUE_OFFSET_AT)[0]
        timer_id = timer_id_of(find_property(properties, _ID) or b"", number)
        return Entry(number, timer_id, int(due), topic, offset, len(record))

    def _change_plain(self, names: "_Names", timers: dict[int, Entry]) -> None:
        """Write and apply the changes of these timers, as one block."""
        now_ms = self._clock.now_ms()
        entries = list(timers.values())
        drafts = [self._draft(names, row, entry, now_ms) for row, entry in timers.items()]
        effect = self._pending.effect_on(entries)
        store_ms = self._writer.monotonic_store_ms(TIMER_TOPIC, now_ms)
        appended = self._writer.append_all(drafts, store_ms)
        by = np.array([one.queue_offset for one in appended], np.int64)
        ends = np.array([one.end_offset for one in appended], np.int64)
        self._pending.apply_each(by, ends, effect)
        moved = Counter(entry.topic for row, entry in timers.items() if names.due_ms[row] != NO_TIME)
        for topic, count in moved.items():
            self._timers.pending[topic] += count
        self._pending.note_changed(cancelled=len(timers) - moved.total(), moved=moved.total())

    def _draft(self, names: "_Names", row: int, entry: Entry, now_ms: int) -> Draft:
        due_ms, takes = names.due_ms[row], encode_takes([entry.due_ms])
        if due_ms != NO_TIME:
            return self._pending.move_draft(entry, entry.topic, max(due_ms, now_ms), takes, {})
        name = timer_name(entry.topic, names.keys[row].decode())
        return self._pending.cancel_draft(entry.topic, name, entry.due_ms, takes)

    def _change_alone(self, names: "_Names", row: int) -> Steps[Outcome]:
        topic, key = names.topics[names.topic_of[row]], names.keys[row].decode()
        due_ms = names.due_ms[row]
        if due_ms == NO_TIME:
            return (yield from self._bounded(self._pending.cancel_steps(topic, key, names.seen[row])))
        if (yield from self._bounded(self._pending.records_to_fetch_steps(topic, key, ""))):
            raise NeedsRecord
        return (yield from self._bounded(self._pending.move_steps(topic, key, due_ms, {}, names.seen[row])))

    def _bounded(self, steps: Steps[Result]) -> Steps[Result]:
        for _ in range(self._max_steps):
            try:
                next(steps)
            except StopIteration as stop:
                result: Result = stop.value
                return result
            yield
        steps.close()
        raise too_many_steps(self._max_steps)


class _Names:
    """The changes as Python values, converted once."""

    def __init__(self, changes: TimerChanges) -> None:
        self.topics = changes.topics
        self.topic_of: list[int] = changes.topic_of.tolist()
        self.keys = changes.unique_keys.values()
        self.due_ms: list[int] = changes.due_ms.tolist()
        self.seen = [
            SeenTimers(ids, None if before == NO_TIME else before)
            for ids, before in zip(changes.timer_ids(), changes.seen_before.tolist(), strict=True)
        ]
        self._column = changes.unique_keys

    def hashed(self, rows: range) -> HashedKeys:
        """The keys of these rows, for look-ups in the index."""
        column: Column = self._column
        offsets = column.offsets[rows.start : rows.stop + 1]
        return HashedKeys(column.data[int(offsets[0]) : int(offsets[-1])], offsets - offsets[0])


def _parts(timers: dict[int, Entry]) -> Iterator[dict[int, Entry]]:
    """Parts of these timers whose records fit into a block."""
    part: dict[int, Entry] = {}
    size_bytes = 0
    for row, entry in timers.items():
        if part and size_bytes + entry.size > BLOCK_BYTES:
            yield part
            part, size_bytes = {}, 0
        part[row] = entry
        size_bytes += entry.size
    if part:
        yield part
