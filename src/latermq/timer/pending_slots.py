"""Pending timers by second: those in the engine, and those not yet written to it."""

from collections.abc import Iterator

import numpy as np

from latermq.arrays import Bools, Ints
from latermq.message.slots import SLOT_MS, slot_of, slots_of
from latermq.timer.engine.interface import Engine, Units
from latermq.timer.engine.slot_order import SlotOrder, SlotOrders
from latermq.timer.intake.intake import Intake
from latermq.timer.intake.marks import Marks
from latermq.timer.intake.settled import Settled
from latermq.timer.intake.write_queue import NO_ENTRY, WriteQueue

_NO_SLOT_MS = NO_ENTRY


class PendingSlots:
    """Read-only view of the broker's own pending timers."""

    def __init__(
        self,
        engine: Engine,
        intake: Intake,
        write_queue: WriteQueue,
        settled: Settled,
        marks: Marks,
        orders: SlotOrders,
    ) -> None:
        self._engine = engine
        self._intake = intake
        self._write_queue = write_queue
        self._settled = settled
        self._marks = marks
        self._orders = orders

    def waiting_from(self, wake_ms: int, until_ms: int) -> Iterator[Units]:
        """Yield the pending timers that wake from this time up to `until_ms` (0 for no limit), slot by slot in order.

        A slot may be empty.

        Timers that wake to be renewed are included even after `until_ms`, because they may be due at any time.
        """
        self._intake.read_all()
        slot_ms = self.next_slot_ms(max(0, slot_of(wake_ms)))
        while slot_ms is not None:
            units = self._in_slot(slot_ms)
            if until_ms and slot_ms >= until_ms:
                units = units.where(units.renews)
            yield units.in_order()
            slot_ms = self.next_slot_ms(slot_ms + SLOT_MS)

    def next_slot_ms(self, slot_ms: int) -> int | None:
        """Return the first slot at or after this time that may hold pending timers that were read; None if none."""
        # Earlier timers in the engine are delivered.
        engine_slot_ms = max(0, slot_of(self._marks.near_wake_from_ms()))
        nexts = [self._engine.next_slot_ms(max(slot_ms, engine_slot_ms))]
        for units in self._write_queue.pieces():
            slots = slots_of(units.wakes)
            nexts.append(int(slots.min(where=slots >= slot_ms, initial=_NO_SLOT_MS)))
        return min((slot for slot in nexts if slot is not None and slot < _NO_SLOT_MS), default=None)

    def _in_slot(self, slot_ms: int) -> Units:
        """Return the pending timers of one slot, unordered."""
        engine_ms = self._marks.near_wake_from_ms()
        pieces = self._engine.read(slot_ms, slot_ms + SLOT_MS)
        parts = [self._write_queue.from_engine(piece.where(piece.wakes >= engine_ms)) for piece in pieces]
        for units in self._write_queue.pieces():
            own = slots_of(units.wakes) == slot_ms
            if own.any():
                parts.append(self._settled.waiting(units.where(own)))
        return Units.join(parts)

    def order_of(self, slot_ms: int) -> SlotOrder:
        """Return the order in which a slot's timers wake. It is read once; a long one is kept for the next page."""
        order = self._orders.find(slot_ms)
        if order is None:
            order = SlotOrder(slot_ms, self._in_slot(slot_ms))
            self._orders.add(order)
        return order

    def renewals_of(self, slot_ms: int) -> SlotOrder:
        """Return the order in which a slot's timers wake that are only renewed then."""
        units = self._in_slot(slot_ms)
        return SlotOrder(slot_ms, units.where(units.renews))

    def is_pending(self, entries: Ints, wakes: Ints) -> Bools:
        """Which of these entries, read from an order, are not delivered."""
        return ~self._settled.is_delivered(entries, wakes)

    def density(self, start_ms: int, stop_ms: int) -> Ints:
        """Return the number of timers due in each second of (start, stop]."""
        self._intake.read_all()
        counts = self._engine.density(start_ms, stop_ms).copy()
        for units in self._write_queue.pieces():
            slots = (slots_of(units.wakes[~units.renews]) - start_ms) // SLOT_MS
            np.add.at(counts, slots[(slots >= 0) & (slots < len(counts))], 1)
        return counts

    def count(self, slot_ms: int) -> int:
        """Number of timers that wake in a second.

        Those not in the engine yet count only if `timer.slot_limit` is set.
        """
        self._intake.read_all()
        return self._engine.count(slot_ms) + self._write_queue.count_in_slot(slot_ms)
