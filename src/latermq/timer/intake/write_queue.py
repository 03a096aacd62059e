"""Timers that were read from the timer topic and are not in the engine: they wait until they are flushed."""

from collections import Counter, deque
from collections.abc import Iterator

import numpy as np

from latermq.arrays import Ints
from latermq.timer.engine.interface import Units, slot_of


class Unput:
    """Pieces of the timer topic, in its order."""

    def __init__(self, *, counts_slots: bool) -> None:
        """`counts_slots` where seconds have a limit."""
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
        slots, counts = np.unique(slot_of(wakes), return_counts=True)
        for slot_ms, count in zip(slots.tolist(), counts.tolist(), strict=True):
            self._in_slot[slot_ms] += sign * count
            if not self._in_slot[slot_ms]:
                del self._in_slot[slot_ms]
