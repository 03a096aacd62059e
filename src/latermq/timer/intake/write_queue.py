"""The write queue: timers read from the timer topic and not yet in the engine. Only flushed ones are written to it."""

from collections import Counter, deque
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from latermq.arrays import Ints
from latermq.message.slots import slots_of
from latermq.timer.engine.interface import Engine, Units
from latermq.timer.intake.settled import Settled
from latermq.timer.sorted_entries import contains

PUT_AT_ONCE = 16_384
REMOVE_AT_ONCE = 4_096
# Record size, which no real record has, of a unit that marks a window's timer as cancelled.
CANCEL_NOTE_SIZE = 1
NO_ENTRY = 1 << 62


class Removal(NamedTuple):
    """The effect of one cancel or move on the engine."""

    entry: int  # of the cancel or move itself
    end_offset: int  # where its record ends in the log
    units: Units  # to be removed
    notes: Units  # to be put: Spark's timers, to be skipped when their windows are loaded


class WriteQueue:
    """Timers to put and cancels to apply, each in the order of the timer topic, until the engine has them."""

    def __init__(
        self, engine: Engine, settled: Settled, *, read_from: int, engine_upto: int, counts_slots: bool
    ) -> None:
        """Entries from `read_from` on will be added here. The engine may hold any entry below `engine_upto`.

        After a crash the engine may hold more than the marks say. `counts_slots` is set if `timer.slot_limit` is.
        """
        self._engine = engine
        self._settled = settled
        self._puts = _Puts(counts_slots=counts_slots)
        self._removals: deque[Removal] = deque()
        self._read_upto = read_from
        self._engine_upto = engine_upto
        # Never put, because T has passed their wake time: the clock was set back, or has not reached its time before a
        # restart. They hold back P until they are delivered.
        self._held = Units.join([])
        self._first_held = NO_ENTRY
        self.put_rows = 0

    @property
    def rows(self) -> int:
        """Number of timers that wait to be put."""
        return self._puts.rows

    def pieces(self) -> Iterator[Units]:
        """Yield all timers that the engine does not have, including settled ones."""
        yield from self._puts
        if len(self._held.entries):
            yield self._held

    def add(self, units: Units, read_upto: int) -> None:
        """Add all timers among the entries read since the last call; all are below `read_upto`."""
        assert read_upto >= self._read_upto, f"entries were read up to {self._read_upto}, not {read_upto}"
        self._read_upto = read_upto
        self._puts.add(units)

    def cancel(self, entry: int, end_offset: int, near: Units, far: Units) -> None:
        """Cancel these timers, because of a cancel or move at `entry` whose record ends at `end_offset` in the log."""
        # Timers not put yet will never be put.
        was_put = near.entries < max(self._first_put, self._engine_upto)
        # Notes count as flushed when the cancel's record is.
        notes = far._replace(
            physical_offsets=np.full_like(far.entries, end_offset - 1),
            sizes=np.full_like(far.entries, CANCEL_NOTE_SIZE),
        )
        self._removals.append(Removal(entry, end_offset, near.where(was_put), notes))

    # Writing

    def write(self, flushed: int, now_ms: int) -> bool:
        """Put timers whose records end below F, then remove cancelled ones; return whether there are more."""
        return self._put(flushed, now_ms) or self._remove(flushed, now_ms)

    def _put(self, flushed: int, now_ms: int) -> bool:
        if not self._puts.rows:
            return False
        units = self._puts.first_below(flushed, PUT_AT_ONCE)
        count = len(units.entries)
        if not count:
            return False
        last_end = int(units.physical_offsets[-1] + units.sizes[-1])
        assert last_end <= flushed, f"nothing derived runs ahead of F (invariant 2): {last_end} > {flushed}"
        waiting = self._settled.waiting(units)
        held = waiting.wakes < self._settled.near_wake_ms
        self._engine.put(waiting.where(~held), now_ms)
        if held.any():
            self._held = Units.join([self._held, waiting.where(held)])
            self.drop_settled()
        self._puts.drop_first(count)
        self.put_rows += count
        return True

    def _remove(self, flushed: int, now_ms: int) -> bool:
        """Remove cancelled timers that were put. A timer cancelled before it was put never enters the engine."""
        removals: list[Removal] = []
        rows = 0
        for removal in self._removals:
            if removal.end_offset > flushed or rows >= REMOVE_AT_ONCE:
                break
            removals.append(removal)
            rows += max(1, len(removal.units.entries) + len(removal.notes.entries))
        if not removals:
            return False
        self._engine.remove(Units.join([removal.units for removal in removals]), now_ms)
        notes = Units.join([removal.notes for removal in removals])
        # Timers due before T are delivered, and an engine accepts none for that time.
        self._engine.put(notes.where(notes.wakes >= self._settled.wake_ms), now_ms)
        for _ in removals:
            self._removals.popleft()
        return True

    def drop_settled(self) -> None:
        """Drop held timers that are settled by now."""
        if len(self._held.entries):
            self._held = self._settled.waiting(self._held)
            self._first_held = int(self._held.entries.min(initial=NO_ENTRY))

    # Reading back

    def from_engine(self, units: Units) -> Units:
        """Return the pending timers among these units read from the engine, without those still in this queue.

        After a crash the engine may have those too. Notes of cancelled Spark timers go to the settled set.
        """
        notes = units.sizes == CANCEL_NOTE_SIZE
        if notes.any():
            self._settled.cancel(units.where(notes), 0, np.ones(np.count_nonzero(notes), bool))
            units = units.where(~notes)
        known = units.entries < self._first_put
        if len(self._held.entries):
            known &= ~contains(np.sort(self._held.entries), units.entries)
        return self._settled.waiting(units.where(known))

    def count_in_slot(self, slot_ms: int) -> int:
        """Number of timers to be put that wake in one second; counted only if `timer.slot_limit` is set."""
        return self._puts.count_in_slot(slot_ms)

    # Marks

    @property
    def put_upto(self) -> int:
        """P: every entry below is in the engine, delivered or cancelled, and every cancel and move below is applied."""
        upto = min(self._first_put, self._first_held)
        return min(upto, self._removals[0].entry) if self._removals else upto

    @property
    def _first_put(self) -> int:
        """The first entry whose timer is not put yet."""
        first = self._puts.first_entry
        return self._read_upto if first is None else first

    def first_physical_offset(self) -> int | None:
        """Return the lowest log offset of a record whose timer is only in this queue."""
        return min((int(units.physical_offsets.min()) for units in self.pieces()), default=None)


