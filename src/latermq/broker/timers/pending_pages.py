"""Timers that wait, looked at: pages of them, how many there are, and how they lie in time.

Every request looks at a bounded number of records, since others wait for the broker meanwhile.
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
MAX_NAMES = 1_000  # unique keys that are looked up for one message key, some 0.2 ms each
ROWS_A_STEP = 50  # entries without their records
ROWS_AT_ONCE = 1_000  # entries that are looked at between two looks at other work
MAX_SLOTS = 2_000  # seconds that one request looks at: 0.03 ms each
MAX_SCANNED = 5_000  # records whose topic one page looks at: 3 µs each
MAX_COUNTED = 50_000  # and a count
MAX_ROWS = 2_000_000  # entries that a count by time alone looks at, without their records: 0.1 µs each
_HOUR_S, _DAY_S = 3_600, 86_400
_LAST = (1 << 62) - 1
_CURSOR_DIGITS = len(str(_LAST))
_REAL_TOPIC = REAL_TOPIC.encode()


class DueRange(NamedTuple):
    """Which timers are asked for: of a topic, or of all where it is empty, due in [from, until), 0 being no bound."""

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
    """Some rows, a column each; or none, and where to go on."""

    wakes: Ints
    entries: Ints
    physical_offsets: Ints
    sizes: Ints
    dues: Ints
    go_on: str = ""

    def rows(self) -> Iterator[_Row]:
        return map(_Row._make, zip(*(column.tolist() for column in self[:5]), strict=True))


_NONE: Ints = np.empty(0, np.int64)
_EMPTY = _Chunk(_NONE, _NONE, _NONE, _NONE, _NONE)


class PendingPages:
    """Reads what is pending out of the engine and what is on its way to it."""

    def __init__(self, reader: LogReader, timers: TimerService, directory: Directory) -> None:
        self._reader = reader
        self._timers = timers
        self._directory = directory

    def list(self, asked: DueRange, *, key: str, limit: int, cursor: str) -> Steps[PendingPage]:
        """A page in the order of waking: by due time, those that roll before by the time of their roll.

        It may be short, or empty, and still have a next one.
        """
        start = _parse_cursor(cursor)
        if key:
            return (yield from self._list_key(asked, key, limit, start))
        page = PendingPage()
        wanted = asked.topic.encode()
        scanned = 0
        for chunk in self._chunks(asked, start, min(limit + 1, ROWS_AT_ONCE)):
            if chunk.go_on:
                page.next = chunk.go_on
                return page
            for row in chunk.rows():
                if len(page.timers) >= limit or scanned >= MAX_SCANNED:
                    return page
                scanned += 1
                page.next = f"{row.wake_ms}:{row.entry}"
                record = self._reader.log.read(row.physical_offset, row.size)
                if not wanted or find_property(record_properties(record), _REAL_TOPIC) == wanted:
                    page.timers.append(_pending_timer(decode_record(record), row.due_ms))
            yield from spend(1 + len(chunk.entries))
        page.next = ""
        return page

    def count(self, asked: DueRange, *, key: str) -> Steps[int]:
        """How many timers are pending."""
        if key:
            return len((yield from self._with_key(asked, key)))
        if not asked.from_ms and not asked.until_ms:
            return self._timers.pending[asked.topic] if asked.topic else self._timers.pending.total()
        wanted = asked.topic.encode()
        count = scanned = 0
        for chunk in self._chunks(asked, (0, -1), ROWS_AT_ONCE):
            scanned += len(chunk.entries)
            if chunk.go_on or scanned > (MAX_COUNTED if wanted else MAX_ROWS):
                raise InvalidParameter(
                    f"this range has more than {MAX_SLOTS} seconds or {scanned} timers to look at",
                    hint="Narrow it, or look at the density",
                )
            if not wanted:
                count += len(chunk.entries)
                yield from spend(1 + len(chunk.entries) // ROWS_A_STEP)
                continue
            for row in chunk.rows():
                record = self._reader.log.read(row.physical_offset, row.size)
                count += find_property(record_properties(record), _REAL_TOPIC) == wanted
            yield from spend(1 + len(chunk.entries))
        return count

    def _chunks(self, asked: DueRange, start: tuple[int, int], most: int) -> Iterator[_Chunk]:
        """What is due in the range, from behind `start` (wake, entry) on, in order, so many at a time.

        Each second begins with an empty one, since it may hold nothing. Where there are too many seconds to look at,
        the last is empty and says where to go on.
        """
        timers = self._timers
        timers.intake.read_all()
        # Whatever is renewed before it is due may be due at any time.
        first_ms = min(max(start[0], 0 if asked.until_ms else asked.from_ms), _LAST)
        slot_ms = timers.slots.next_slot_ms(max(0, slot_of(first_ms)))
        for _ in range(MAX_SLOTS):
            if slot_ms is None:
                return
            order = timers.slots.order_of(slot_ms)
            yield _EMPTY
            place = start
            while len((found := order.after(*place, most))[0]):
                entries, wakes = found
                place = (int(wakes[-1]), int(entries[-1]))
                wanted = timers.slots.is_pending(entries, wakes)
                yield self._chunk(asked, entries[wanted], wakes[wanted])
            slot_ms = timers.slots.next_slot_ms(slot_ms + SLOT_MS)
        if slot_ms is not None:
            yield _EMPTY._replace(go_on=f"{slot_ms}:{_LAST}")

    def _chunk(self, asked: DueRange, entries: Ints, wakes: Ints) -> _Chunk:
        order = np.argsort(entries)
        found = np.empty(len(entries), ENTRY_DTYPE)
        found[order] = self._reader.queues.ensure(TIMER_TOPIC, 0).gather(entries[order])
        codes, physical_offsets = found["tags"].astype(np.int64), found["offset"].astype(np.int64)
        for row in np.flatnonzero(~is_timer_code(codes)).tolist():
            codes[row] = self._reader.waiting_code_at(int(physical_offsets[row]))
        _, dues = kinds_and_dues(codes)
        fits = dues >= asked.from_ms
        if asked.until_ms:
            fits &= dues < asked.until_ms
        sizes = found["size"].astype(np.int64)
        return _Chunk(wakes[fits], entries[fits], physical_offsets[fits], sizes[fits], dues[fits])

    def _list_key(self, asked: DueRange, key: str, limit: int, start: tuple[int, int]) -> Steps[PendingPage]:
        found = yield from self._with_key(asked, key)
        rest = [(name, entry) for name, entry in found if (entry.due_ms, entry.entry) > start]
        page = PendingPage()
        for name, entry in rest[:limit]:
            message = self._reader.read_message(entry.physical_offset) if entry.size else None
            page.timers.append(_pending_timer(message, entry.due_ms) if message else _far_timer(entry, name))
        if len(rest) > limit:
            last = rest[limit - 1][1]
            page.next = f"{last.due_ms}:{last.entry}"
        return page

    def _with_key(self, asked: DueRange, key: str) -> Steps[Sequence[tuple[str, Entry]]]:
        """Unique key and entry of what is pending with a message key, or has it as its unique key, in due order."""
        if not asked.topic:
            raise InvalidParameter("a key is looked up in a topic", hint="Name the topic too")
        found = []
        names = yield from self._directory.unique_keys(asked.topic, key, MAX_NAMES, only_pending=True)
        for name in {key: None} | dict.fromkeys(names):
            history = yield from self._directory.look_up(asked.topic, name, only_pending=True)
            found += [
                (name, entry)
                for entry in history.pending.values()
                if entry.due_ms >= asked.from_ms and (not asked.until_ms or entry.due_ms < asked.until_ms)
            ]
        return sorted(found, key=lambda one: (one[1].due_ms, one[1].entry))

    def density(self, now_ms: int) -> Density:
        """How many timers are due in each of the coming seconds, minutes and hours."""
        start_ms = last_slot_start(now_ms)
        seconds = self._timers.slots.density(start_ms, start_ms + 2 * _DAY_S * SLOT_MS)
        return Density(
            start_ms,
            seconds[:_HOUR_S].tolist(),
            seconds[_HOUR_S:_DAY_S].reshape(-1, 60).sum(axis=1).tolist(),
            seconds[_DAY_S:].reshape(-1, _HOUR_S).sum(axis=1).tolist(),
        )


def _pending_timer(message: Message, due_ms: int) -> PendingTimer:
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
    )


def _far_timer(entry: Entry, unique_key: str) -> PendingTimer:
    """A timer whose record has left the log: its body is in the timeline only."""
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
    )


def _parse_cursor(cursor: str) -> tuple[int, int]:
    if not cursor:
        return 0, -1
    wake_ms, _, entry = cursor.partition(":")
    if not all(part.isascii() and part.isdigit() and len(part) <= _CURSOR_DIGITS for part in (wake_ms, entry)):
        raise InvalidParameter(f"{cursor[:40]!r} is no place to go on from", hint="Use the one the last page gave")
    return int(wake_ms), int(entry)
