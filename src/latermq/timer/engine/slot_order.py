"""The order of full seconds, kept while they are read page by page: an engine need not know more of it than the second.

An order follows what is scheduled and what is cancelled or moved as long as somebody holds it. What was delivered its
reader leaves out, as that is known for good.
"""

from collections import OrderedDict
from weakref import WeakSet

import numpy as np

from latermq.arrays import Ints
from latermq.message.slots import SLOT_MS, slots_of
from latermq.timer.engine.interface import Units
from latermq.timer.sorted_entries import contains

KEPT_ORDERS = 4
# Smaller seconds are read again for each page: that takes less than a millisecond.
MIN_KEPT_ROWS = 1_000


class SlotOrder:
    """The entries that wake in one second, by time and then by entry."""

    def __init__(self, slot_ms: int, units: Units) -> None:
        """`units` in any order, some of them perhaps twice."""
        self.slot_ms = slot_ms
        self._entries: Ints = np.empty(0, np.int64)
        self._wakes: Ints = self._entries
        self._added = [(units.entries, units.wakes)]
        self._cancelled: list[Ints] = []
        self._settle()

    def __len__(self) -> int:
        return len(self._entries)

    def note_added(self, entries: Ints, wakes: Ints) -> None:
        """These were scheduled."""
        self._added.append((entries, wakes))

    def note_cancelled(self, entries: Ints) -> None:
        """These were cancelled or moved."""
        self._cancelled.append(entries)

    def _settle(self) -> None:
        if self._added:
            entries = np.concatenate([self._entries, *(entries for entries, _ in self._added)])
            wakes = np.concatenate([self._wakes, *(wakes for _, wakes in self._added)])
            order = np.lexsort((entries, wakes))
            entries, wakes = entries[order], wakes[order]
            is_first = np.append(True, entries[1:] != entries[:-1])[: len(entries)]
            self._entries, self._wakes = entries[is_first], wakes[is_first]
            self._added = []
        if self._cancelled:
            kept = ~contains(np.sort(np.concatenate(self._cancelled)), self._entries)
            self._entries, self._wakes = self._entries[kept], self._wakes[kept]
            self._cancelled = []

    def after(self, wake_ms: int, entry: int, most: int) -> tuple[Ints, Ints]:
        """Entries and times of the next rows behind this place, at most so many."""
        self._settle()
        at, end = np.searchsorted(self._wakes, [wake_ms, wake_ms + 1])
        at += np.searchsorted(self._entries[at:end], entry, side="right")
        return self._entries[at : at + most], self._wakes[at : at + most]


class SlotOrders:
    """The orders that were asked for last, and those that a reader holds."""

    def __init__(self, max_rows: int) -> None:
        self._max_rows = max_rows
        self._orders: OrderedDict[int, SlotOrder] = OrderedDict()
        self._held: WeakSet[SlotOrder] = WeakSet()

    @property
    def rows(self) -> int:
        return sum(map(len, self._orders.values()))

    def find(self, slot_ms: int) -> SlotOrder | None:
        """The order of a second, if it is kept."""
        order = self._orders.get(slot_ms)
        if order is not None:
            self._orders.move_to_end(slot_ms)
        return order

    def add(self, order: SlotOrder) -> None:
        """Tell this one of changes; keep it if it is worth it, and let go of those that nobody asked for lately."""
        self._held.add(order)
        if not MIN_KEPT_ROWS <= len(order) <= self._max_rows:
            return
        self._orders[order.slot_ms] = order
        while len(self._orders) > KEPT_ORDERS or self.rows > self._max_rows:
            self._orders.popitem(last=False)

    def note_added(self, units: Units) -> None:
        """These were scheduled."""
        for order in self._held:
            mine = slots_of(units.wakes) == order.slot_ms
            if mine.any():
                order.note_added(units.entries[mine], units.wakes[mine])

    def note_cancelled(self, units: Units) -> None:
        """These were cancelled or moved."""
        for order in self._held:
            mine = slots_of(units.wakes) == order.slot_ms
            if mine.any():
                order.note_cancelled(units.entries[mine])

    def forget_below(self, wake_ms: int) -> None:
        """What wakes before is delivered."""
        for slot_ms in [slot_ms for slot_ms in self._orders if slot_ms + SLOT_MS < wake_ms]:
            del self._orders[slot_ms]
