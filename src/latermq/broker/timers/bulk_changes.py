"""Bulk cancels and moves: many names looked up together, and their records written together, in slices.

A name whose history is one record in the log, the timer itself, needs no look-up of its own. That is nearly every name
of a bulk job. All others take the way of a single request.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from latermq.arrays import Bools, Indices, Ints
from latermq.broker.timers.only_timers import NameColumns, OnlyTimers, find_only_timers
from latermq.broker.timers.pending import CancelEffect, PendingTimers, SeenTimers
from latermq.clock import Clock
from latermq.errors import LaterMQError
from latermq.message.names import TIMER_TOPIC
from latermq.message.takes import encode_takes
from latermq.model.timer_changes import NO_TIME, ChangeOutcomes, TimerChanges
from latermq.model.timers import Outcome
from latermq.store.block import pieces_of
from latermq.store.log_reader import LogReader
from latermq.store.log_writer import Draft, LogWriter
from latermq.timer.directory import Entry
from latermq.timer.far.far_names import FarNames
from latermq.timer.service import TimerService
from latermq.timer.steps import Result, Steps, spend, too_many_steps

# Names per slice, about 5 ms: of cancels, which are built as columns, and of any changes.
CANCELS_AT_ONCE, CHANGES_AT_ONCE = 500, 100
CANCELS_PER_STEP = 2
BLOCK_BYTES = 4 << 20  # of records written at once, unless a single one is larger
# The record of a cancel contains the key twice, and a record's properties are limited. Longer keys are changed alone,
# so that one which does not fit concerns no other.
MAX_PLAIN_KEY_BYTES = 4_096


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
        names = NameColumns(changes.topics, changes.topic_of.astype(np.intp), changes.unique_keys)
        for start, end in _slices(changes):
            own = names.rows(start, end)
            plain = self._plain_timers(changes, own, start)
            new_dues = changes.due_ms[start + plain.rows]
            cancelled, moved = plain.where(new_dues == NO_TIME), plain.where(new_dues != NO_TIME)
            self._cancel_plain(own, cancelled)
            problems = self._move_plain(own, moved, new_dues[new_dues != NO_TIME])
            for timers, verdict in ((cancelled, "cancelled"), (moved, "moved")):
                for row in timers.rows.tolist():
                    if row in problems:
                        outcomes.problems[start + row] = problems[row]
                    else:
                        outcomes.verdicts[start + row] = number_of[verdict]
            yield from spend(len(cancelled) // CANCELS_PER_STEP + len(moved))
            for row in np.setdiff1d(np.arange(end - start), plain.rows).tolist():
                try:
                    outcome = yield from self._change_alone(changes, start + row)
                    outcomes.verdicts[start + row] = number_of[outcome.verdict]
                except NeedsRecord:
                    outcomes.verdicts[start + row] = len(verdicts) - 1
                except LaterMQError as error:
                    if error.retriable:
                        raise
                    outcomes.problems[start + row] = error.remark
        return outcomes

    def _plain_timers(self, changes: TimerChanges, names: NameColumns, start: int) -> OnlyTimers:
        """Return the timers that can be changed without a look-up of their names' histories."""
        found = find_only_timers(self._reader, self._far_names, names)
        is_plain = _are_seen(changes, start + found.rows, found.timer_ids) & (found.dues > self._clock.now_ms())
        is_plain &= names.unique_keys.sizes[found.rows] <= MAX_PLAIN_KEY_BYTES
        new_dues = changes.due_ms[start + found.rows]
        for due_ms in np.unique(new_dues[new_dues != NO_TIME]).tolist():
            if not self._may_move(due_ms):
                is_plain &= new_dues != due_ms
        return found.where(is_plain)

    def _may_move(self, due_ms: int) -> bool:
        try:
            self._pending.check_due(due_ms)
        except LaterMQError:
            return False
        return True

    def _cancel_plain(self, names: NameColumns, timers: OnlyTimers) -> None:
        """Cancel these timers, in blocks that fit a segment."""
        if not len(timers):
            return
        all_keys = names.unique_keys.values()
        keys = [all_keys[row] for row in timers.rows.tolist()]
        block = self._pending.cancel_block(names.topics, timers.topic_of, keys, timers.dues, timers.cancel_hashes)
        for start, end in pieces_of(block.sizes, min(BLOCK_BYTES, self._writer.max_block_bytes)):
            effect = self._effect_on(timers.where(slice(start, end)), names.topics)
            part = block.part(start, end)
            (queue,) = self._writer.append_block(part)
            by = np.arange(queue.next_offset - len(part), queue.next_offset)
            ends = self._writer.log.end - part.size + np.cumsum(part.sizes)
            self._pending.apply_each(by, ends, effect)
            self._pending.note_changed(cancelled=end - start, moved=0)

    def _move_plain(self, names: NameColumns, timers: OnlyTimers, new_dues: Ints) -> dict[int, str]:
        """Move these timers, in blocks. Return the rows that cannot be moved, and why."""
        now_ms = self._clock.now_ms()
        problems: dict[int, str] = {}
        for start, end in pieces_of(timers.sizes, min(BLOCK_BYTES, self._writer.max_block_bytes // 2)):
            part, drafts, kept = timers.where(slice(start, end)), [], []
            for index, new_due_ms in enumerate(new_dues[start:end].tolist()):
                entry = part.entry(index, names.topics)
                try:
                    drafts.append(self._move_draft(entry, max(new_due_ms, now_ms)))
                    kept.append(index)
                except LaterMQError as error:
                    if error.retriable:
                        raise
                    problems[int(part.rows[index])] = error.remark
            if not drafts:
                continue
            effect = self._effect_on(part.where(np.array(kept)), names.topics)
            appended = self._writer.append_all(drafts, self._writer.monotonic_store_ms(TIMER_TOPIC, now_ms))
            by = np.array([one.queue_offset for one in appended], np.int64)
            ends = np.array([one.end_offset for one in appended], np.int64)
            self._pending.apply_each(by, ends, effect)
            for topic, count in effect.counts_by_topic.items():
                self._timers.pending[topic] += count
            self._pending.note_changed(cancelled=0, moved=len(drafts))
        return problems

    def _move_draft(self, entry: Entry, due_ms: int) -> Draft:
        return self._pending.move_draft(entry, entry.topic, due_ms, encode_takes([entry.due_ms]), {})

    def _effect_on(self, timers: OnlyTimers, topics: Sequence[str]) -> CancelEffect:
        counts = np.bincount(timers.topic_of, minlength=len(topics)).tolist()
        by_topic = Counter({topic: count for topic, count in zip(topics, counts, strict=True) if count})
        return self._pending.effect_on_columns(
            timers.entries, timers.dues, timers.physical_offsets, timers.sizes, by_topic
        )

    def _change_alone(self, changes: TimerChanges, row: int) -> Steps[Outcome]:
        topic, key = changes.topics[changes.topic_of[row]], changes.unique_key(row)
        due_ms, before = int(changes.due_ms[row]), int(changes.seen_before[row])
        seen = SeenTimers(changes.timer_ids(row), None if before == NO_TIME else before)
        if due_ms == NO_TIME:
            return (yield from self._bounded(self._pending.cancel_steps(topic, key, seen)))
        if (yield from self._bounded(self._pending.records_to_fetch_steps(topic, key, ""))):
            raise NeedsRecord
        return (yield from self._bounded(self._pending.move_steps(topic, key, due_ms, {}, seen)))

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


def _slices(changes: TimerChanges) -> Iterator[tuple[int, int]]:
    """Spans of rows that are changed without a pause."""
    start = 0
    while start < len(changes):
        is_cancel = changes.due_ms[start : start + CANCELS_AT_ONCE] == NO_TIME
        end = min(start + (CANCELS_AT_ONCE if is_cancel.all() else CHANGES_AT_ONCE), len(changes))
        yield start, end
        start = end


def _are_seen(changes: TimerChanges, rows: Indices, timer_ids: Ints) -> Bools:
    """Whether the client listed these timers, each the only one of its name. The same as `SeenTimers.covers`."""
    starts, counts = changes.id_offsets[rows], np.diff(changes.id_offsets)[rows]
    firsts = np.cumsum(counts) - counts
    at = np.arange(int(counts.sum())) + np.repeat(starts - firsts, counts)
    listed = changes.ids[at] == np.repeat(timer_ids, counts)
    before = changes.seen_before[rows]
    known: Bools = np.logical_or.reduceat(listed, firsts) if len(rows) else np.zeros(0, bool)
    known &= (before == NO_TIME) | (timer_ids < before)
    return known
