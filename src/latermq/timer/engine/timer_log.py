"""The timer log: 52 bytes per entry put or removed, linked backwards by slot (docs/formats/timer-log.md)."""

import struct
from collections.abc import Iterator

import numpy as np

from latermq.arrays import Bools, Ints, Structs
from latermq.message.slots import SLOT_MS
from latermq.store.files.disk import Disk
from latermq.store.segments import Segments

FOLDER = "timerlog"
FILE_BYTES = 100 * 1024 * 1024
UNIT = np.dtype(
    [
        ("size", ">i4"),
        ("previous", ">i8"),  # position of the previous unit of the same slot, -1 for none
        ("magic", ">i4"),
        ("write_ms", ">i8"),
        ("delay_ms", ">i4"),  # relative to write_ms
        ("offset", ">i8"),  # of the record in the commit log
        ("record_bytes", ">i4"),
        ("topic_hash", ">i4"),
        ("reserved", ">i8"),  # 0 if RocketMQ wrote the unit, otherwise the entry + 1
    ]
)
UNIT_BYTES = UNIT.itemsize
LINK = struct.Struct(">iqi")  # first fields of a unit: size, previous, magic
DEFAULT, ROLL, DELETE = 1, 2, 4  # bits of a unit's magic
MAX_MAGIC = 15  # RocketMQ accepts units with no other bits
BLANK_MAGIC = 0xCBD43194 - (1 << 32)
RESERVE_STEP_BYTES = 1024 * 1024

UnitRows = Structs


def wakes_of(units: UnitRows) -> Ints:
    """Return when these units wake. RocketMQ rounds down to the slot; its units wake at the slot's end, never early."""
    wakes: Ints = units["write_ms"].astype(np.int64) + units["delay_ms"]
    wakes += np.where(units["reserved"] == 0, SLOT_MS, 0)
    return wakes


def is_unit(units: UnitRows) -> Bools:
    """Which of these can be valid units."""
    magic = units["magic"]
    found: Bools = (units["size"] == UNIT_BYTES) & (magic >= 0) & (magic <= MAX_MAGIC)
    return found