class _Puts:
    """Timers to be put, as pieces of the timer topic, in order."""

    def __init__(self, *, counts_slots: bool) -> None:
        self._pieces: deque[Units] = deque()
        self.rows = 0
        self._counts_slots = counts_slots
        self._in_slot: Counter[int] = Counter()

    def __iter__(self) -> Iterator[Units]:
        return iter(self._pieces)

    @property
    def first_entry(self) -> int | None:
        """The entry that has waited longest."""
        return int(self._pieces[0].entries[0]) if self._pieces else None

    def add(self, units: Units) -> None:
        if len(units.entries):
            self._pieces.append(units)
            self.rows += len(units.entries)
            self._count(units.wakes, 1)

    def first_below(self, flushed: int, most: int) -> Units:
        """Return the first timers whose records end below F, at most `most`."""
        self._join(most)
        first = self._pieces[0]
        count = int(np.searchsorted(first.physical_offsets + first.sizes, flushed, side="right"))
        return first.where(np.arange(min(count, most)))

    def _join(self, most: int) -> None:
        """Join the first pieces up to the size of one put, because each put has a high fixed cost."""
        joined: list[Units] = []
        rows = 0
        while self._pieces and (not joined or rows + len(self._pieces[0].entries) <= most):
            joined.append(self._pieces.popleft())
            rows += len(joined[-1].entries)
        self._pieces.appendleft(joined[0] if len(joined) == 1 else Units.join(joined))

    def drop_first(self, count: int) -> None:
        """Drop the first `count` timers of `first_below`, which are now in the engine."""
        first = self._pieces.popleft()
        self.rows -= count
        self._count(first.wakes[:count], -1)
        if count < len(first.entries):
            self._pieces.appendleft(first.where(np.arange(count, len(first.entries))))

    def count_in_slot(self, slot_ms: int) -> int:
        return self._in_slot[slot_ms]

    def _count(self, wakes: Ints, sign: int) -> None:
        if not self._counts_slots:
            return
        slots, counts = np.unique(slots_of(wakes), return_counts=True)
        for slot_ms, count in zip(slots.tolist(), counts.tolist(), strict=True):
            self._in_slot[slot_ms] += sign * count
            if not self._in_slot[slot_ms]:
                del self._in_slot[slot_ms]
