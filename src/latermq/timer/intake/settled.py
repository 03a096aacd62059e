"""The settled set: timers that are delivered, renewed, cancelled or moved. Every step checks it first.

Marks cover most of it: all entries below a given one that wake before a given time. Beyond the marks, ids are kept. The
broker's own timers and Spark's are kept apart, because a missing window holds back only the marks of Spark's.
"""

import numpy as np

from latermq.arrays import Bools, Ints
from latermq.store.checkpoint import TimerMarks
from latermq.store.message_store import MessageStore
from latermq.store.ranges import RangeSet
from latermq.timer.engine.interface import Units
from latermq.timer.intake.cancelled_set import Cancelled
from latermq.timer.intake.delivered_set import Delivered
from latermq.timer.intake.timer_topic import TimerTopic

# At this number, timers on time wait for late ones: 16 MB, and at most as much in a checkpoint.
MAX_DELIVERED_ROWS = 1_000_000


class Settled:
    """The settled timers of one broker."""

    def __init__(self, store: MessageStore, topic: TimerTopic, marks: TimerMarks | None) -> None:
        """`marks` come from the checkpoint; None without a checkpoint."""
        self._store = store
        self._topic = topic
        self._near, self._far = Delivered(), Delivered()
        self._cancelled = Cancelled()
        # Every entry below this one that wakes before these times is delivered: for all timers, and for the broker's
        # own.
        self.delivered_upto = marks.done_upto if marks else 0
        self.delivered_wake_ms = marks.done_wake_ms if marks else 0
        self.near_delivered_wake_ms = max(self.delivered_wake_ms, marks.near_done_wake_ms if marks else 0)
        self.far_spans = RangeSet(marks.far_done if marks else ())  # due times with all of Spark's timers delivered
        # T as last computed, and the same for the broker's own timers.
        self.wake_ms = max(marks.wake_ms if marks else 0, self.delivered_wake_ms)
        self.near_wake_ms = max(self.wake_ms, self.near_delivered_wake_ms)
        self._adopted = RangeSet()  # delivered before the start, with records that have left the log
        self._adopted_until_ms = 0
        self.delivered_rows = 0

    def adopt(self, delivered: RangeSet) -> None:
        """At a start: add entries that are delivered according to the log and the checkpoint."""
        # Nothing was delivered early, so none of the broker's own timers among these wakes after the end of the log.
        self._adopted_until_ms = max(self._topic.frontier.handback_ms, self._store.writer.last_store_timestamp_ms + 1)
        queue = self._topic.queue()
        if queue is None or not len(delivered):
            return
        all_entries = np.concatenate([np.arange(start, end, dtype=np.int64) for start, end in delivered.ranges()])
        entries = all_entries[(all_entries >= queue.min_offset) & (all_entries < queue.next_offset)]
        found = queue.gather(entries)
        physical = found["offset"].astype(np.int64)
        kept = physical >= self._store.log.start
        entries, physical = entries[kept], physical[kept]
        _, dues = self._topic.kinds_and_dues(found[kept]["tags"].astype(np.int64), physical)
        near = self._topic.is_near(entries, dues, physical)
        wakes, _ = self._topic.wakes(entries, dues, physical, near)
        self._near.add(entries[near], wakes[near])
        self._far.add(entries[~near], wakes[~near])
        # Only windows hold timers whose records have left the log. Their due times are unknown until the windows are
        # loaded.
        self._adopted.add_all(np.setdiff1d(all_entries, entries))

    # Adding

    def deliver(self, entries: Ints, wakes: Ints, *, is_far: bool | None = None) -> None:
        """Note that these were appended to their destination. If the owner is unknown, they count for both."""
        self.delivered_rows += len(entries)
        if is_far is not True:
            self._near.add(entries, wakes)
        if is_far is not False:
            self._far.add(entries, wakes)

    def cancel(self, units: Units, by: int, is_far: Bools) -> None:
        """Note that the entry `by` cancelled or moved these; 0 if the cancel was read from the engine."""
        self._cancelled.add(units, by, is_far)

    def cancel_each(self, units: Units, by: Ints, is_far: Bools) -> None:
        """Note units that were each cancelled or moved by their own entry."""
        self._cancelled.add_each(units, by, is_far)

    def cancel_replayed(self, units: Units, by: Ints, is_far: Bools) -> None:
        """Note many cancelled units at a start, each with the entry that cancelled it."""
        self._cancelled.add_replayed(units, by, is_far)

    # Queries

    def is_cancelled(self, entries: Ints) -> Bools:
        """Which of these entries are cancelled or moved by a change that the engine does not have yet."""
        return self._cancelled.contains(entries)

    def is_delivered(self, entries: Ints, wakes: Ints) -> Bools:
        """Which of these timers of the broker's own are delivered or renewed."""
        return self._near.contains(entries) | self._is_marked_near(entries, wakes)

    def waiting(self, units: Units) -> Units:
        """Return the broker's own timers among these that are not settled."""
        settled = self.is_delivered(units.entries, units.wakes) | self.is_cancelled(units.entries)
        if len(self._adopted):  # an engine may still have an entry whose record the log lost since the checkpoint
            settled |= self._adopted.covers(units.entries)
        return units.where(~settled)

    def is_far_waiting(self, entries: Ints, dues: Ints) -> Bools:
        """Which of these timers of Spark's are not settled."""
        settled = self._far.contains(entries) | self._is_marked_far(entries, dues) | self.is_cancelled(entries)
        if len(self._adopted):
            settled |= self._adopted.covers(entries)
        return ~settled

    def is_delivered_in_log(self, entries: Ints, dues: Ints, physical: Ints) -> Bools:
        """Which of these timers of any owner are delivered or renewed.

        Works before `adopt`; `physical` is GONE if not in the log.
        """
        near = self._topic.is_near(entries, dues, physical)
        wakes, _ = self._topic.wakes(entries, dues, physical, near)
        delivered = np.where(near, self._is_marked_near(entries, wakes), self._is_marked_far(entries, dues))
        delivered |= self._near.contains(entries) | self._far.contains(entries)
        for known in (self._adopted, self._store.waiting.delivered.get(0, RangeSet())):
            delivered |= known.covers(entries)
        return delivered

    def _is_marked_near(self, entries: Ints, wakes: Ints) -> Bools:
        """Which of these, as the broker's own timers, are delivered according to the marks."""
        return (entries < self.delivered_upto) & (wakes < self.near_delivered_wake_ms)

    def _is_marked_far(self, entries: Ints, dues: Ints) -> Bools:
        """Which of these, as Spark's timers, are delivered according to the marks."""
        below_marks = (entries < self.delivered_upto) & (dues < self.delivered_wake_ms)
        return below_marks | self.far_spans.covers(dues)

    # Marks

    @property
    def rows(self) -> int:
        """Number of delivered ids kept beyond the marks."""
        return self._near.rows + self._far.rows

    @property
    def cancelled_rows(self) -> int:
        return len(self._cancelled)

    @property
    def is_full(self) -> bool:
        """Whether so many ids lie beyond the marks that late timers must go first."""
        return self.rows >= MAX_DELIVERED_ROWS

    def move_marks(self, put_upto: int, wake_ms: int, near_wake_ms: int, far_spans: RangeSet) -> None:
        """Set the marks to P, T and the T of the broker's own timers, and drop the ids that they cover."""
        assert wake_ms >= self.wake_ms, f"T moved back from {self.wake_ms} to {wake_ms}"
        assert near_wake_ms >= self.near_wake_ms, f"near T moved back from {self.near_wake_ms} to {near_wake_ms}"
        assert near_wake_ms >= wake_ms, "the broker's own timers do not wait for Spark's (invariant 9)"
        self.wake_ms, self.near_wake_ms = wake_ms, near_wake_ms
        if put_upto >= self.delivered_upto:
            self.delivered_upto, self.delivered_wake_ms, self.near_delivered_wake_ms = put_upto, wake_ms, near_wake_ms
        self.far_spans = far_spans
        self._near.drop(self._is_marked_near)
        self._far.drop(self._is_marked_far)

    def forget_cancelled(self, put_upto: int, in_memory_ms: int, horizon_ms: int) -> None:
        """Drop cancelled ids that the engine handles; no timer that wakes before `in_memory_ms` is in memory."""
        self._cancelled.forget(put_upto, in_memory_ms, self.wake_ms, self.far_spans, horizon_ms)

    def forget_adopted(self, saved_wake_ms: int) -> None:
        """Drop adopted entries if the checkpoint on disk, which has this T, covers them."""
        if len(self._adopted) and saved_wake_ms >= self._adopted_until_ms:
            self._adopted = RangeSet()

    def delivered_ranges(self) -> list[tuple[int, int]]:
        """Return the entries delivered beyond the marks, for the checkpoint."""
        ranges = RangeSet(self._adopted.ranges())
        for delivered in (self._near, self._far):
            ranges.add_ordered(delivered.ranges())
        return ranges.ranges()