class TimerLog:
    """Consecutive units in files. No unit crosses a file boundary; the rest of a file is blank.

    A unit's position identifies it. One thread writes and reads; `sync` may run concurrently.
    """

    def __init__(self, disk: Disk, *, file_bytes: int = FILE_BYTES, promised_end: int | None = None) -> None:
        """`promised_end` is the end of the log according to a mark; see `Segments`."""
        self._disk = disk
        self.file_bytes = file_bytes
        self.file_units = (file_bytes - LINK.size) // UNIT_BYTES  # leaves space for a blank after them
        self._segments = Segments(disk, FOLDER, file_bytes, promised_end)
        # Assume that the files are full; the code that opens the log sets the true end.
        self.end = self._segments.end  # position of the next unit
        self._synced = self.end

    def _number(self, position: int) -> int:
        return position // self.file_bytes * self.file_units + position % self.file_bytes // UNIT_BYTES

    def _position(self, number: int) -> int:
        file, row = divmod(number, self.file_units)
        return file * self.file_bytes + row * UNIT_BYTES

    @property
    def start(self) -> int:
        """The first position that is kept."""
        return self._segments.start

    @property
    def files(self) -> int:
        return len(self._segments)

    # Writing

    def make_room(self, count: int) -> None:
        """Reserve space for the next units. Raises StoreError if the disk is full, and then changes nothing."""
        number = self._number(self.end)
        while count:
            file_number, row = divmod(number, self.file_units)
            here = min(count, self.file_units - row)
            needed = (row + here) * UNIT_BYTES + LINK.size
            upto = min(self.file_bytes, -(-needed // RESERVE_STEP_BYTES) * RESERVE_STEP_BYTES)
            start = file_number * self.file_bytes
            if start >= self._segments.end:
                file = self._segments.make_next()
                file.reserve(upto)
                self._segments.adopt(file)
            else:
                self._segments.file_at(start).reserve(upto)
            number += here
            count -= here

    def next_positions(self, count: int) -> Ints:
        """Return the positions of the next units."""
        number = self._number(self.end)
        files, rows = np.divmod(np.arange(number, number + count), self.file_units)
        positions: Ints = files * self.file_bytes + rows * UNIT_BYTES
        return positions

    def append(self, units: UnitRows) -> Ints:
        """Append units, for which `make_room` has reserved space, and return their positions."""
        positions = self.next_positions(len(units))
        raw = units.view(np.uint8).data
        while raw:
            at = self.end
            inside = at % self.file_bytes
            if inside == 0 and at > self.start:
                self._write_blank(at - self.file_bytes)
            part = raw[: self.file_units * UNIT_BYTES - inside]
            self._segments.file_at(at).map[inside : inside + len(part)] = part
            self.end = self._position(self._number(at) + len(part) // UNIT_BYTES)
            raw = raw[len(part) :]
        return positions

    def _write_blank(self, file_start: int) -> None:
        """Fill the tail of a full file, as RocketMQ does when the next unit does not fit."""
        at = self.file_units * UNIT_BYTES
        file = self._segments.file_at(file_start)
        file.reserve(at + LINK.size)
        LINK.pack_into(file.map, at, self.file_bytes - at, 0, BLANK_MAGIC)

    def sync(self) -> None:
        """Sync everything added since the last sync. Blocks; may run concurrently with the writer."""
        segments, end = self._segments, self.end
        if end > self._synced:
            segments.sync(self._synced, end)
            if segments is self._segments:  # not restarted in the meantime
                self._synced = end

    # Reading

    def holds(self, position: int) -> bool:
        """Whether this can be the position of a unit."""
        if not self.start <= position < self.end:
            return False
        inside = position % self.file_bytes
        return inside % UNIT_BYTES == 0 and inside < self.file_units * UNIT_BYTES

    def read(self, position: int, count: int) -> UnitRows:
        """Return units from this position on: at most `count`, and at most to the end of the file."""
        count = min(count, self._number(self.end) - self._number(position))
        inside = position % self.file_bytes
        stop = min(inside + count * UNIT_BYTES, self.file_units * UNIT_BYTES)
        # A copy, because a view would prevent the file from being closed.
        return np.frombuffer(self._segments.file_at(position).map[inside:stop], dtype=UNIT)

    def read_upto(self, position: int, count: int) -> UnitRows:
        """Return units up to and including this position: at most `count`, and at most from the start of the file."""
        count = min(count, position % self.file_bytes // UNIT_BYTES + 1)
        return self.read(position - (count - 1) * UNIT_BYTES, count)

    def raw_unit(self, position: int) -> bytes:
        """Return one unit as it is stored; empty if the position is invalid."""
        if not self.holds(position):
            return b""
        inside = position % self.file_bytes
        return self._segments.file_at(position).map[inside : inside + UNIT_BYTES]

    def chunks(self, count: int) -> Iterator[tuple[int, UnitRows]]:
        """Yield all units, at most `count` at once and from one file, with the position of the first."""
        position = self.start
        while position < self.end:
            units = self.read(position, count)
            yield position, units
            position = self._position(self._number(position) + len(units))

    def looks_sound(self) -> bool:
        """Whether each file begins and ends with a valid unit."""
        for start in range(self.start, self.end, self.file_bytes):
            last = min(self.end, start + self.file_units * UNIT_BYTES) - UNIT_BYTES
            if not is_unit(self.read(start, 1))[0] or not is_unit(self.read(last, 1))[0]:
                return False
        return True

    # Open and truncate

    def open_at(self, end: int) -> bool:
        """Make this the end of the log and discard everything after it; False if the log is shorter."""
        if not self._segments.start <= end <= self._segments.end:
            return False
        self.cut(end)
        return True

    def cut(self, end: int) -> None:
        """Discard everything from this position on."""
        self.end = self._synced = self._position(self._number(end))
        self._segments.cut(self.end)

    def drop_first(self) -> None:
        """Remove the oldest file, which is not the one being written."""
        self._segments.remove_first()

    def restart_at(self, position: int) -> None:
        """Start again, empty, with the first file at or after this position."""
        self._segments.close()
        self._disk.remove(FOLDER)
        self._segments = Segments(self._disk, FOLDER, self.file_bytes)
        self._segments.begin_at(position + self.file_bytes - 1)
        self.end = self._synced = self._segments.start

    def close(self) -> None:
        """Unmap all files."""
        self._segments.close()
