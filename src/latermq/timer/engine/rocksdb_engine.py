"""The engine on RocksDB: one range of rows ordered by the time at which they wake, with hands that look ahead."""

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
FORGET_AT_LEAST_MS = 10_000  # each range that is deleted costs every later seek a little: few large ones
COUNTED_SECONDS = 4_096
COUNT_SECOND = 1_000_000  # keys looked at for one second: 0.4 s, once
COUNT_RANGE = 200_000  # and for a range; beyond, seconds are sampled
SAMPLES = 60
SAMPLE = 2_000
_Counts = dict[int, tuple[int, int]]  # slot -> how many wake in it, and the highest entry of these


def _parse_mark(mark: str) -> tuple[int, int] | None:
    """Generation and sequence; None for a mark that another engine made."""
    prefix, *numbers = mark.split(":")
    if prefix != MARK_PREFIX or len(numbers) != 2:
        return None
    return int(numbers[0]), int(numbers[1])


def _in_slots(wakes: Ints, counts: _Counts) -> Bools:
    """Which of these wake in a second that is counted."""
    return np.isin(slots_of(wakes), list(counts)) if counts else np.zeros(len(wakes), bool)


def _count_more(counts: _Counts, slots: Ints, entries: Ints) -> None:
    """Rows were put into counted seconds; `slots` is sorted.

    Entries come in order, so what is above the highest is new. After a start they may come again: count anew then.
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
    """An Engine (engine.py) whose rows are RocksDB's."""

    def __init__(self, folder: Path, *, mark: str, from_ms: int) -> None:
        """Open what the folder holds. `mark` is that of the checkpoint, "" where there is none, `from_ms` is its T.

        `is_whole` is False where the mark speaks of more than is there; the engine is then empty, to be filled again.
        """
        self._rows = RocksRows(folder)
        self._hands = Hands(self._rows)
        self._counts: _Counts = {}
        self._done_below_ms = from_ms  # what wakes before and was there then is not shown
        self._deleted_below_ms = 0  # and of that, what is deleted already
        found = self._rows.generation()
        promised = _parse_mark(mark)
        self._generation = max(found or 0, promised[0] if promised else 0)
        holds_mark = promised is not None and promised[0] == found and promised[1] <= self._rows.sequence()
        self.is_whole = holds_mark or not mark
        if not holds_mark:
            # Without a mark nobody knows what the rows of an old folder point to.
            self._renew(is_empty=found is None and not self._rows.was_damaged and self._rows.sequence() == 0)

    def _renew(self, *, is_empty: bool = False) -> None:
        """Be empty, under a generation that no mark so far has named."""
        if not is_empty:
            self._rows.recreate()
        self._generation += 1
        self._rows.set_generation(self._generation)
        self._hands.drop()
        self._counts.clear()

    # Putting and removing

    def put(self, units: Units, now_ms: int) -> None:
        if not len(units.entries):
            return
        rows = rows_of(units)
        wakes = rows["wake"].astype(np.int64)
        if wakes[0] < self._done_below_ms:
            # Short timers arrive after a checkpoint whose T is later: they count, what was done before them does not.
            self._delete_done()
            self._done_below_ms = self._deleted_below_ms = int(wakes[0])
            self._hands.drop()
        self._hands.changed(wakes, added=True)
        with self._counting() as counts:
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
        with self._counting() as counts:
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
    def _counting(self) -> Iterator[_Counts]:
        """The counted seconds while rows change; nothing is known of them if that fails half-way."""
        counts, self._counts = self._counts, {}
        yield counts
        self._counts = counts

    def forget_below(self, wake_ms: int) -> None:
        if wake_ms <= self._done_below_ms:
            return
        # Nothing below is shown any more from now on; its space can be given back later.
        self._done_below_ms = wake_ms
        for slot_ms in [slot_ms for slot_ms in self._counts if slot_ms < wake_ms]:
            del self._counts[slot_ms]
        if wake_ms - self._deleted_below_ms >= FORGET_AT_LEAST_MS:
            with contextlib.suppress(StoreError):  # the next call deletes this too
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
        """From the database, each piece with a seek of its own: a reader that pauses holds nothing open."""
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
        """Exact for the first COUNT_RANGE rows; further on it is sampled, and then timers to be renewed count too."""
        seconds = (stop_ms - start_ms) // SLOT_MS
        if seconds == 1 and self.count(start_ms) > COUNT_RANGE:
            return np.array([self.count(start_ms)], np.int64)
        first, below = key_from(max(start_ms + 1, self._done_below_ms)), key_from(stop_ms + 1)
        if first >= below:
            return np.zeros(seconds, np.int64)
        rows = self._rows.read(first, below, COUNT_RANGE)
        found = (rows["wake"].astype(np.int64) - 1 - start_ms) // SLOT_MS
        counts = np.bincount(found[rows["roll"] == 0], minlength=seconds)
        if len(found) == COUNT_RANGE:
            # The second in which the look ended is counted in part only.
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
        """Admission asks for the same seconds again and again: they are counted once, then kept up."""
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
        """What it holds, by RocksDB's estimate, and what that takes."""
        return {
            "engine_rows": self._rows.property("estimate-num-keys"),
            "engine_memory_bytes": self._rows.property("cur-size-all-mem-tables"),
            "engine_disk_bytes": self._rows.property("live-sst-files-size"),
            "engine_read_ahead_rows": self._hands.held_rows,
            "engine_read_ahead_seconds": self._hands.served_seconds,
            "engine_write_stalls": self._rows.stalls,
        }
