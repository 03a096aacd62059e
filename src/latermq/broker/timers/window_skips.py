"""A window that is given up: its timers become dead letters, each once, and none that is delivered or cancelled.

Ids decide, as for deliveries: a letter carries the entry id of its timer, so whoever starts again after a death on the
way goes on with those that have none. All of it runs on the thread that appends, a bounded piece at a time.
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

LETTERS_AT_ONCE = 64  # some 3 ms
ENTRIES_AT_ONCE = 5_000  # of the timer topic's queue, looked at as columns
NAMES_AT_ONCE = 1_000
_LETTER_BYTES = 1 << 20
_NONE: Ints = np.empty(0, np.int64)
_NO_ROWS = WindowRows(_NONE, _NONE, _NONE, b"")


class WindowSkips:
    """Buries the timers of windows that an operator gave up."""

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

    def ask(self, window: Window, now_ms: int) -> None:
        """Nothing more of it is played from now on. Nothing may be buried before the note is on disk."""
        if window.is_loaded:
            raise InvalidParameter(
                f"window {window.number} is read to its end", hint="There is nothing to skip: its timers are delivered"
            )
        window.is_skipped = True
        self._notes.note_skip(window.number, SkipNote(cut_entry=window.cut_entry, asked_ms=now_ms))

    def take_back(self, window: Window) -> None:
        """The note could not be written."""
        window.is_skipped = False
        self._notes.forget_skip(window.number)

    def may_bury(self, window: Window) -> bool:
        """Whether all cancels of its timers are known; those of later times are still in the engine alone."""
        last_ms = window.until_ms - 1
        return self._timers.windows.covered_ms(last_ms) >= last_ms

    def finish(self, window: Window, letters: int, unread: int) -> None:
        """All that could be found is buried: T may pass it."""
        note = self._notes.skip_of(window.number, window.cut_entry)
        assert note is not None
        if not note.is_done:
            note.letters, note.unread, note.is_done = letters, unread, True
        window.is_loaded = True

    # Burying

    def bury(self, window: Window, rows: WindowRows, more: str = "") -> int:
        """Bury those of a few rows that are not delivered, loaded or cancelled; how many. `more` goes to the reason.

        The last look and the append are one step.
        """
        inside = is_in_window(window, rows.entries, rows.dues)
        rows = window.unseen(rows.where(inside))
        rows = rows.where(self._timers.windows.is_waiting(rows.entries, rows.dues))
        first = np.zeros(len(rows.entries), bool)
        first[np.unique(rows.entries, return_index=True)[1]] = True
        rows = rows.where(first)
        if len(rows.entries):
            reason = f"window {window.number} was skipped by an operator{more}"
            self._timers.delivery.bury(Undeliverable(0, rows.entries, rows.dues, rows.raw, rows.sizes, reason))
        return len(rows.entries)

    def waiting(self, rows: WindowRows) -> Steps[WindowRows]:
        """Those of some rows of any origin whose records are whole and their own, and that wait, as the directory says.

        What is cancelled or delivered from then on is known without it.
        """
        kept = np.zeros(len(rows.entries), bool)
        ends = np.cumsum(rows.sizes).tolist()
        columns = zip(rows.entries.tolist(), rows.dues.tolist(), ends, rows.sizes.tolist(), strict=True)
        for row, (entry, due_ms, end, size) in enumerate(columns):
            name = waiting_name(rows.raw[end - size : end], entry, due_ms)
            if name is not None:
                kept[row] = yield from self._pending.is_pending_steps(*name, entry)
        return rows.where(kept)

    # What the log holds

    def log_rows(self, window: Window, start: int) -> tuple[WindowRows, int | None]:
        """The window's timers among the next entries of the timer topic, and where to go on; None at its cut.

        Stops early where their records take much memory.
        """
        queue = self._store.queues.ensure(TIMER_TOPIC, 0)
        start = max(start, queue.min_offset)
        found = queue.array(start, min(ENTRIES_AT_ONCE, max(0, window.cut_entry - start)))
        if not len(found):
            return _NO_ROWS, None
        entries = np.arange(start, start + len(found), dtype=np.int64)
        codes = found["tags"].astype(np.int64)
        kinds, dues = kinds_and_dues(codes)
        mine = is_timer_code(codes) & is_in_window(window, entries, dues)
        mine &= self._timers.frontier.ownership.far_timers(kinds, entries, dues)
        sizes = found["size"].astype(np.int64)
        fitting = np.flatnonzero(mine)
        if not len(fitting):
            return _NO_ROWS, start + len(found)
        total = np.cumsum(sizes[fitting])
        fitting = fitting[: max(1, int(np.searchsorted(total, self.slice_bytes)))]
        following = start + len(found)
        if len(fitting) < np.count_nonzero(mine):
            following = start + int(fitting[-1]) + 1
        raw = self._store.log.read_all(found["offset"].astype(np.int64)[fitting], sizes[fitting])
        return WindowRows(entries[fitting], dues[fitting], sizes[fitting], bytes(raw)), following

    # What only its name is known of

    def named(self, window: Window, start: bytes) -> Steps[tuple[WindowRows, bytes | None]]:
        """Some timers of the window that wait and of which the name is kept, as records without a body.

        Also where to go on, None at the end.
        """
        found, following = self._names.due_between(window.from_ms, window.until_ms, start, NAMES_AT_ONCE)
        waiting: list[tuple[int, int, bytes]] = []
        for topic, unique_key, name in found:
            yield
            if name.entry >= window.cut_entry:
                continue
            if (yield from self._pending.is_pending_steps(topic, unique_key, name.entry)):
                told = {REAL_TOPIC: topic, UNIQUE_KEY: unique_key, DUE_MS: str(name.due_ms)}
                draft = Draft(TIMER_TOPIC, 0, b"", encode_properties(told).encode(), 0, bytes(8))
                waiting.append((name.entry, name.due_ms, self._store.writer.encode(draft)))
        entries, dues, sizes = (
            np.array(column, np.int64)
            for column in (
                [entry for entry, _, _ in waiting],
                [due_ms for _, due_ms, _ in waiting],
                [len(record) for _, _, record in waiting],
            )
        )
        return WindowRows(entries, dues, sizes, b"".join(record for _, _, record in waiting)), following
