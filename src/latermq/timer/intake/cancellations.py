"""Cancellation: a cancel or a move ends timers at once; the engine removes them after its record is flushed."""

from typing import NamedTuple

import numpy as np

from latermq.arrays import Bools, Ints
from latermq.timer.engine.interface import Units
from latermq.timer.engine.slot_order import SlotOrders
from latermq.timer.intake.settled import Settled
from latermq.timer.intake.timer_topic import TimerTopic
from latermq.timer.intake.write_queue import REMOVE_AT_ONCE, WriteQueue


class CancelPlan(NamedTuple):
    """The broker's timers that a cancel or a move will end. It is made before the record is written."""

    units: Units
    is_near: Bools  # whether each is in the broker's engine, or else in one of Spark's windows
    rows: Ints  # indexes into the timers that the plan was requested for


class Cancellations:
    """Applies cancels and moves. Nothing here can fail after the record of the cancel or the move is appended."""

    def __init__(self, topic: TimerTopic, settled: Settled, write_queue: WriteQueue, orders: SlotOrders) -> None:
        self._topic = topic
        self._settled = settled
        self._write_queue = write_queue
        self._orders = orders

    def plan(self, entries: Ints, dues: Ints, physical: Ints, sizes: Ints) -> CancelPlan:
        """Plan the cancel or move of these timers. `physical` is GONE for records that have left the log.

        Timers that Spark holds and has not handed back need no action here. The cancel precedes the cut that hands them
        back, so the window is built without them (invariant 5).
        """
        near = self._topic.is_near(entries, dues, physical)
        acts = near | (dues < self._topic.frontier.handback_ms)
        near = near[acts]
        entries, physical, sizes, dues = (column[acts] for column in (entries, physical, sizes, dues))
        wakes, renews = self._topic.wakes(entries, dues, physical, near)
        return CancelPlan(Units(entries, wakes, physical, sizes, renews), near, np.flatnonzero(acts))

    def cancel(self, entry: int, end_offset: int, plan: CancelPlan) -> None:
        """Apply a cancel or a move that was appended as `entry`; its record ends at `end_offset` in the log."""
        self._settled.cancel(plan.units, entry, ~plan.is_near)
        self._orders.note_cancelled(plan.units)
        self._queue_removal(entry, end_offset, plan.units, plan.is_near)

    def cancel_each(self, by: Ints, ends: Ints, plan: CancelPlan) -> None:
        """Apply cancels or moves that were appended together, each timer with its own. They are few."""
        by, ends = by[plan.rows], ends[plan.rows]
        if not len(by):
            return
        self._settled.cancel_each(plan.units, by, ~plan.is_near)
        self._orders.note_cancelled(plan.units)
        self._queue_removal(int(by[0]), int(ends[-1]), plan.units, plan.is_near)

    def cancel_replayed(self, by: Ints, ends: Ints, plan: CancelPlan) -> None:
        """Apply many cancels at a start, in order, each timer with its cancel's entry and the end of that record.

        `by` and `ends` have one row for each timer that the plan was requested for.
        """
        by, ends = by[plan.rows], ends[plan.rows]
        self._settled.cancel_replayed(plan.units, by, ~plan.is_near)
        self._orders.note_cancelled(plan.units)
        for start in range(0, len(by), REMOVE_AT_ONCE):
            part = np.arange(start, min(start + REMOVE_AT_ONCE, len(by)))
            self._queue_removal(int(by[start]), int(ends[part[-1]]), plan.units.where(part), plan.is_near[part])

    def _queue_removal(self, entry: int, end_offset: int, units: Units, near: Bools) -> None:
        self._write_queue.cancel(entry, end_offset, units.where(near), units.where(~near))
