"""Durable notes on windows: damaged attempts, and windows that an operator skipped."""

from collections.abc import Callable, Collection

import msgspec

from latermq.handover.checked_file import decode_checked, encode_checked
from latermq.store.files.disk import Disk

PATH = "latermq.windownotes"
MAX_FINISHED_SKIPS = 100  # notes kept after their windows are finished, so that operators can read the results
MAX_DAMAGED = 100  # noted attempts per window
MAX_REASON = 500


class SkipNote(msgspec.Struct, kw_only=True):
    """A window that an operator skipped: its timers become dead letters."""

    cut_entry: int
    asked_ms: int
    letters: int = 0  # dead letters written, without those before the broker's last start
    unread: int = 0  # dead letters with a name only, because the record could not be read
    is_done: bool = False


class _Notes(msgspec.Struct, kw_only=True):
    damaged: dict[int, dict[str, str]] = msgspec.field(default_factory=dict)  # by window and attempt: the error
    skipped: dict[int, SkipNote] = msgspec.field(default_factory=dict)


class WindowNotes:
    """Changed by the serving thread. The functions that `writer` returns may run off the event loop, in order."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        data = disk.read(PATH)
        hint = f"Remove {PATH}: attempts are then checked again, and an unfinished skip is forgotten"
        self._notes = _Notes() if data is None else decode_checked(data, _Notes, PATH, hint)

    def damaged_attempts(self, number: int) -> dict[str, str]:
        """Return the damaged attempts of a window, each with its error."""
        return dict(self._notes.damaged.get(number, {}))

    def note_damage(self, number: int, attempt: str, reason: str) -> None:
        """Note that the content of an attempt is wrong."""
        reasons = self._notes.damaged.setdefault(number, {})
        reasons[attempt] = reason[:MAX_REASON]
        while len(reasons) > MAX_DAMAGED:
            del reasons[next(iter(reasons))]

    def forget_damage(self, number: int) -> None:
        """Forget the damage of a window, so that all its attempts are checked again."""
        self._notes.damaged.pop(number, None)

    def skip_of(self, number: int, cut_entry: int) -> SkipNote | None:
        """Return the note if this window is skipped. A restored store may reuse a number, with another cut."""
        note = self._notes.skipped.get(number)
        return note if note is not None and note.cut_entry == cut_entry else None

    def skips(self) -> dict[int, SkipNote]:
        """Return all skips, by window."""
        return dict(self._notes.skipped)

    def note_skip(self, number: int, note: SkipNote) -> None:
        """Note that a window is skipped, or replace its note."""
        self._notes.skipped[number] = note

    def forget_skip(self, number: int) -> None:
        """Forget a skip that was requested."""
        self._notes.skipped.pop(number, None)

    def writer(self, unfinished: Collection[int]) -> Callable[[], None]:
        """Drop notes on finished windows, and return a blocking function that writes the current notes to disk."""
        finished = [number for number in sorted(self._notes.skipped) if number not in unfinished]
        for number in finished[: max(0, len(finished) - MAX_FINISHED_SKIPS)]:
            del self._notes.skipped[number]
        for number in [number for number in self._notes.damaged if number not in unfinished]:
            del self._notes.damaged[number]
        data = encode_checked(self._notes)
        return lambda: self._disk.replace(PATH, data)
