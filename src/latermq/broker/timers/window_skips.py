"""Skipped windows: each timer that is neither delivered nor cancelled becomes a dead letter once.

Ids decide, as for deliveries. A dead letter has the entry id of its timer, so after a crash the next start continues
with the timers that have no dead letter. Everything runs on the appending thread, a bounded piece at a time.
"""

import numpy as np

from latermq.arrays import Ints
from latermq.broker.timers.pending import PendingTimers
from latermq.broker.timers.window_notes import SkipNote, WindowNotes
from latermq.errors import InvalidParameter
from latermq.handover.window import is_in_window
from latermq.message.names import TIMER_TOPIC
from latermq.message.properties import DUE_MS, REAL_TOPIC, UNIQUE_KEY, encode_properties
from latermq.message.timer_code import is_timer_code, kinds_and_dues
from latermq.message.waiting_record import waiting_name
from latermq.store.log_writer import Draft
from latermq.store.message_store import MessageStore
from latermq.timer.delivery.dead_letters import Undeliverable
from latermq.timer.far.far_names import FarNames
from latermq.timer.far.windows import Window, WindowRows
from latermq.timer.service import TimerService
from latermq.timer.steps import Steps

LETTERS_AT_ONCE = 64  # about 3 ms
ENTRIES_AT_ONCE = 5_000  # of the timer topic's queue, read as columns
NAMES_AT_ONCE = 1_000
_LETTER_BYTES = 1 << 20
_NONE: Ints = np.empty(0, np.int64)
_NO_ROWS = WindowRows(_NONE, _NONE, _NONE, b"")


class WindowSkips:
    """Turns the timers of windows that an operator skipped into dead letters."""

    def __init__(
        self,
        store: MessageStore,
        timers: TimerService,
        pending: PendingTimers,
        names: FarNames,
        notes: WindowNotes,
    ) -> None:
        self._store = store
        self._timers = timers
        self._pending = pending
        self._names = names
        self._notes = notes
        self.slice_bytes = min(_LETTER_BYTES, store.writer.segment_bytes // 4)

    def request(self, window: Window, now_ms: int) -> None:
        """Stop loading a window. Its timers may not become dead letters until the note is on disk."""
        if window.is_loaded:
            raise InvalidParameter(
                f"window {window.number} is already loaded", hint="It cannot be skipped: its timers are being delivered"
            )
        window.is_skipped = True
        self._notes.note_skip(window.number, SkipNote(cut_entry=window.cut_entry, asked_ms=now_ms))

    def withdraw(self, window: Window) -> None:
        """Undo a request, because its note could not be written."""
        window.is_skipped = False
        self._notes.forget_skip(window.number)

    def can_bury(self, window: Window) -> bool:
        """Whether all cancels of its timers are loaded. Those for later times are only in the engine."""
        last_ms = window.until_ms - 1
        return self._timers.windows.covered_ms(last_ms) >= last_ms

    def finish(self, window: Window, letters: int, unread: int) -> None:
        """Finish a skip: all timers that were found are dead letters, so T may pass the window."""
        note = self._notes.skip_of(window.number, window.cut_entry)
        assert note is not None
        if not note.is_done:
            note.letters, note.unread, note.is_done = letters, unread, True
        window.is_loaded = True

    # Dead letters

    def bury(self, window: Window, rows: WindowRows, more: str = "") -> int:
        """Write dead letters for the rows that are not delivered, loaded or cancelled; return their number.

        The last check and the append are one step. `more` is added to the reason.
        """
        rows = window.unseen(rows.where(is_in_window(window, rows.entries, rows.dues)))
        rows = rows.where(self._timers.windows.is_waiting(rows.entries, rows.dues))
        is_first = np.zeros(len(rows.entries), bool)
        is_first[np.unique(rows.entries, return_index=True)[1]] = True
        rows = rows.where(is_first)
        if len(rows.entries):
            reason = f"window {window.number} was skipped by an operator{more}"
            self._timers.delivery.bury(Undeliverable(0, rows.entries, rows.dues, rows.raw, rows.sizes, reason))
        return len(rows.entries)

    def pending_rows(self, rows: WindowRows) -> Steps[WindowRows]:
        """Return the rows, from any source, that have a valid record and are pending according to the directory.

        Cancels and deliveries after this check are found without the directory.
        """
        is_pending = np.zeros(len(rows.entries), bool)
        ends = np.cumsum(rows.sizes).tolist()
        columns = zip(rows.entries.tolist(), rows.dues.tolist(), ends, rows.sizes.tolist(), strict=True)
        for row, (entry, due_ms, end, size) in enumerate(columns):
            name = waiting_name(rows.raw[end - size : end], entry, due_ms)
            if name is not None:
                is_pending[row] = yield from self._pending.is_pending_steps(*name, entry)
        return rows.where(is_pending)

    # Rows from the log

    def rows_from_log(self, window: Window, start: int) -> tuple[WindowRows, int | None]:
        """Return the window's timers among the next entries of the timer topic, and the next start; None at its cut.

        Stops early if their records need much memory.
        """
        queue = self._store.queues.ensure(TIMER_TOPIC, 0)
        start = max(start, queue.min_offset)
        found = queue.array(start, min(ENTRIES_AT_ONCE, max(0, window.cut_entry - start)))
        if not len(found):
            return _NO_ROWS, None
        entries = np.arange(start, start + len(found), dtype=np.int64)
        codes = found["tags"].astype(np.int64)
        kinds, dues = kinds_and_dues(codes)
        is_wanted = is_timer_code(codes) & is_in_window(window, entries, dues)
        is_wanted &= self._timers.frontier.ownership.far_timers(kinds, entries, dues)
        sizes = found["size"].astype(np.int64)
        wanted = np.flatnonzero(is_wanted)
        if not len(wanted):
            return _NO_ROWS, start + len(found)
        ends = np.cumsum(sizes[wanted])
        wanted = wanted[: max(1, int(np.searchsorted(ends, self.slice_bytes)))]
        next_start = start + len(found)
        if len(wanted) < np.count_nonzero(is_wanted):
            next_start = start + int(wanted[-1]) + 1
        raw = self._store.log.read_all(found["offset"].astype(np.int64)[wanted], sizes[wanted])
        return WindowRows(entries[wanted], dues[wanted], sizes[wanted], bytes(raw)), next_start

    # Rows from names

    def rows_from_names(self, window: Window, start: bytes) -> Steps[tuple[WindowRows, bytes | None]]:
        """Return pending timers of the window of which only the name is stored, as records without a body.

        Also return the next start; None at the end.
        """
        found, next_start = self._names.due_between(window.from_ms, window.until_ms, start, NAMES_AT_ONCE)
        pending: list[tuple[int, int, bytes]] = []
        for topic, unique_key, name in found:
            yield
            if name.entry >= window.cut_entry:
                continue
            if (yield from self._pending.is_pending_steps(topic, unique_key, name.entry)):
                properties = {REAL_TOPIC: topic, UNIQUE_KEY: unique_key, DUE_MS: str(name.due_ms)}
                draft = Draft(TIMER_TOPIC, 0, b"", encode_properties(properties).encode(), 0, bytes(8))
                pending.append((name.entry, name.due_ms, self._store.writer.encode(draft)))
        entries, dues, sizes = (
            np.array(column, np.int64)
            for column in (
                [entry for entry, _, _ in pending],
                [due_ms for _, due_ms, _ in pending],
                [len(record) for _, _, record in pending],
            )
        )
        return WindowRows(entries, dues, sizes, b"".join(record for _, _, record in pending)), next_start
