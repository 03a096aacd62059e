"""What is durably known of windows beside the attempts that are played: attempts found damaged, windows given up."""

from collections.abc import Callable, Collection

import msgspec

from latermq.handover.checked_file import decode_checked, encode_checked
from latermq.store.files.disk import Disk

PATH = "latermq.windownotes"
KEPT_SKIPS = 100  # of windows that are done with, so that an operator can look at what became of them
MAX_DAMAGED = 100  # attempts of one window that are remembered
MAX_REASON = 500


class SkipNote(msgspec.Struct, kw_only=True):
    """A window that an operator gave up: its timers become dead letters."""

    cut_entry: int
    asked_ms: int
    letters: int = 0  # that were written; those of an earlier start of the broker are not counted
    unread: int = 0  # of these, how many have a name only: their records could not be read
    is_done: bool = False


class _Notes(msgspec.Struct, kw_only=True):
    damaged: dict[int, dict[str, str]] = msgspec.field(default_factory=dict)  # attempts and what is wrong with them
    skipped: dict[int, SkipNote] = msgspec.field(default_factory=dict)


class WindowNotes:
    """Changed by the thread that serves; what `writer` gives may run beside it, one after the other."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        data = disk.read(PATH)
        hint = f"Remove {PATH}: attempts are then checked again, and a window that was being skipped is played"
        self._notes = _Notes() if data is None else decode_checked(data, _Notes, PATH, hint)

    def damaged(self, number: int) -> dict[str, str]:
        """The attempts of a window whose content was found wrong, and how."""
        return dict(self._notes.damaged.get(number, {}))

    def note_damage(self, number: int, attempt: str, reason: str) -> None:
        """An attempt does not hold what it should."""
        known = self._notes.damaged.setdefault(number, {})
        known[attempt] = reason[:MAX_REASON]
        while len(known) > MAX_DAMAGED:
            del known[next(iter(known))]

    def forget_damage(self, number: int) -> None:
        """Look at all attempts of a window again."""
        self._notes.damaged.pop(number, None)

    def skip_of(self, number: int, cut_entry: int) -> SkipNote | None:
        """Whether this very window is skipped; a number may come again in a store that was put back."""
        note = self._notes.skipped.get(number)
        return note if note is not None and note.cut_entry == cut_entry else None

    def skips(self) -> dict[int, SkipNote]:
        """All that are known, by window."""
        return dict(self._notes.skipped)

    def note_skip(self, number: int, note: SkipNote) -> None:
        """A window is given up, or further than it was."""
        self._notes.skipped[number] = note

    def forget_skip(self, number: int) -> None:
        """A skip that was asked for is not."""
        self._notes.skipped.pop(number, None)

    def writer(self, unfinished: Collection[int]) -> Callable[[], None]:
        """What makes the notes durable as they are now, those on windows that are done with left out. Blocks."""
        over = [number for number in sorted(self._notes.skipped) if number not in unfinished]
        for number in over[: max(0, len(over) - KEPT_SKIPS)]:
            del self._notes.skipped[number]
        for number in [number for number in self._notes.damaged if number not in unfinished]:
            del self._notes.damaged[number]
        data = encode_checked(self._notes)
        return lambda: self._disk.replace(PATH, data)
