"""The timer wheel: where each second's list in the timer log begins and ends (docs/formats/timer-wheel.md)."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from latermq.arrays import Bools, Ints, Structs
from latermq.errors import CorruptStore
from latermq.message.slots import SLOT_MS
from latermq.store.files.disk import Disk

PATH = "timerwheel"
SLOTS = 7 * 86_400  # the file has twice as many: RocketMQ plans one round ahead and keeps one behind
SLOT = np.dtype(
    [
        ("time", ">i8"),  # in units of the precision
        ("first", ">i8"),
        ("last", ">i8"),
        ("num", ">i4"),
        ("magic", ">i4"),
    ]
)
SLOT_BYTES = SLOT.itemsize
# How far ahead to search for the next slot: a short range first, because the next slot is either near or very far.
_LOOK_AHEAD = (1 << 10, 1 << 14, 1 << 18)


class Slots(NamedTuple):
    """Slots as arrays. A slot that does not hold the requested time is empty: -1, -1, 0, 0."""

    firsts: Ints
    lasts: Ints
    counts: Ints
    renews: Ints  # how many of them are to be renewed; in the last field, which RocketMQ passes on unused


class TimerWheel:
    """The slots of one file. Memory tracks which slots are in use, because the file keeps forgotten ones."""

    def __init__(self, disk: Disk, *, slots: int = SLOTS, precision_ms: int = SLOT_MS) -> None:
        """The file's existing content counts only after `load`."""
        self.total = 2 * slots
        self._precision_ms = precision_ms
        size = self.total * SLOT_BYTES
        try:
            found = disk.file_size(PATH)
        except FileNotFoundError:
            found = 0
        self.is_blank = found == 0  # a process may have died after it created the file and before it set the size
        if found not in (0, size):
            raise CorruptStore(
                f"{PATH} has {found} bytes instead of {size}",
                hint=f"Remove {PATH}: it is rebuilt from the timer log",
            )
        self._file = disk.map_file(PATH, size)
        self._slots: Structs = np.frombuffer(self._file.map, dtype=SLOT)
        # The same data as rows of plain words: numpy moves many distant rows ten times as fast in this form.
        self._words: Ints = np.frombuffer(self._file.map, np.int64).reshape(self.total, -1)
        self._held: Bools = np.zeros(self.total, bool)
        self._held_from = 1 << 62  # no used slot is earlier; in units of the precision, like `time`
        self._is_synced = True

    def load(self, from_ms: int, forgotten: Iterable[tuple[int, int]] = ()) -> None:
        """Use the file's slots from this time on, except lists before a forgotten time that end before its position."""
        self.reserve()
        times, lasts = self._slots["time"], self._slots["last"]
        used = (times > 0) | (self._slots["num"] > 0)
        used &= times >= from_ms // self._precision_ms
        for below_ms, upto in forgotten:
            used &= (times >= below_ms // self._precision_ms) | (lasts >= upto)
        self._held = used
        self._held_from = from_ms // self._precision_ms

    # Slots

    def places(self, times_ms: Ints) -> Ints:
        """Return the indexes of these slots in the file; times one round apart share a place."""
        return times_ms // self._precision_ms % self.total

    @property
    def _is_unused(self) -> bool:
        """Whether nothing was loaded or put yet.

        Then the file is not even read, because it may have no space reserved.
        """
        return self._file.reserved < self._file.size

    def _found(self, times: Ints, indexes: Ints) -> Bools:
        if self._is_unused:
            return np.zeros(len(times), bool)
        found: Bools = self._held[indexes] & (self._slots["time"][indexes] == times)
        return found

    def holds(self, times_ms: Ints) -> Bools:
        """Which of these slots hold anything."""
        return self._found(times_ms // self._precision_ms, self.places(times_ms))

    def occupied(self, times_ms: Ints) -> Ints:
        """Return the slots whose place is in use by another time, in the wheel or among these, a round or more away."""
        times, indexes = times_ms // self._precision_ms, self.places(times_ms)
        is_occupied = np.zeros(len(times), bool)
        if not self._is_unused:
            is_occupied = self._held[indexes] & (self._slots["time"][indexes] != times)
        if len(times) and times.max() - times.min() >= self.total:
            is_first = np.zeros(len(times), bool)
            is_first[np.unique(indexes, return_index=True)[1]] = True
            is_occupied |= ~is_first
        occupied: Ints = times_ms[is_occupied]
        return occupied

    def get(self, times_ms: Ints) -> Slots:
        """Return these slots."""
        times, indexes = times_ms // self._precision_ms, self.places(times_ms)
        if self._is_unused:
            none, zeros = np.full(len(times), -1, np.int64), np.zeros(len(times), np.int64)
            return Slots(none, none.copy(), zeros, zeros.copy())
        slots = np.take(self._words, indexes, axis=0).view(SLOT)[:, 0]
        found = self._found(times, indexes)
        firsts, lasts = np.where(found, slots["first"], -1), np.where(found, slots["last"], -1)
        counts, renews = np.where(found, slots["num"], 0), np.where(found, slots["magic"], 0)
        return Slots(*(column.astype(np.int64) for column in (firsts, lasts, counts, renews)))

    def reserve(self) -> None:
        """Reserve space for the whole file before the first put. Raises StoreError if the disk is full."""
        self._file.reserve(self._file.size)

    def put(self, times_ms: Ints, slots: Slots) -> None:
        """Set these slots, each given once. `reserve` must have been called."""
        times, indexes = times_ms // self._precision_ms, self.places(times_ms)
        rows = np.zeros(len(times), SLOT)
        rows["time"], rows["first"], rows["last"], rows["num"], rows["magic"] = times, *slots
        self.is_blank = self._is_synced = False
        self._words[indexes] = rows.view(np.int64).reshape(len(rows), -1)
        self._is_synced = False  # again, because a sync may have begun before the words were written
        self._held[indexes] = True
        if len(times):
            self._held_from = min(self._held_from, int(times.min()))

    # Search

    def _held_ahead(self, time: int, start: int, stop: int) -> Ints:
        """Return the times in [time + start, time + stop) whose slots hold anything; at most one round."""
        at = time % self.total
        start, stop = at + start, at + stop
        indexes = np.flatnonzero(self._held[start : min(stop, self.total)]) + start
        if stop > self.total:
            wrapped = max(0, start - self.total)
            indexes = np.append(indexes, np.flatnonzero(self._held[wrapped : stop - self.total]) + wrapped + self.total)
        times = indexes + (time - at)
        found: Ints = times[self._slots["time"][indexes % self.total] == times]
        return found

    def _all_held(self) -> Ints:
        return self._slots["time"][self._held].astype(np.int64)

    def next_held_ms(self, from_ms: int) -> int | None:
        """Return the first slot at or after this time that holds anything."""
        time = -(-from_ms // self._precision_ms)
        start = 0
        for stop in (*_LOOK_AHEAD, self.total):
            if start < (stop := min(stop, self.total)):
                times = self._held_ahead(time, start, stop)
                if len(times):
                    return int(times[0]) * self._precision_ms
            start = stop
        times = self._all_held()
        times = times[times >= time]
        return int(times.min()) * self._precision_ms if len(times) else None

    def held_between(self, start_ms: int, stop_ms: int) -> Ints:
        """Return the slots in [start, stop) that hold anything, in order."""
        start, stop = -(-start_ms // self._precision_ms), -(-stop_ms // self._precision_ms)
        if stop <= start:
            return np.empty(0, np.int64)
        if stop - start <= self.total:
            return self._held_ahead(start, 0, stop - start) * self._precision_ms
        times = self._all_held()
        return np.sort(times[(times >= start) & (times < stop)]) * self._precision_ms

    def counts(self, start_ms: int, stop_ms: int) -> Ints:
        """Return the stored count of each slot in [start, stop), without timers to be renewed."""
        times = np.arange(start_ms // self._precision_ms, -(-stop_ms // self._precision_ms))
        indexes = times % self.total
        if self._is_unused:
            return np.zeros(len(times), np.int64)
        slots = self._slots[indexes]
        return np.where(self._found(times, indexes), slots["num"] - slots["magic"], 0).astype(np.int64)

    def count_from(self, from_ms: int) -> int:
        """Return the sum of the stored counts of all slots from this time on."""
        rows = self._slots[self._held]
        return int(rows["num"][rows["time"] >= from_ms // self._precision_ms].sum(dtype=np.int64))

    def first_beyond(self, position: int) -> int | None:
        """Return the earliest start of a list that ends after this position of the timer log; None if there is none."""
        rows = self._slots[self._held]
        firsts = rows["first"][rows["last"] > position]
        return int(firsts.min()) if len(firsts) else None

    # Forgetting

    def forget_below(self, from_ms: int) -> bool:
        """Forget the slots before this time; False if they were already empty.

        The file keeps them until their places are needed.
        """
        time = from_ms // self._precision_ms
        if time <= self._held_from:
            return False
        if time - self._held_from <= _LOOK_AHEAD[1] < self.total:
            indexes = np.arange(self._held_from, time) % self.total
            indexes = indexes[self._held[indexes]]
        else:
            indexes = np.flatnonzero(self._held)
        self._held[indexes[self._slots["time"][indexes] < time]] = False
        self._held_from = time
        return True

    def clear(self) -> None:
        """Empty all slots and free their space."""
        if self.is_blank:
            return
        self._held[:] = False
        self._held_from = 1 << 62
        self._file.zero_from(0)
        self.is_blank, self._is_synced = True, False

    def sync(self) -> None:
        """Sync everything put since the last sync. Blocks; may run concurrently with the writer."""
        if not self._is_synced:
            self._is_synced = True  # a later put needs another sync
            try:
                self._file.sync()
            except BaseException:
                self._is_synced = False
                raise

    def close(self) -> None:
        """Unmap the file."""
        # The map cannot be closed while an array refers to it.
        self._slots, self._words = np.empty(0, SLOT), np.empty((0, 0), np.int64)
        self._file.close()
