"""The write queue: what was read from the timer topic and is not in the engine yet. Only what is flushed goes there."""

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
# As the size of a unit's record, which no record has: the unit says that a window's timer is cancelled.
CANCEL_NOTE_SIZE = 1
NO_ENTRY = 1 << 62


class Removal(NamedTuple):
    """What one cancel or move does to the engine."""

    entry: int  # its own
    end_offset: int  # where its record ends in the log
    units: Units  # to be removed
    notes: Units  # to be put: Spark's timers, which are left out of their windows when these are played


class WriteQueue:
    """Timers to be put and cancels to act, each in the order of the timer topic, until the engine has them."""

    def __init__(
        self, engine: Engine, settled: Settled, *, read_from: int, engine_upto: int, counts_slots: bool
    ) -> None:
        """Entries from `read_from` on are read and come here; whatever is below `engine_upto` may be in the engine.

        After a crash that is more than the marks tell. `counts_slots` where seconds have a limit.
        """
        self._engine = engine
        self._settled = settled
        self._puts = _Puts(counts_slots=counts_slots)
        self._removals: deque[Removal] = deque()
        self._read_upto = read_from
        self._engine_upto = engine_upto
        # Not put at all, since T has passed the time at which they wake: the clock was set back, or has not come to
        # where it was before a restart. They hold P until they are delivered.
        self._held = Units.join([])
        self._first_held = NO_ENTRY
        self.put_rows = 0

    @property
    def rows(self) -> int:
        """How many timers wait to be put."""
        return self._puts.rows

    def pieces(self) -> Iterator[Units]:
        """All timers that the engine does not have, settled ones among them."""
        yield from self._puts
        if len(self._held.entries):
            yield self._held

    def add(self, units: Units, read_upto: int) -> None:
        """These are all timers among the entries read since, which end before `read_upto`."""
        assert read_upto >= self._read_upto, f"entries were read up to {self._read_upto}, not {read_upto}"
        self._read_upto = read_upto
        self._puts.add(units)

    def cancel(self, entry: int, end_offset: int, near: Units, far: Units) -> None:
        """A cancel or a move at `entry`, whose record ends there in the log, ends these timers."""
        # What was not put yet will not be.
        was_put = near.entries < max(self._first_put, self._engine_upto)
        # The notes are flushed with the record.
        notes = far._replace(
            physical_offsets=np.full_like(far.entries, end_offset - 1),
            sizes=np.full_like(far.entries, CANCEL_NOTE_SIZE),
        )
        self._removals.append(Removal(entry, end_offset, near.where(was_put), notes))

    # Writing

    def write(self, flushed: int, now_ms: int) -> bool:
        """Put what ends below F into the engine, then remove what was cancelled; whether there is more."""
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
            self.look_at_held()
        self._puts.drop_first(count)
        self.put_rows += count
        return True

    def _remove(self, flushed: int, now_ms: int) -> bool:
        """Only what went in can come out: of what is cancelled before it is put, nothing goes in."""
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
        # What is due before T is delivered, and an engine takes nothing of that time.
        self._engine.put(notes.where(notes.wakes >= self._settled.wake_ms), now_ms)
        for _ in removals:
            self._removals.popleft()
        return True

    def look_at_held(self) -> None:
        """See which of those held are settled by now."""
        if len(self._held.entries):
            self._held = self._settled.waiting(self._held)
            self._first_held = int(self._held.entries.min(initial=NO_ENTRY))

    # Reading back

    def from_engine(self, units: Units) -> Units:
        """What waits of this that the engine holds, without what is still on its way to it.

        After a crash it may have that too. Notes on cancels of Spark's timers go to the settled set.
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
        """How many wait to be put that wake in one second; counted only where seconds have a limit."""
        return self._puts.count_in_slot(slot_ms)

    # Marks

    @property
    def put_upto(self) -> int:
        """P: every entry below is in the engine, delivered or cancelled, and every cancel and move below has acted."""
        upto = min(self._first_put, self._first_held)
        return min(upto, self._removals[0].entry) if self._removals else upto

    @property
    def _first_put(self) -> int:
        """The entry from which on timers are not put yet."""
        first = self._puts.first_entry
        return self._read_upto if first is None else first

    def first_physical_offset(self) -> int | None:
        """Where the first record lies in the log whose timer is only here."""
        return min((int(units.physical_offsets.min()) for units in self.pieces()), default=None)


class _Puts:
    """Timers to be put: pieces of the timer topic, in its order."""

    def __init__(self, *, counts_slots: bool) -> None:
        self._pieces: deque[Units] = deque()
        self.rows = 0
        self._counts_slots = counts_slots
        self._in_slot: Counter[int] = Counter()

    def __iter__(self) -> Iterator[Units]:
        return iter(self._pieces)

    @property
    def first_entry(self) -> int | None:
        """The entry that waits longest."""
        return int(self._pieces[0].entries[0]) if self._pieces else None

    def add(self, units: Units) -> None:
        if len(units.entries):
            self._pieces.append(units)
            self.rows += len(units.entries)
            self._count(units.wakes, 1)

    def first_below(self, flushed: int, most: int) -> Units:
        """Of those there are, the first whose records end below F, at most so many."""
        self._join(most)
        first = self._pieces[0]
        count = int(np.searchsorted(first.physical_offsets + first.sizes, flushed, side="right"))
        return first.where(np.arange(min(count, most)))

    def _join(self, most: int) -> None:
        """Make one of the first pieces, as far as they are put at once: a put costs much by itself."""
        joined: list[Units] = []
        rows = 0
        while self._pieces and (not joined or rows + len(self._pieces[0].entries) <= most):
            joined.append(self._pieces.popleft())
            rows += len(joined[-1].entries)
        self._pieces.appendleft(joined[0] if len(joined) == 1 else Units.join(joined))

    def drop_first(self, count: int) -> None:
        """So many of what `first_below` gave are in the engine."""
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
