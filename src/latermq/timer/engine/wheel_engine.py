"""The wheel engine, as in RocketMQ: the timer log, and the wheel that says where each second's list in it ends."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from latermq.arrays import Indices, Ints
from latermq.errors import CorruptStore, StoreError
from latermq.message.slots import SLOT_MS, slot_of, slots_of
from latermq.store.files.disk import Disk
from latermq.timer.engine import timer_log, timer_wheel
from latermq.timer.engine.interface import PIECE, Units
from latermq.timer.engine.slot_list import read_slot
from latermq.timer.engine.timer_log import DEFAULT, DELETE, ROLL, UNIT, UNIT_BYTES, TimerLog, UnitRows
from latermq.timer.engine.timer_wheel import Slots, TimerWheel
from latermq.timer.engine.wheel_recovery import Forgotten, rebuild_wheel

_MIN_DELAY_MS, _MAX_DELAY_MS = -(1 << 31), (1 << 31) - 1


def _order(slots: Ints) -> Indices:
    """Return the row indexes sorted by slot. The order within a slot is unchanged."""
    seconds = slots // SLOT_MS
    seconds -= seconds.min()
    # For 16-bit integers numpy uses a radix sort, which is three times as fast.
    return np.argsort(seconds.astype(np.uint16) if seconds.max() < 1 << 16 else seconds, kind="stable")


def _rows(units: Units, magics: Ints, now_ms: int) -> UnitRows:
    """Return the units in the log's format, without their links."""
    rows = np.zeros(len(magics), UNIT)
    # A delay that does not fit the field changes the write time instead: only the sum of both counts.
    delays = np.clip(units.wakes - now_ms, _MIN_DELAY_MS, _MAX_DELAY_MS)
    rows["size"] = UNIT_BYTES
    rows["magic"] = magics
    rows["write_ms"] = units.wakes - delays
    rows["delay_ms"] = delays
    rows["offset"] = units.physical_offsets
    rows["record_bytes"] = units.sizes
    rows["reserved"] = units.entries + 1
    return rows


class SlotOccupied(StoreError):
    """A slot's place in the wheel is in use by a time at least 14 days away, with entries not yet delivered."""


class _Mark(NamedTuple):
    """The state of the files, as recorded in a checkpoint."""

    end: int  # of the timer log
    forgotten: list[Forgotten]
    first_file: int
    latest_slots: list[int]  # the latest slot of each file's units

    @classmethod
    def parse(cls, text: str) -> "_Mark | None":
        """Parse a mark; None if this engine did not write it."""
        try:
            end, forgotten, first_file, latest_slots = text.split(";")
            pairs = [pair.split("@") for pair in forgotten.split()]
            steps = [Forgotten(int(below_ms), int(upto)) for below_ms, upto in pairs]
            return cls(int(end), steps, int(first_file), [int(slot_ms) for slot_ms in latest_slots.split()])
        except ValueError:
            return None

    def __str__(self) -> str:
        forgotten = " ".join(f"{below_ms}@{upto}" for below_ms, upto in self.forgotten)
        return f"{self.end};{forgotten};{self.first_file};{' '.join(map(str, self.latest_slots))}"


