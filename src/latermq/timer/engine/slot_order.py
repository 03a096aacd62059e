"""The order of full seconds, kept while they are read page by page. An engine need only order by second.

While a reader holds an order, the order follows new, cancelled and moved timers. The reader itself skips delivered
timers, because delivery is final.
"""

from collections import OrderedDict
from weakref import WeakSet

import numpy as np

from latermq.arrays import Ints
from latermq.message.slots import SLOT_MS, slots_of
from latermq.timer.engine.interface import Units
from latermq.timer.sorted_entries import contains

KEPT_ORDERS = 4
# Smaller seconds are read again for each page, which takes less than a millisecond.
MIN_KEPT_ROWS = 1_000


class SlotOrder:
    """The entries that wake in one second, sorted by time and then by entry."""

    def __init__(self, slot_ms: int, units: Units) -> None:
        """`units` may be in any order and contain duplicates."""
        self.slot_ms = slot_ms
        self._entries: Ints = np.empty(0, np.int64)
        self._wakes: Ints = self._entries
        self._added = [(units.entries, units.wakes)]
        self._cancelled: list[Ints] = []
        self._settle()

    def __len__(self) -> int:
        return len(self._entries)

    def note_added(self, entries: Ints, wakes: Ints) -> None:
        """Note entries that were scheduled."""
        self._added.append((entries, wakes))

    def note_cancelled(self, entries: Ints) -> None:
        """Note entries that were cancelled or moved."""
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
        """Return entries and times of the next rows after this position, at most `most`."""
        self._settle()
        at, end = np.searchsorted(self._wakes, [wake_ms, wake_ms + 1])
        at += np.searchsorted(self._entries[at:end], entry, side="right")
        return self._entries[at : at + most], self._wakes[at : at + most]


class SlotOrders:
    """The orders requested last, and those that a reader holds."""

    def __init__(self, max_rows: int) -> None:
        self._max_rows = max_rows
        self._orders: OrderedDict[int, SlotOrder] = OrderedDict()
        self._held: WeakSet[SlotOrder] = WeakSet()

    @property
    def rows(self) -> int:
        return sum(map(len, self._orders.values()))

    def find(self, slot_ms: int) -> SlotOrder | None:
        """Return the order of a second if it is kept."""
        order = self._orders.get(slot_ms)
        if order is not None:
            self._orders.move_to_end(slot_ms)
        return order

    def add(self, order: SlotOrder) -> None:
        """Track changes for this order. Keep it if it is worth it, and drop the orders not requested recently."""
        self._held.add(order)
        if not MIN_KEPT_ROWS <= len(order) <= self._max_rows:
            return
        self._orders[order.slot_ms] = order
        while len(self._orders) > KEPT_ORDERS or self.rows > self._max_rows:
            self._orders.popitem(last=False)

    def note_added(self, units: Units) -> None:
        """Note units that were scheduled."""
        for order in self._held:
            mine = slots_of(units.wakes) == order.slot_ms
            if mine.any():
                order.note_added(units.entries[mine], units.wakes[mine])

    def note_cancelled(self, units: Units) -> None:
        """Note units that were cancelled or moved."""
        for order in self._held:
            mine = slots_of(units.wakes) == order.slot_ms
            if mine.any():
                order.note_cancelled(units.entries[mine])

    def forget_below(self, wake_ms: int) -> None:
        """Drop the orders of seconds before this time: they are delivered."""
        for slot_ms in [slot_ms for slot_ms in self._orders if slot_ms + SLOT_MS < wake_ms]:
            del self._orders[slot_ms]
