"""Windows as a source of the stage: what Spark handed back, in due order, played from the files of one attempt each."""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from latermq.message.cut import Cut
from latermq.timer.engine import Bools, Ints
from latermq.timer.frontier import Frontier
from latermq.timer.lateness import PUNCTUAL_MS
from latermq.timer.level_source import Batch

_NEVER_MS = 1 << 62
_NONE: Ints = np.empty(0, np.int64)


class WindowRows(NamedTuple):
    """A piece of an attempt: timers in due order, their records end to end."""

    entries: Ints
    dues: Ints
    sizes: Ints
    raw: bytes

    def where(self, rows: Bools) -> "WindowRows":
        """Some of the rows."""
        if rows.all():
            return self
        ends = np.cumsum(self.sizes)
        spans = zip((ends - self.sizes)[rows].tolist(), ends[rows].tolist(), strict=True)
        raw = b"".join(self.raw[start:end] for start, end in spans)
        return WindowRows(self.entries[rows], self.dues[rows], self.sizes[rows], raw)


@dataclass(slots=True)
class Window:
    """What Spark hands back at one cut, as far as it is played."""

    number: int
    cut_entry: int
    from_ms: int
    until_ms: int
    attempt: str = ""  # that is played; empty while there is none
    pieces: int = 0  # that were taken in
    last_due_ms: int = 0  # of what was taken in,
    last_entries: Ints = field(default_factory=lambda: _NONE)  # and which of it were due then
    is_loaded: bool = False

    @property
    def unread_from_ms(self) -> int:
        """Nothing of it that was not taken in is due before."""
        return max(self.from_ms, self.last_due_ms)


class Windows:
    """All windows that are not done with, the earliest first, and the rows of them that are loaded.

    One after the other is loaded, each in the order of its pieces, so all rows are in due order.
    """

    level = 0

    def __init__(self, frontier: Frontier, *, max_bytes: int, ahead_ms: int) -> None:
        self._frontier = frontier
        self._max_bytes = max_bytes
        self._ahead_ms = ahead_ms
        self._windows: deque[Window] = deque()
        self._pieces: deque[WindowRows] = deque()
        self._at = 0  # rows of the first piece that are taken
        self._raw_at = 0
        self.size_bytes = 0
        self.rows = 0
        # Set by who owns the timers: which rows are still wanted, and up to when cancels of windows' rows are loaded.
        self.still_wanted: Callable[[Ints, Ints], Bools] = lambda entries, dues: np.ones(len(entries), bool)
        self.covered_ms: Callable[[int], int] = lambda due_ms: _NEVER_MS

    # Which windows there are

    def open(self, cut: Cut) -> None:
        """A cut was made: its window comes next."""
        if cut.has_window:
            self._windows.append(Window(cut.number, cut.entry, cut.last_handback_ms, cut.handback_ms))

    def open_all(self, cuts: Iterable[Cut], attempts: dict[int, str]) -> None:
        """At a start: those that are not done with, and the attempts that were chosen for them."""
        for cut in cuts:
            self.open(cut)
        for window in self._windows:
            window.attempt = attempts.get(window.number, "")

    def waiting(self) -> list[Window]:
        """All that are not loaded to their end, the earliest first."""
        return [window for window in self._windows if not window.is_loaded]

    def unfinished(self) -> list[Window]:
        """All that are not done with."""
        return list(self._windows)

    def find(self, number: int) -> Window | None:
        return next((window for window in self._windows if window.number == number), None)

    def close_before(self, wake_ms: int) -> None:
        """Forget windows all of whose rows are done with, and a checkpoint on disk says so."""
        while self._windows and self._windows[0].is_loaded and self._windows[0].until_ms <= wake_ms:
            self._windows.popleft()

    # Loading

    def wants(self, now_ms: int) -> Window | None:
        """The window whose next piece is to be read now."""
        waiting = next((window for window in self._windows if not window.is_loaded), None)
        if waiting is None or not waiting.attempt or self.size_bytes >= self._max_bytes:
            return None
        return waiting if waiting.unread_from_ms <= now_ms + self._ahead_ms else None

    def feed(self, number: int, rows: WindowRows | None) -> None:
        """Take the next piece of a window in; None says that there is no further one."""
        window = self.find(number)
        assert window is not None, f"window {number} is not there"
        assert not window.is_loaded, f"window {number} has no further piece"
        if rows is None:
            window.is_loaded = True
            return
        window.pieces += 1
        rows = self._not_seen(window, rows)
        rows = rows.where(self.still_wanted(rows.entries, rows.dues))
        if len(rows.entries):
            self._pieces.append(rows)
            self.size_bytes += len(rows.raw)
            self.rows += len(rows.entries)

    def _not_seen(self, window: Window, rows: WindowRows) -> WindowRows:
        """Leave out what was taken in already from another attempt, which need not be cut into the same pieces."""
        seen = np.isin(rows.entries, window.last_entries)
        rows = rows.where((rows.dues > window.last_due_ms) | ((rows.dues == window.last_due_ms) & ~seen))
        if len(rows.dues):
            last_ms = int(rows.dues[-1])
            same = [window.last_entries] if last_ms == window.last_due_ms else []
            window.last_entries = np.concatenate([*same, rows.entries[rows.dues == last_ms]])
            window.last_due_ms = last_ms
        return rows

    def restart(self, number: int, attempt: str) -> None:
        """Play another attempt of a window from its beginning: attempts have equal rows, and ids decide."""
        window = self.find(number)
        assert window is not None
        window.attempt, window.pieces = attempt, 0

    # As a source of the stage

    def head_due_ms(self) -> int | None:
        """When the next loaded row is due; None where none is, or where cancels of that time are not loaded yet."""
        if not self._pieces:
            return None
        due_ms = int(self._pieces[0].dues[self._at])
        return due_ms if due_ms <= self.covered_ms(due_ms) else None

    def take(self, until_ms: int, max_count: int, max_bytes: int) -> Batch:
        """The next rows due at or before `until_ms`: at least one, whatever its record's size."""
        piece = self._pieces[0]
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
            self._pieces.popleft()
            self._at = self._raw_at = 0
            self.size_bytes -= len(piece.raw)
        else:
            self._at, self._raw_at = end, self._raw_at + size
        return batch

    def is_overdue(self, now_ms: int) -> bool:
        """Whether what comes next should have gone some time ago."""
        return bool(self._pieces) and int(self._pieces[0].dues[self._at]) < now_ms - PUNCTUAL_MS

    def count_due(self, now_ms: int) -> int:
        """How many loaded rows should have been taken by now."""
        counts = [int(np.searchsorted(piece.dues, now_ms, side="right")) for piece in self._pieces]
        return max(0, sum(counts) - self._at)

    def all_wake_from_ms(self) -> int:
        """Nothing that Spark holds, or handed back and was not taken from here, is due before."""
        firsts = [int(self._pieces[0].dues[self._at])] if self._pieces else []
        waiting = next((window for window in self._windows if not window.is_loaded), None)
        if waiting is not None:
            firsts.append(waiting.unread_from_ms)
        elif self._frontier.has_far:
            firsts.append(self._frontier.handback_ms)
        return min(firsts, default=_NEVER_MS)

    def statistics(self) -> dict[str, int]:
        """How much is loaded, and how many windows are not done with."""
        return {"windows": len(self._windows), "window_rows_loaded": self.rows, "window_bytes_loaded": self.size_bytes}
