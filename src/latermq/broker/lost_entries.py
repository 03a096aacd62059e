"""Entries of the timer topic that a store lacks because it was put back from an old copy, and a timeline still holds.

Their numbers must not be given out again: new timers would be taken for those that Spark holds, and one of the two
would be lost. So what the timeline knows is written again under the very numbers it had: far timers, cancels and moves
as they were, and blanks for all else. Cancels and moves act again on what the copy holds.
"""

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from latermq.broker.broker import Broker
from latermq.message.cut import FOREVER_MS, Cut, blank_properties
from latermq.message.ids import pack_host
from latermq.message.names import TIMER_TOPIC
from latermq.message.properties import encode_properties
from latermq.message.record import decode_record, record_properties
from latermq.message.timer_code import TIMER, real_topic, timer_kind
from latermq.store.message_store import Draft
from latermq.timer.directory import NAME_SEPARATOR
from latermq.timer.far_names import Waiting

WRITTEN_AT_ONCE = 1_000


class Lost(NamedTuple):
    """What a timeline holds of a store beyond the store's own end."""

    end: int  # the timeline may hold entries below it
    epoch: int  # of the driver that wrote it last
    ingested: int  # the timeline holds all entries below it
    far_from_ms: int  # when the first and
    far_until_ms: int  # the last of its far timers are due, of those that the store lacks
    newest_window: int  # that was ever rolled


class LostRow(NamedTuple):
    """A row of the timeline: a far timer or a move with its record, or a cancel with the name that it takes."""

    entry: int
    due_ms: int
    record: bytes
    cancels: str


class LostEntries:
    """Writes them again; nobody is served meanwhile. A death on the way leaves the rest to the next start."""

    def __init__(self, broker: Broker, lost: Lost) -> None:
        self._broker = broker
        self._far = broker.far
        self._lost = lost
        self._now_ms = broker.clock.now_ms()
        properties = encode_properties(blank_properties(self._now_ms)).encode()
        self._blank = Draft(TIMER_TOPIC, 0, b"", properties, self._now_ms, broker.store_host)
        self._drafts: list[Draft] = []
        self._placed: deque[int] = deque()  # entries that are no blanks, of those on their way

    def write(self, rows: Iterable[LostRow]) -> int:
        """Write what is missing up to the end that the timeline claims; `rows` are in order. How many there were."""
        last = self._far.frontier.last
        handback_ms = last.handback_ms if last is not None else self._now_ms
        frontier_ms = last.frontier_ms if last is not None else FOREVER_MS
        if self._lost.far_from_ms < frontier_ms:
            # The last cut of the copy would give the broker what is Spark's.
            self._far.append([], self._far.cut_at(self._far.next_entry, handback_ms, handback_ms))
        count = 0
        for row in rows:
            count += 1
            if row.entry < self._next:
                self._keep_name(row)  # the cut stands where it stood
                continue
            self._fill(row.entry)
            self._placed.append(row.entry)
            self._add(self._draft(row))
        self._fill(self._lost.end)
        # In one block with what comes last, so that whoever starts next finds it too or finds entries missing.
        cut = self._far.cut_at(self._next, frontier_ms, handback_ms)
        number = max(cut.number, self._lost.newest_window + 1)
        self._append(cut._replace(number=number, far_until_ms=max(cut.far_until_ms, self._lost.far_until_ms)))
        self._broker.ingest.go_on_from(self._lost.ingested, self._lost.epoch)
        self._broker.store.flush()
        self._broker.ingest.save()
        return count

    @property
    def _next(self) -> int:
        return self._far.next_entry + len(self._drafts)

    def _fill(self, upto: int) -> None:
        for _ in range(upto - self._next):
            self._add(self._blank)

    def _add(self, draft: Draft) -> None:
        self._drafts.append(draft)
        if len(self._drafts) == WRITTEN_AT_ONCE:
            self._append(None)

    def _append(self, cut: Cut | None) -> None:
        drafts, self._drafts = self._drafts, []
        if cut is None:
            not_before_ms = self._broker.store.not_before_last(TIMER_TOPIC, self._now_ms)
            appended = self._broker.store.append_all(drafts, not_before_ms)
        else:
            appended = self._far.append(drafts, cut)
        pending = self._broker.timers.pending
        for draft, place in zip(drafts, appended, strict=False):
            if not self._placed or self._placed[0] != place.queue_offset:
                continue
            self._placed.popleft()
            if timer_kind(draft.properties) == TIMER:
                pending[real_topic(draft.properties)] += 1
            else:
                self._broker.pending.act_again(place.physical_offset, place.queue_offset)

    def _draft(self, row: LostRow) -> Draft:
        if row.cancels:
            return self._broker.pending.cancel_draft(row.cancels.partition(NAME_SEPARATOR)[0], row.cancels, row.due_ms)
        message = decode_record(row.record)
        return Draft(
            TIMER_TOPIC,
            0,
            message.body,
            record_properties(row.record),
            message.born_timestamp_ms,
            pack_host(*message.born_host),
            message.flag,
            message.sysflag,
            message.reconsume_times,
        )

    def _keep_name(self, row: LostRow) -> None:
        if row.record:
            properties = record_properties(row.record)
            self._far.keep_name(Waiting(row.entry, timer_kind(properties), row.due_ms, True, properties))
            self._broker.timers.pending[real_topic(properties)] += 1
