"""Windows as sources: timers that Spark handed back, in due order, loaded from the files of one attempt each.

Each window is a separate source. An unavailable window holds back T, but no other window.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from latermq.arrays import Bools, Ints
from latermq.handover.cut import Cut
from latermq.timer.delivery.lateness import PUNCTUAL_MS
from latermq.timer.delivery.level_source import Batch
from latermq.timer.far.frontier import Frontier

_NEVER_MS = 1 << 62
_LATE_AT_ONCE = 8  # late windows that are loaded at the same time
_NONE: Ints = np.empty(0, np.int64)


class WindowRows(NamedTuple):
    """A piece of an attempt: timers in due order, with their records end to end."""

    entries: Ints
    dues: Ints
    sizes: Ints
    raw: bytes

    def where(self, rows: Bools) -> "WindowRows":
        """Return the selected rows."""
        if rows.all():
            return self
        ends = np.cumsum(self.sizes)
        spans = zip((ends - self.sizes)[rows].tolist(), ends[rows].tolist(), strict=True)
        raw = b"".join(self.raw[start:end] for start, end in spans)
        return WindowRows(self.entries[rows], self.dues[rows], self.sizes[rows], raw)


@dataclass(slots=True, eq=False)
class Window:
    """The timers that Spark hands back at one cut, and how far they are loaded.

    It is a source while it has loaded rows.
    """

    number: int
    cut_entry: int
    from_ms: int
    until_ms: int
    # Returns for a due time the time up to which cancels of window rows are loaded.
    covered_ms: Callable[[int], int]
    attempt: str = ""  # the attempt that is loaded; empty while there is none
    pieces: int = 0  # number of loaded pieces
    last_due_ms: int = 0  # latest due time loaded
    last_entries: Ints = field(default_factory=lambda: _NONE)  # loaded entries due at that time
    is_loaded: bool = False
    is_skipped: bool = False  # its timers become dead letters, and nothing more of it is loaded
    rows: int = 0  # loaded and not popped
    size_bytes: int = 0
    _loaded: deque[WindowRows] = field(default_factory=deque)
    _at: int = 0  # popped rows of the first loaded piece
    _raw_at: int = 0

    level = 0

    @property
    def unread_from_ms(self) -> int:
        """A lower bound of the due times of rows that are not loaded yet."""
        return max(self.from_ms, self.last_due_ms)

    def unseen(self, rows: WindowRows) -> WindowRows:
        """Return the rows that were not loaded before, from whichever attempt."""
        seen = np.isin(rows.entries, self.last_entries)
        return rows.where((rows.dues > self.last_due_ms) | ((rows.dues == self.last_due_ms) & ~seen))

    def note_seen(self, rows: WindowRows) -> None:
        """Note that these rows were loaded. Attempts need not be divided into the same pieces."""
        if len(rows.dues):
            last_ms = int(rows.dues[-1])
            same = [self.last_entries] if last_ms == self.last_due_ms else []
            self.last_entries = np.concatenate([*same, rows.entries[rows.dues == last_ms]])
            self.last_due_ms = last_ms

    def load(self, rows: WindowRows) -> None:
        """Keep rows, at least one, until they are popped."""
        self._loaded.append(rows)
        self.size_bytes += len(rows.raw)
        self.rows += len(rows.entries)

    # Source interface

    @property
    def _head_ms(self) -> int:
        return int(self._loaded[0].dues[self._at])

    def head_due_ms(self) -> int | None:
        """Return when the next loaded row is due; None if there is none or cancels for that time are not loaded yet."""
        if not self._loaded:
            return None
        due_ms = self._head_ms
        return due_ms if due_ms <= self.covered_ms(due_ms) else None

    def pop(self, until_ms: int, max_count: int, max_bytes: int) -> Batch:
        """Return the next rows due at or before `until_ms`: at least one, whatever its record's size."""
        piece = self._loaded[0]
        at = self._at
        until_ms = min(until_ms, self.covered_ms(int(piece.dues[at])))
        end = int(np.searchsorted(piece.dues, until_ms, side="right"))
        end = max(at, min(end, at + max_count))
        fitting = int(np.searchsorted(np.cumsum(piece.sizes[at:end]), max_bytes, side="right"))
        end = at + min(end - at, max(1, fitting))
        size = int(piece.sizes[at:end].sum())
        raw = piece.raw[self._raw_at : self._raw_at + size]
        batch = Batch(piece.entries[at:end], piece.dues[at:end], _NONE, piece.sizes[at:end], raw=raw)
        self.rows -= end - at
        if end == len(piece.entries):
            self._loaded.popleft()
            self._at = self._raw_at = 0
            self.size_bytes -= len(piece.raw)
        else:
            self._at, self._raw_at = end, self._raw_at + size
        return batch

    def is_overdue(self, now_ms: int) -> bool:
        """Whether the next row is overdue."""
        return bool(self._loaded) and self._head_ms < now_ms - PUNCTUAL_MS

    def count_due(self, now_ms: int) -> int:
        """Number of loaded rows that should have been popped by now."""
        counts = [int(np.searchsorted(piece.dues, now_ms, side="right")) for piece in self._loaded]
        return max(0, sum(counts) - self._at)

    def all_wake_from_ms(self) -> int:
        """Return a lower bound of the due times of rows that are not yet popped."""
        loaded_ms = self._head_ms if self._loaded else _NEVER_MS
        return loaded_ms if self.is_loaded else min(loaded_ms, self.unread_from_ms)


