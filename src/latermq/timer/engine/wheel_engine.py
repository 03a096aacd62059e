"""The engine that is RocketMQ's own: the timer log, and the wheel that says where each second's list in it ends."""

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
    """The rows in the order of their slots, those of one slot as they came."""
    seconds = slots // SLOT_MS
    seconds -= seconds.min()
    # Of short numbers numpy makes a radix sort, three times as fast.
    return np.argsort(seconds.astype(np.uint16) if seconds.max() < 1 << 16 else seconds, kind="stable")


def _rows(units: Units, magics: Ints, now_ms: int) -> UnitRows:
    """The units as the log holds them, without their links."""
    rows = np.zeros(len(magics), UNIT)
    # A time that is too far off for the field is told from another write time: only their sum counts.
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
    """A slot's place in the wheel is held by a time 14 days or more away, whose entries are not delivered yet."""


class _Mark(NamedTuple):
    """What a checkpoint says of the files."""

    end: int  # of the timer log
    forgotten: list[Forgotten]
    first_file: int
    latest_slots: list[int]  # for each file the latest slot of its units

    @classmethod
    def parse(cls, text: str) -> "_Mark | None":
        """None for what this engine did not write."""
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
    """Entries by slot. `is_whole` says whether the files held what the mark promised; if not, it starts empty.

    After a crash the log is cut at the mark and the wheel is built again from the log; after a clean stop the wheel
    is taken as it is. So the order in which the two reach the disk does not matter.
    """

    def __init__(
        self, disk: Disk, *, mark: str, from_ms: int, is_clean: bool, file_bytes: int = timer_log.FILE_BYTES
    ) -> None:
        """`mark` and `from_ms` (T) are those of the checkpoint on disk; the empty mark is that of an empty engine."""
        self._disk = disk
        self._latest_slots: dict[int, int] = {}  # file of the log → the latest slot of its units
        self._forgotten: list[Forgotten] = []  # with ever earlier times: a later one covers what is before it
        self._promised_end = -1  # the furthest end of the log that a mark names
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
        except CorruptStore:  # of another length: like one that is missing
            self._disk.remove(timer_wheel.PATH)
            return TimerWheel(self._disk)

    def _open_log(self, file_bytes: int, promised_end: int) -> TimerLog:
        try:
            return TimerLog(self._disk, file_bytes=file_bytes, promised_end=promised_end)
        except CorruptStore:  # a file is missing between others, or of another length
            self._disk.remove(timer_log.FOLDER)
            return TimerLog(self._disk, file_bytes=file_bytes)

    def _adopt(self, mark: _Mark, from_ms: int, is_clean: bool) -> bool:
        """Take over what the files hold; False where it is not what the mark promises."""
        latest = dict(enumerate(mark.latest_slots, mark.first_file))
        needed = [file for file, slot in latest.items() if slot >= from_ms]
        if not needed:
            self._log.restart_at(mark.end)
            self._wheel.clear()
        elif min(needed) * self._log.file_bytes < self._log.start or not self._log.open_at(mark.end):
            return False
        self._forgotten = mark.forgotten
        self._note_forgotten(from_ms)  # even if a later T should be earlier
        if not needed:
            return True
        if is_clean and self._is_wheel_sound(mark, from_ms):
            self._latest_slots = {file: slot for file, slot in latest.items() if file >= self._first_file}
            return True
        rebuilt = rebuild_wheel(self._log, self._wheel, from_ms, mark.forgotten)
        self._latest_slots = rebuilt or {}
        return rebuilt is not None

    def _is_wheel_sound(self, mark: _Mark, from_ms: int) -> bool:
        """A look at the wheel that a clean stop left, and at both ends of each file of the log."""
        if self._wheel.is_blank or not self._log.looks_sound():
            return False
        self._wheel.load(from_ms, mark.forgotten)
        first = self._wheel.first_beyond(-1)
        is_beyond = self._wheel.first_beyond(self._log.end - UNIT_BYTES) is not None
        return not is_beyond and (first is None or first >= self._log.start)

    # Writing

    def put(self, units: Units, now_ms: int) -> None:
        """Keep these. Raises StoreError, with nothing changed, for want of space or of a free slot."""
        self._write(units, np.where(units.renews, DEFAULT | ROLL, DEFAULT), now_ms)

    def remove(self, units: Units, now_ms: int) -> None:
        """Write a delete unit into the slot of each. A slot that holds nothing has nothing to lose."""
        units = units.where(self._wheel.holds(slots_of(units.wakes)))
        self._write(units, np.where(units.renews, DEFAULT | DELETE | ROLL, DEFAULT | DELETE), now_ms)

    def _write(self, units: Units, magics: Ints, now_ms: int) -> None:
        slots = slots_of(units.wakes)
        count = len(slots)
        if not count:
            return
        if (slots[1:] < slots[:-1]).any():
            # The units of one slot stand together, so that its list can be read in runs.
            order = _order(slots)
            units, magics, slots = units.where(order), magics[order], slots[order]
        heads = np.flatnonzero(np.concatenate(([True], slots[1:] != slots[:-1])))
        tails = np.append(heads[1:], count) - 1
        own = slots[heads]
        if len(occupied := self._wheel.occupied(own)):
            raise SlotOccupied(
                f"the wheel holds entries of another round in {len(occupied)} slots, the first of them {occupied[0]}",
                hint="They are free again when the overdue timers are delivered",
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
        """Sync both files. Blocks; runs beside the writer."""
        self._log.sync()
        self._wheel.sync()

    # Reading

    def read(self, start_ms: int, stop_ms: int) -> Iterator[Units]:
        """What wakes in (start, stop], slot by slot, the newest of each slot first."""
        for slot_ms in self._wheel.held_between(start_ms, stop_ms).tolist():
            last = int(self._wheel.get(np.array([slot_ms])).lasts[0])
            yield from read_slot(self._log, slot_ms, last, PIECE)

    def next_slot_ms(self, from_ms: int) -> int | None:
        """The first slot at or after this time that holds units, be they of removed entries."""
        return self._wheel.next_held_ms(from_ms)

    def density(self, start_ms: int, stop_ms: int) -> Ints:
        """How many are due in each second of (start, stop], by the wheel's counts."""
        return self._wheel.counts(start_ms, stop_ms)

    def count(self, slot_ms: int) -> int:
        """How many wake in the second of one slot, by the wheel's count."""
        return int(self._wheel.get(np.array([slot_ms])).counts[0])

    # Forgetting

    def forget_below(self, wake_ms: int) -> None:
        """Let go of the slots that lie wholly before this time, and of the files that hold no others."""
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
        """Forget everything. The log goes on behind whatever a mark on disk may name, so no such mark fits it."""
        self._log.restart_at(self._promised_end + 1)
        self._wheel.clear()
        self._latest_slots.clear()
        self._forgotten = []

    def mark(self) -> str:
        """The end of the log, what is forgotten, and which files are needed until when."""
        self._promised_end = max(self._promised_end, self._log.end)
        latest = sorted(self._latest_slots.items())
        first_file = latest[0][0] if latest else self._first_file
        return str(_Mark(self._log.end, self._forgotten, first_file, [slot for _, slot in latest]))

    def statistics(self) -> dict[str, int]:
        """How much there is."""
        return {
            "engine_units": self._wheel.count_from(0),
            "engine_log_bytes": self._log.end - self._log.start,
            "engine_log_files": self._log.files,
        }

    def close(self) -> None:
        """Unmap all files."""
        self._wheel.close()
        self._log.close()