class WheelEngine:
    """Entries by slot. `is_whole` says whether the files hold what the mark promises; if not, the engine starts empty.

    After a crash the log is truncated at the mark and the wheel is rebuilt from the log. After a clean stop the wheel
    is used as it is. So the order in which the two reach the disk does not matter.
    """

    def __init__(
        self, disk: Disk, *, mark: str, from_ms: int, is_clean: bool, file_bytes: int = timer_log.FILE_BYTES
    ) -> None:
        """`mark` and `from_ms` (T) come from the checkpoint on disk. The empty mark denotes an empty engine."""
        self._disk = disk
        self._latest_slots: dict[int, int] = {}  # file of the log → the latest slot of its units
        self._forgotten: list[Forgotten] = []  # in order of decreasing times: a new step replaces those it covers
        self._promised_end = -1  # the highest end of the log in any mark
        self._wheel = self._open_wheel()
        promised = _Mark.parse(mark)
        self._log = self._open_log(file_bytes, promised.end if promised else 0)
        self.is_whole = not mark
        if promised:
            self._promised_end = promised.end
            self.is_whole = self._adopt(promised, slot_of(from_ms), is_clean)
        if not mark or not self.is_whole:
            self.clear()

    @property
    def _first_file(self) -> int:
        return self._log.start // self._log.file_bytes

    # Opening

    def _open_wheel(self) -> TimerWheel:
        try:
            return TimerWheel(self._disk)
        except CorruptStore:  # wrong length: treated as missing
            self._disk.remove(timer_wheel.PATH)
            return TimerWheel(self._disk)

    def _open_log(self, file_bytes: int, promised_end: int) -> TimerLog:
        try:
            return TimerLog(self._disk, file_bytes=file_bytes, promised_end=promised_end)
        except CorruptStore:  # a file is missing between others, or has the wrong length
            self._disk.remove(timer_log.FOLDER)
            return TimerLog(self._disk, file_bytes=file_bytes)

    def _adopt(self, mark: _Mark, from_ms: int, is_clean: bool) -> bool:
        """Adopt the content of the files; False if it is not what the mark promises."""
        latest = dict(enumerate(mark.latest_slots, mark.first_file))
        needed = [file for file, slot in latest.items() if slot >= from_ms]
        if not needed:
            self._log.restart_at(mark.end)
            self._wheel.clear()
        elif min(needed) * self._log.file_bytes < self._log.start or not self._log.open_at(mark.end):
            return False
        self._forgotten = mark.forgotten
        self._note_forgotten(from_ms)  # kept in case a later T is earlier
        if not needed:
            return True
        if is_clean and self._is_wheel_sound(mark, from_ms):
            self._latest_slots = {file: slot for file, slot in latest.items() if file >= self._first_file}
            return True
        rebuilt = rebuild_wheel(self._log, self._wheel, from_ms, mark.forgotten)
        self._latest_slots = rebuilt or {}
        return rebuilt is not None

    def _is_wheel_sound(self, mark: _Mark, from_ms: int) -> bool:
        """Check the wheel left by a clean stop, and both ends of each file of the log."""
        if self._wheel.is_blank or not self._log.looks_sound():
            return False
        self._wheel.load(from_ms, mark.forgotten)
        first = self._wheel.first_beyond(-1)
        is_beyond = self._wheel.first_beyond(self._log.end - UNIT_BYTES) is not None
        return not is_beyond and (first is None or first >= self._log.start)

    # Writing

    def put(self, units: Units, now_ms: int) -> None:
        """Store these. Raises StoreError, with nothing changed, if the disk is full or a slot is occupied."""
        self._write(units, np.where(units.renews, DEFAULT | ROLL, DEFAULT), now_ms)

    def remove(self, units: Units, now_ms: int) -> None:
        """Write a delete unit into the slot of each. An empty slot needs none."""
        units = units.where(self._wheel.holds(slots_of(units.wakes)))
        self._write(units, np.where(units.renews, DEFAULT | DELETE | ROLL, DEFAULT | DELETE), now_ms)

    def _write(self, units: Units, magics: Ints, now_ms: int) -> None:
        slots = slots_of(units.wakes)
        count = len(slots)
        if not count:
            return
        if (slots[1:] < slots[:-1]).any():
            # Units of one slot are stored together, so that its list can be read in runs.
            order = _order(slots)
            units, magics, slots = units.where(order), magics[order], slots[order]
        heads = np.flatnonzero(np.concatenate(([True], slots[1:] != slots[:-1])))
        tails = np.append(heads[1:], count) - 1
        own = slots[heads]
        if len(occupied := self._wheel.occupied(own)):
            raise SlotOccupied(
                f"{len(occupied)} slots of the wheel hold entries of another round; the first is {occupied[0]}",
                hint="They become free when the overdue timers are delivered",
            )
        self._log.make_room(count)
        self._wheel.reserve()
        before = self._wheel.get(own)
        positions = self._log.next_positions(count)
        rows = _rows(units, magics, now_ms)
        rows["previous"][1:] = positions[:-1]
        rows["previous"][heads] = before.lasts
        self._log.append(rows)
        signs = np.where(magics & DELETE, -1, 1)
        counts = np.maximum(before.counts + np.add.reduceat(signs, heads), 0)
        renews = np.clip(before.renews + np.add.reduceat(np.where(magics & ROLL, signs, 0), heads), 0, counts)
        firsts = np.where(before.firsts < 0, positions[heads], before.firsts)
        self._wheel.put(own, Slots(firsts, positions[tails], counts, renews))
        self._note_latest(positions, slots)

    def _note_latest(self, positions: Ints, slots: Ints) -> None:
        first, last = int(positions[0]) // self._log.file_bytes, int(positions[-1]) // self._log.file_bytes
        for file in range(first, last + 1):
            upto = int(np.searchsorted(positions, (file + 1) * self._log.file_bytes))
            self._latest_slots[file] = max(self._latest_slots.get(file, 0), int(slots[upto - 1]))

    def sync(self) -> None:
        """Sync both files. Blocks; may run concurrently with the writer."""
        self._log.sync()
        self._wheel.sync()

    # Reading

    def read(self, start_ms: int, stop_ms: int) -> Iterator[Units]:
        """Yield the units that wake in (start, stop], slot by slot, newest first within a slot."""
        for slot_ms in self._wheel.held_between(start_ms, stop_ms).tolist():
            last = int(self._wheel.get(np.array([slot_ms])).lasts[0])
            yield from read_slot(self._log, slot_ms, last, PIECE)

    def next_slot_ms(self, from_ms: int) -> int | None:
        """Return the first slot at or after this time that holds units, even if only of removed entries."""
        return self._wheel.next_held_ms(from_ms)

    def density(self, start_ms: int, stop_ms: int) -> Ints:
        """Number of timers due in each second of (start, stop], from the wheel's counts."""
        return self._wheel.counts(start_ms, stop_ms)

    def count(self, slot_ms: int) -> int:
        """Number of timers that wake in the second of one slot, from the wheel's count."""
        return int(self._wheel.get(np.array([slot_ms])).counts[0])

    # Forgetting

    def forget_below(self, wake_ms: int) -> None:
        """Release the slots that lie entirely before this time, and the files that hold no others."""
        below_ms = slot_of(wake_ms)
        if not self._wheel.forget_below(below_ms):
            return
        self._note_forgotten(below_ms)
        while (file := self._first_file) < self._log.end // self._log.file_bytes:
            if self._latest_slots.get(file, 0) >= below_ms:
                break
            self._latest_slots.pop(file, None)
            self._log.drop_first()

    def _note_forgotten(self, below_ms: int) -> None:
        later = [step for step in self._forgotten if step.below_ms > below_ms]
        self._forgotten = [*later, Forgotten(below_ms, self._log.end)]

    def clear(self) -> None:
        """Forget everything.

        The log continues after any position that a mark on disk may name, so no such mark fits it.
        """
        self._log.restart_at(self._promised_end + 1)
        self._wheel.clear()
        self._latest_slots.clear()
        self._forgotten = []

    def mark(self) -> str:
        """Return the end of the log, the forgotten ranges, and until when each file is needed."""
        self._promised_end = max(self._promised_end, self._log.end)
        latest = sorted(self._latest_slots.items())
        first_file = latest[0][0] if latest else self._first_file
        return str(_Mark(self._log.end, self._forgotten, first_file, [slot for _, slot in latest]))

    def statistics(self) -> dict[str, int]:
        """Number of units, and size of the log."""
        return {
            "engine_units": self._wheel.count_from(0),
            "engine_log_bytes": self._log.end - self._log.start,
            "engine_log_files": self._log.files,
        }

    def close(self) -> None:
        """Unmap all files."""
        self._wheel.close()
        self._log.close()