class Windows:
    """All windows that are not fully delivered, earliest first. Their due times do not overlap."""

    def __init__(
        self,
        frontier: Frontier,
        is_waiting: Callable[[Ints, Ints], Bools],
        covered_ms: Callable[[int], int],
        *,
        max_bytes: int,
        ahead_ms: int,
    ) -> None:
        """`is_waiting` takes entries and due times and returns which rows are not settled.

        `covered_ms` returns for a due time the time up to which cancels of window rows are loaded.
        """
        self._frontier = frontier
        self.is_waiting = is_waiting
        self.covered_ms = covered_ms
        self._max_bytes = max_bytes
        self._ahead_ms = ahead_ms
        self._windows: deque[Window] = deque()
        self._open: list[Window] = []  # with loaded rows
        self.are_open = False  # true once the checkpoint's windows are open

    # Open windows

    def open(self, cut: Cut) -> None:
        """Add the window of a new cut after all others."""
        if cut.has_window and self._windows:
            last_ms = self._windows[-1].until_ms
            assert last_ms <= cut.last_handback_ms, f"windows follow each other: one ends at {last_ms}, then {cut}"
        self._add(cut)

    def _add(self, cut: Cut) -> None:
        if cut.has_window:
            self._windows.append(Window(cut.number, cut.entry, cut.last_handback_ms, cut.handback_ms, self.covered_ms))

    def open_all(self, cuts: Iterable[Cut], attempts: dict[int, str]) -> None:
        """At a start: open the windows that are not fully delivered, with the attempts that were chosen for them."""
        for cut in cuts:
            self._add(cut)  # unchecked: a checkpoint of an earlier release may contain cuts that a client forged
        for window in self._windows:
            window.attempt = attempts.get(window.number, "")
        self.are_open = True

    def waiting(self) -> list[Window]:
        """Return all windows that are not completely loaded, earliest first."""
        return [window for window in self._windows if not window.is_loaded]

    def unfinished(self) -> list[Window]:
        """Return all windows that are not fully delivered."""
        return list(self._windows)

    def find(self, number: int) -> Window | None:
        return next((window for window in self._windows if window.number == number), None)

    def close_before(self, wake_ms: int) -> None:
        """Forget windows whose rows are all delivered according to a checkpoint on disk."""
        while self._windows and self._windows[0].is_loaded and self._windows[0].until_ms <= wake_ms:
            self._windows.popleft()

    # Loading

    def wants(self, now_ms: int, others: Collection[int] = ()) -> Window | None:
        """Return a window whose next piece should be read now, except those with a number in `others`.

        Windows on time come before late ones, which may use half of the memory.
        """
        late: Window | None = None
        for window in self._windows:
            if window.unread_from_ms > now_ms + self._ahead_ms:
                break  # all following windows are later still
            if window.number in others or not self.is_wanted(window, now_ms):
                continue
            if not self.is_late(window, now_ms):
                return window
            late = late or window
        return late

    def is_wanted(self, window: Window, now_ms: int) -> bool:
        """Whether the next piece of this window should be read now."""
        if window.is_loaded or window.is_skipped or not window.attempt:
            return False
        if window.unread_from_ms > now_ms + self._ahead_ms:
            return False
        if self.is_late(window, now_ms):
            has_place = window.rows or len(self.sources()) < _LATE_AT_ONCE
            return bool(has_place) and self.size_bytes < max(1, self._max_bytes // 2)
        return self.size_bytes < self._max_bytes

    def is_late(self, window: Window, now_ms: int) -> bool:
        """Whether all of it is overdue. A window that may hold rows due soon is not late."""
        return window.until_ms <= now_ms - PUNCTUAL_MS

    def feed(self, number: int, rows: WindowRows | None) -> None:
        """Load the next piece of a window; None means that there are no more pieces."""
        window = self.find(number)
        assert window is not None, f"window {number} is not open"
        assert not window.is_loaded, f"window {number} is loaded and accepts no further piece"
        assert window.attempt or rows is None, f"window {number} has rows but no chosen attempt (invariant 8)"
        if rows is None:
            window.is_loaded = True
            return
        if len(rows.dues):
            is_inside = window.from_ms <= rows.dues[0] <= rows.dues[-1] < window.until_ms
            assert is_inside, f"window {number} holds [{window.from_ms}, {window.until_ms}) only (invariant 4)"
        window.pieces += 1
        rows = window.unseen(rows)
        window.note_seen(rows)
        rows = rows.where(self.is_waiting(rows.entries, rows.dues))
        if len(rows.entries):
            if window not in self.sources():
                self._open.append(window)
            window.load(rows)

    def restart(self, number: int, attempt: str) -> None:
        """Load another attempt of a window from its beginning. Attempts have equal rows, and ids tell which are new."""
        window = self.find(number)
        assert window is not None
        window.attempt, window.pieces = attempt, 0

    # Source interface

    def sources(self) -> list[Window]:
        """Return the windows with loaded rows."""
        if not all(window.rows for window in self._open):
            self._open = [window for window in self._open if window.rows]
        return self._open

    @property
    def rows(self) -> int:
        """Number of loaded rows."""
        return sum(window.rows for window in self.sources())

    @property
    def size_bytes(self) -> int:
        """Size of the loaded rows."""
        return sum(window.size_bytes for window in self.sources())

    def all_wake_from_ms(self) -> int:
        """Return a lower bound of the due times of timers that Spark holds, or handed back and not yet popped."""
        wake_ms = self._frontier.handback_ms if self._frontier.has_far else _NEVER_MS
        for window in self._windows:
            wake_ms = min(wake_ms, window.all_wake_from_ms())
            if not window.is_loaded:
                break  # the rows of all following windows are due later
        return wake_ms

    def loaded_spans(self, held: Ints) -> Iterator[tuple[int, int]]:
        """Yield each window's span of due times in which all rows are delivered; `held` are in flight, in order."""
        for window in self._windows:
            until_ms = min(window.until_ms, window.all_wake_from_ms())
            at = int(np.searchsorted(held, window.from_ms))
            if at < len(held):
                until_ms = min(until_ms, int(held[at]))
            if until_ms > window.from_ms:
                yield window.from_ms, until_ms

    def statistics(self) -> dict[str, int]:
        """Loaded rows and bytes, and the number of windows not fully delivered."""
        return {"windows": len(self._windows), "window_rows_loaded": self.rows, "window_bytes_loaded": self.size_bytes}
