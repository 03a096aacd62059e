"""Queries of pending timers: pages, counts, and their distribution over time.

Every request reads a bounded number of records, because other clients wait meanwhile.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from latermq.arrays import Ints
from latermq.errors import InvalidParameter
from latermq.message.names import TIMER_TOPIC
from latermq.message.properties import KEYS, REAL_QUEUE_ID, REAL_TOPIC, TAGS, TIMER_ID, UNIQUE_KEY, find_property
from latermq.message.record import Message, decode_record, record_properties
from latermq.message.slots import SLOT_MS, last_slot_start, slot_of
from latermq.message.timer_code import is_timer_code, kinds_and_dues
from latermq.model.timers import Density, PendingPage, PendingTimer
from latermq.store.log_reader import LogReader
from latermq.store.queues.consume_queue import ENTRY_DTYPE
from latermq.timer.directory import Directory, Entry
from latermq.timer.service import TimerService
from latermq.timer.steps import Steps, spend

SAMPLE_BYTES = 64
MAX_NAMES = 1_000  # unique keys looked up for one message key, about 0.2 ms each
ROWS_PER_STEP = 50  # entries read without their records
ROWS_AT_ONCE = 1_000  # entries read before other work gets its turn
MAX_SLOTS = 2_000  # seconds read by one request: 0.03 ms each
MAX_SCANNED = 5_000  # records whose topic is checked for one page: 3 µs each
MAX_COUNTED = 50_000  # the same for a count
MAX_ROWS = 2_000_000  # entries read by a count without a topic, without their records: 0.1 µs each
_HOUR_S, _DAY_S = 3_600, 86_400
_MAX_VALUE = (1 << 62) - 1
_CURSOR_DIGITS = len(str(_MAX_VALUE))
_REAL_TOPIC = REAL_TOPIC.encode()


class DueRange(NamedTuple):
    """Timers of a topic, or of all topics if it is empty, due in [from, until); 0 means no bound."""

    topic: str
    from_ms: int
    until_ms: int


class _Row(NamedTuple):
    wake_ms: int
    entry: int
    physical_offset: int
    size: int
    due_ms: int


class _Chunk(NamedTuple):
    """Some rows as columns; or no rows and the cursor of the next page."""

    wakes: Ints
    entries: Ints
    physical_offsets: Ints
    sizes: Ints
    dues: Ints
    next_cursor: str = ""

    def rows(self) -> Iterator[_Row]:
        return map(_Row._make, zip(*(column.tolist() for column in self[:5]), strict=True))


_NONE: Ints = np.empty(0, np.int64)
_EMPTY = _Chunk(_NONE, _NONE, _NONE, _NONE, _NONE)


class PendingPages:
    """Reads the pending timers in the engine, and those not yet put into it."""

    def __init__(self, reader: LogReader, timers: TimerService, directory: Directory) -> None:
        self._reader = reader
        self._timers = timers
        self._directory = directory

    def list(self, due_range: DueRange, *, key: str, limit: int, cursor: str) -> Steps[PendingPage]:
        """Return a page in wake order: by due time, or by renewal time for timers that are renewed first.

        A short or empty page may have a next page.
        """
        start = _parse_cursor(cursor)
        if key:
            return (yield from self._list_key(due_range, key, limit, start))
        page = PendingPage()
        topic = due_range.topic.encode()
        scanned = 0
        for chunk in self._chunks(due_range, start, min(limit + 1, ROWS_AT_ONCE)):
            if chunk.next_cursor:
                page.next = chunk.next_cursor
                return page
            for row in chunk.rows():
                if len(page.timers) >= limit or scanned >= MAX_SCANNED:
                    return page
                scanned += 1
                page.next = f"{row.wake_ms}:{row.entry}"
                record = self._reader.log.read(row.physical_offset, row.size)
                if not topic or find_property(record_properties(record), _REAL_TOPIC) == topic:
                    page.timers.append(_pending_timer(decode_record(record), row.due_ms, page.next))
            yield from spend(1 + len(chunk.entries))
        page.next = ""
        return page

    def count(self, due_range: DueRange, *, key: str) -> Steps[int]:
        """Return the number of pending timers."""
        if key:
            return len((yield from self._with_key(due_range, key)))
        if not due_range.from_ms and not due_range.until_ms:
            return self._timers.pending[due_range.topic] if due_range.topic else self._timers.pending.total()
        topic = due_range.topic.encode()
        count = scanned = 0
        for chunk in self._chunks(due_range, (0, -1), ROWS_AT_ONCE):
            scanned += len(chunk.entries)
            if chunk.next_cursor or scanned > (MAX_COUNTED if topic else MAX_ROWS):
                raise InvalidParameter(
                    f"the range spans more than {MAX_SLOTS} seconds with timers, or at least {scanned} timers",
                    hint="Request a smaller range, or the density",
                )
            if not topic:
                count += len(chunk.entries)
                yield from spend(1 + len(chunk.entries) // ROWS_PER_STEP)
                continue
            for row in chunk.rows():
                record = self._reader.log.read(row.physical_offset, row.size)
                count += find_property(record_properties(record), _REAL_TOPIC) == topic
            yield from spend(1 + len(chunk.entries))
        return count

    def _chunks(self, due_range: DueRange, start: tuple[int, int], limit: int) -> Iterator[_Chunk]:
        """Yield the timers due in the range and after `start` (wake, entry), in order, at most `limit` per chunk.

        The first chunk of each second is empty, because a second may have no timers. If there are too many seconds,
        the last chunk is empty and has the next cursor.
        """
        timers = self._timers
        timers.intake.read_all()
        slot_ms = timers.slots.next_slot_ms(max(0, slot_of(min(start[0], _MAX_VALUE))))
        for _ in range(MAX_SLOTS):
            if slot_ms is None:
                return
            # A timer that is renewed first may be due at any time.
            is_early = slot_ms + SLOT_MS < due_range.from_ms
            order = timers.slots.renewals_of(slot_ms) if is_early else timers.slots.order_of(slot_ms)
            yield _EMPTY
            place = start
            while len((found := order.after(*place, limit))[0]):
                entries, wakes = found
                place = (int(wakes[-1]), int(entries[-1]))
                is_pending = timers.slots.is_pending(entries, wakes)
                yield self._chunk(due_range, entries[is_pending], wakes[is_pending])
            slot_ms = timers.slots.next_slot_ms(slot_ms + SLOT_MS)
        if slot_ms is not None:
            yield _EMPTY._replace(next_cursor=f"{slot_ms}:{_MAX_VALUE}")

    def _chunk(self, due_range: DueRange, entries: Ints, wakes: Ints) -> _Chunk:
        order = np.argsort(entries)
        found = np.empty(len(entries), ENTRY_DTYPE)
        found[order] = self._reader.queues.ensure(TIMER_TOPIC, 0).gather(entries[order])
        codes, physical_offsets = found["tags"].astype(np.int64), found["offset"].astype(np.int64)
        for row in np.flatnonzero(~is_timer_code(codes)).tolist():
            codes[row] = self._reader.waiting_code_at(int(physical_offsets[row]))
        _, dues = kinds_and_dues(codes)
        is_due = dues >= due_range.from_ms
        if due_range.until_ms:
            is_due &= dues < due_range.until_ms
        sizes = found["size"].astype(np.int64)
        return _Chunk(wakes[is_due], entries[is_due], physical_offsets[is_due], sizes[is_due], dues[is_due])

    def _list_key(self, due_range: DueRange, key: str, limit: int, start: tuple[int, int]) -> Steps[PendingPage]:
        found = yield from self._with_key(due_range, key)
        rest = [(name, entry) for name, entry in found if (entry.due_ms, entry.entry) > start]
        page = PendingPage()
        for name, entry in rest[:limit]:
            message = self._reader.read_message(entry.physical_offset) if entry.size else None
            position = f"{entry.due_ms}:{entry.entry}"
            page.timers.append(
                _pending_timer(message, entry.due_ms, position) if message else _far_timer(entry, name, position)
            )
        if len(rest) > limit:
            page.next = page.timers[-1].position
        return page

    def _with_key(self, due_range: DueRange, key: str) -> Steps[Sequence[tuple[str, Entry]]]:
        """Return unique key and entry of pending timers with this message key or unique key, in due order."""
        if not due_range.topic:
            raise InvalidParameter("a query by key needs a topic", hint="Add the topic")
        found = []
        names = yield from self._directory.unique_keys(due_range.topic, key, MAX_NAMES, only_pending=True)
        for name in {key: None} | dict.fromkeys(names):
            history = yield from self._directory.look_up(due_range.topic, name, only_pending=True)
            found += [
                (name, entry)
                for entry in history.pending.values()
                if entry.due_ms >= due_range.from_ms and (not due_range.until_ms or entry.due_ms < due_range.until_ms)
            ]
        return sorted(found, key=lambda one: (one[1].due_ms, one[1].entry))

    def density(self, now_ms: int) -> Density:
        """Return how many timers are due in each of the next seconds, minutes and hours."""
        start_ms = last_slot_start(now_ms)
        seconds = self._timers.slots.density(start_ms, start_ms + 2 * _DAY_S * SLOT_MS)
        return Density(
            start_ms,
            seconds[:_HOUR_S].tolist(),
            seconds[_HOUR_S:_DAY_S].reshape(-1, 60).sum(axis=1).tolist(),
            seconds[_DAY_S:].reshape(-1, _HOUR_S).sum(axis=1).tolist(),
        )


def _pending_timer(message: Message, due_ms: int, position: str) -> PendingTimer:
    properties = message.properties
    sample = message.body[:SAMPLE_BYTES].decode(errors="replace")
    return PendingTimer(
        timer_id=int(properties.get(TIMER_ID, message.queue_offset)),
        topic=properties.get(REAL_TOPIC, ""),
        unique_key=properties.get(UNIQUE_KEY, ""),
        keys=properties.get(KEYS, ""),
        tags=properties.get(TAGS, ""),
        due_ms=due_ms,
        queue_id=int(properties.get(REAL_QUEUE_ID, 0)),
        scheduled_ms=message.store_timestamp_ms,
        body_bytes=len(message.body),
        sample="".join(letter if letter.isprintable() else "." for letter in sample),
        position=position,
    )


def _far_timer(entry: Entry, unique_key: str, position: str) -> PendingTimer:
    """Return a timer whose record has left the log, so that only the timeline has its body."""
    return PendingTimer(
        timer_id=entry.timer_id,
        topic=entry.topic,
        unique_key=unique_key,
        keys="",
        tags="",
        due_ms=entry.due_ms,
        queue_id=0,
        scheduled_ms=0,
        body_bytes=0,
        sample="",
        position=position,
    )


def _parse_cursor(cursor: str) -> tuple[int, int]:
    if not cursor:
        return 0, -1
    wake_ms, _, entry = cursor.partition(":")
    if not all(part.isascii() and part.isdigit() and len(part) <= _CURSOR_DIGITS for part in (wake_ms, entry)):
        raise InvalidParameter(f"{cursor[:40]!r} is not a valid cursor", hint="Use the cursor from the previous page")
    return int(wake_ms), int(entry)
