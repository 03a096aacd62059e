"""The RocksDB engine: one range of rows ordered by wake time, with hands that read ahead."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from latermq.arrays import Bools, Ints
from latermq.errors import StoreError
from latermq.message.slots import SLOT_MS, next_slot_start, slot_of, slots_of
from latermq.timer.engine.interface import PIECE, Units
from latermq.timer.engine.read_ahead import MINUTE_MS, Hands
from latermq.timer.engine.rocksdb_rows import KEY_BYTES, RocksRows, key_from, rows_of, units_of

MARK_PREFIX = "rocksdb"
FORGET_AT_LEAST_MS = 10_000  # every deleted range slows down all later seeks, so deletes are few and large
COUNTED_SECONDS = 4_096
COUNT_SECOND = 1_000_000  # keys read for one second: 0.4 s, once
COUNT_RANGE = 200_000  # keys read for a range; beyond them, seconds are sampled
SAMPLES = 60
SAMPLE = 2_000
_Counts = dict[int, tuple[int, int]]  # slot -> number of rows that wake in it, and their highest entry


def _parse_mark(mark: str) -> tuple[int, int] | None:
    """Return generation and sequence; None for a mark of another engine."""
    prefix, *numbers = mark.split(":")
    if prefix != MARK_PREFIX or len(numbers) != 2:
        return None
    return int(numbers[0]), int(numbers[1])


def _in_slots(wakes: Ints, counts: _Counts) -> Bools:
    """Which of these wake in a second that is counted."""
    return np.isin(slots_of(wakes), list(counts)) if counts else np.zeros(len(wakes), bool)


def _count_more(counts: _Counts, slots: Ints, entries: Ints) -> None:
    """Update the counts of seconds into which rows were put; `slots` is sorted.

    Entries arrive in order, so any entry above the highest is new. After a start, entries may arrive again. Their slot
    is then counted from scratch.
    """
    starts = np.flatnonzero(np.diff(slots, prepend=-1))
    columns = (
        slots[starts],
        np.diff(starts, append=len(slots)),
        np.minimum.reduceat(entries, starts),
        np.maximum.reduceat(entries, starts),
    )
    for slot_ms, size, lowest, highest in zip(*(column.tolist() for column in columns), strict=True):
        count, known_highest = counts.pop(slot_ms)
        if lowest > known_highest:
            counts[slot_ms] = (count + size, highest)


class RocksEngine:
    """An Engine (interface.py) with its rows in RocksDB."""

    def __init__(self, folder: Path, *, mark: str, from_ms: int) -> None:
        """Open the folder. `mark` is the checkpoint's, "" without a checkpoint. `from_ms` is the checkpoint's T.

        `is_whole` is False if the mark promises more than the folder holds. The engine is then empty and must be
        refilled.
        """
        self._rows = RocksRows(folder)
        self._hands = Hands(self._rows)
        self._counts: _Counts = {}
        self._done_below_ms = from_ms  # rows that wake earlier and existed then are hidden
        self._deleted_below_ms = 0  # hidden rows that wake earlier are already deleted
        found = self._rows.generation()
        promised = _parse_mark(mark)
        self._generation = max(found or 0, promised[0] if promised else 0)
        holds_mark = promised is not None and promised[0] == found and promised[1] <= self._rows.sequence()
        self.is_whole = holds_mark or not mark
        if not holds_mark:
            # Without a mark it is unknown what the rows of an old folder refer to.
            self._renew(is_empty=found is None and not self._rows.was_damaged and self._rows.sequence() == 0)

    def _renew(self, *, is_empty: bool = False) -> None:
        """Become empty, with a generation that no mark has used before."""
        if not is_empty:
            self._rows.recreate()
        self._generation += 1
        self._rows.set_generation(self._generation)
        self._hands.drop()
        self._counts.clear()

    # Put and remove

    def put(self, units: Units, now_ms: int) -> None:
        if not len(units.entries):
            return
        rows = rows_of(units)
        wakes = rows["wake"].astype(np.int64)
        if wakes[0] < self._done_below_ms:
            # Short timers can arrive after a checkpoint with a later T. They count; rows delivered before them do not.
            self._delete_done()
            self._done_below_ms = self._deleted_below_ms = int(wakes[0])
            self._hands.drop()
        self._hands.changed(wakes, added=True)
        with self._count_changes() as counts:
            self._rows.put(rows)
            counted = _in_slots(wakes, counts)
            if counted.any():
                _count_more(counts, slots_of(wakes[counted]), rows["entry"][counted].astype(np.int64))

    def remove(self, units: Units, now_ms: int) -> None:
        if not len(units.entries):
            return
        rows = rows_of(units)
        wakes = rows["wake"].astype(np.int64)
        self._hands.changed(wakes, added=False)
        with self._count_changes() as counts:
            counted = _in_slots(wakes, counts)
            there: Ints = wakes[:0]
            if counted.any():
                known = rows[counted]
                known = known[np.append(True, known[1:] != known[:-1])]
                there = slots_of(known["wake"].astype(np.int64)[self._rows.present(known)])
            self._rows.delete(rows)
            for slot_ms, size in zip(*(part.tolist() for part in np.unique(there, return_counts=True)), strict=True):
                count, highest = counts[slot_ms]
                counts[slot_ms] = (count - size, highest)

    @contextlib.contextmanager
    def _count_changes(self) -> Iterator[_Counts]:
        """Yield the counts while rows change. If the change fails halfway, all counts are dropped."""
        counts, self._counts = self._counts, {}
        yield counts
        self._counts = counts

    def forget_below(self, wake_ms: int) -> None:
        if wake_ms <= self._done_below_ms:
            return
        # Everything below is hidden from now on. Its space can be freed later.
        self._done_below_ms = wake_ms
        for slot_ms in [slot_ms for slot_ms in self._counts if slot_ms < wake_ms]:
            del self._counts[slot_ms]
        if wake_ms - self._deleted_below_ms >= FORGET_AT_LEAST_MS:
            with contextlib.suppress(StoreError):  # the next call also deletes these rows
                self._delete_done()

    def _delete_done(self) -> None:
        first_ms = self._rows.first_wake_ms(self._deleted_below_ms)
        if first_ms is not None and first_ms < self._done_below_ms:
            self._rows.delete_between(self._deleted_below_ms, self._done_below_ms)
        self._deleted_below_ms = self._done_below_ms

    def clear(self) -> None:
        self._renew()

    # Reading

    def read(self, start_ms: int, stop_ms: int) -> Iterator[Units]:
        if stop_ms - start_ms > MINUTE_MS or start_ms % SLOT_MS:
            yield from self._read_plain(start_ms, stop_ms)
            return
        for slot_ms in range(start_ms, stop_ms, SLOT_MS):
            rows = self._hands.second(slot_ms, self._done_below_ms) if slot_ms >= self._done_below_ms else None
            if rows is None:
                yield from self._read_plain(slot_ms, min(slot_ms + SLOT_MS, stop_ms))
            elif len(rows):
                yield units_of(rows)

    def _read_plain(self, start_ms: int, stop_ms: int) -> Iterator[Units]:
        """Read from the database. Each piece does its own seek, so that a reader that pauses keeps nothing open."""
        first, below = key_from(max(start_ms + 1, self._done_below_ms)), key_from(stop_ms + 1)
        while first < below:
            rows = self._rows.read(first, below, PIECE)
            if len(rows):
                yield units_of(rows)
            if len(rows) < PIECE:
                break
            first = rows[-1:].tobytes()[:KEY_BYTES] + b"\0"

    def next_slot_ms(self, from_ms: int) -> int | None:
        slot_ms = next_slot_start(from_ms)
        wake_ms = self._rows.first_wake_ms(max(slot_ms + 1, self._done_below_ms))
        return None if wake_ms is None else slot_of(wake_ms)

    # Counting

    def density(self, start_ms: int, stop_ms: int) -> Ints:
        """Exact for the first COUNT_RANGE rows. Later seconds are sampled, and there timers to be renewed count too."""
        seconds = (stop_ms - start_ms) // SLOT_MS
        if seconds == 1 and self.count(start_ms) > COUNT_RANGE:
            return np.array([self.count(start_ms)], np.int64)
        first, below = key_from(max(start_ms + 1, self._done_below_ms)), key_from(stop_ms + 1)
        if first >= below:
            return np.zeros(seconds, np.int64)
        rows = self._rows.read(first, below, COUNT_RANGE)
        found = (rows["wake"].astype(np.int64) - 1 - start_ms) // SLOT_MS
        counts = np.bincount(found[rows["renews"] == 0], minlength=seconds)
        if len(found) == COUNT_RANGE:
            # The scan ended within this second, so its count is incomplete.
            last = int(found[-1])
            counts[last:] = self._sample(start_ms, last, seconds)
        return counts

    def _sample(self, start_ms: int, first: int, seconds: int) -> Ints:
        samples = np.unique(np.linspace(first, seconds - 1, SAMPLES).astype(np.int64))
        starts_ms = [start_ms + second * SLOT_MS for second in samples.tolist()]
        found = [
            len(self._rows.read_keys(key_from(at_ms + 1), key_from(at_ms + SLOT_MS + 1), SAMPLE)) for at_ms in starts_ms
        ]
        return np.interp(np.arange(first, seconds), samples, found).astype(np.int64)

    def count(self, slot_ms: int) -> int:
        """Count one second. Admission requests the same seconds repeatedly, so a count is kept and updated."""
        known = self._counts.get(slot_ms)
        if known is None:
            first, below = key_from(max(slot_ms + 1, self._done_below_ms)), key_from(slot_ms + SLOT_MS + 1)
            if first >= below:
                return 0
            entries = self._rows.read_keys(first, below, COUNT_SECOND)[:, 1]
            known = (len(entries), int(entries.max()) if len(entries) else -1)
            if len(self._counts) >= COUNTED_SECONDS:
                del self._counts[next(iter(self._counts))]
            self._counts[slot_ms] = known
        return known[0]

    # Marks

    def mark(self) -> str:
        return f"{MARK_PREFIX}:{self._generation}:{self._rows.sequence()}"

    def sync(self) -> None:
        self._rows.sync()

    def close(self) -> None:
        self._hands.drop()
        self._rows.close()

    def statistics(self) -> dict[str, int]:
        """Contents and resource use, as estimated by RocksDB."""
        return {
            "engine_rows": self._rows.property("estimate-num-keys"),
            "engine_memory_bytes": self._rows.property("cur-size-all-mem-tables"),
            "engine_disk_bytes": self._rows.property("live-sst-files-size"),
            "engine_read_ahead_rows": self._hands.held_rows,
            "engine_read_ahead_seconds": self._hands.served_seconds,
            "engine_write_stalls": self._rows.stalls,
        }
