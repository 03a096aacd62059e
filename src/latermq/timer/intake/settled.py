"""The settled set: which timers are delivered, renewed, cancelled or moved. Every step asks it before it goes on.

Marks tell most of it: all entries below one number that wake before one time. Beyond them ids are kept, of the
broker's own timers and of Spark's apart, because a window that is missing holds back only the marks of Spark's.
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

# Then what is on time waits for what is late: 16 MB, and at most as much in a checkpoint.
MAX_DELIVERED_ROWS = 1_000_000


class Settled:
    """One for all timers of a broker."""

    def __init__(self, store: MessageStore, topic: TimerTopic, marks: TimerMarks | None) -> None:
        """`marks` as the checkpoint has them; None where there is none."""
        self._store = store
        self._topic = topic
        self._near, self._far = Delivered(), Delivered()
        self._cancelled = Cancelled()
        # Everything below this entry that wakes before these times is delivered: of all timers, of the broker's own.
        self.delivered_upto = marks.done_upto if marks else 0
        self.delivered_wake_ms = marks.done_wake_ms if marks else 0
        self.near_delivered_wake_ms = max(self.delivered_wake_ms, marks.near_done_wake_ms if marks else 0)
        self.far_spans = RangeSet(marks.far_done if marks else ())  # due times at which all of Spark's are delivered
        # T as it was last told; and the same for the broker's own timers.
        self.wake_ms = max(marks.wake_ms if marks else 0, self.delivered_wake_ms)
        self.near_wake_ms = max(self.wake_ms, self.near_delivered_wake_ms)
        self._adopted = RangeSet()  # delivered before the start, and their records are gone
        self._adopted_until_ms = 0
        self.delivered_rows = 0

    def adopt(self, delivered: RangeSet) -> None:
        """At a start: the log and the checkpoint say that these entries are delivered."""
        # Nothing was delivered before it was due: of these no timer of the broker's own wakes behind the log's end.
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
        # Only windows hold what has left the log; nobody knows when these were due before their windows are played.
        self._adopted.add_all(np.setdiff1d(all_entries, entries))

    # Settling

    def deliver(self, entries: Ints, wakes: Ints, *, is_far: bool | None = None) -> None:
        """These were appended to where they go. Where nobody knows whose they were, they count for both."""
        self.delivered_rows += len(entries)
        if is_far is not True:
            self._near.add(entries, wakes)
        if is_far is not False:
            self._far.add(entries, wakes)

    def cancel(self, units: Units, by: int, is_far: Bools) -> None:
        """The entry `by` cancelled or moved these; 0 where the engine told of it."""
        self._cancelled.add(units, by, is_far)

    def cancel_replayed(self, units: Units, by: Ints, is_far: Bools) -> None:
        """The same for many at a start, each with the entry that cancelled it."""
        self._cancelled.add_replayed(units, by, is_far)

    # Asking

    def is_cancelled(self, entries: Ints) -> Bools:
        """Which of these entries are cancelled or moved, as far as that is not in the engine yet."""
        return self._cancelled.contains(entries)

    def is_delivered(self, entries: Ints, wakes: Ints) -> Bools:
        """Which of these timers of the broker's own are delivered or renewed."""
        return self._near.contains(entries) | self._is_marked_near(entries, wakes)

    def waiting(self, units: Units) -> Units:
        """Those of these timers of the broker's own that are not settled."""
        settled = self.is_delivered(units.entries, units.wakes) | self.is_cancelled(units.entries)
        if len(self._adopted):  # the log may have lost a record since the checkpoint that an engine still knows
            settled |= ~self._adopted.missing(units.entries)
        return units.where(~settled)

    def is_far_waiting(self, entries: Ints, dues: Ints) -> Bools:
        """Which of these timers of Spark's are not settled."""
        settled = self._far.contains(entries) | self._is_marked_far(entries, dues) | self.is_cancelled(entries)
        if len(self._adopted):
            settled |= ~self._adopted.missing(entries)
        return ~settled

    def is_delivered_in_log(self, entries: Ints, dues: Ints, physical: Ints) -> Bools:
        """Which of any timers are delivered or renewed, before `adopt` too. `physical` is GONE of what left the log."""
        near = self._topic.is_near(entries, dues, physical)
        wakes, _ = self._topic.wakes(entries, dues, physical, near)
        delivered = np.where(near, self._is_marked_near(entries, wakes), self._is_marked_far(entries, dues))
        delivered |= self._near.contains(entries) | self._far.contains(entries)
        for known in (self._adopted, self._store.waiting.delivered.get(0, RangeSet())):
            delivered |= ~known.missing(entries)
        return delivered

    def _is_marked_near(self, entries: Ints, wakes: Ints) -> Bools:
        """Which of these, if they are the broker's own, the marks know to be delivered."""
        return (entries < self.delivered_upto) & (wakes < self.near_delivered_wake_ms)

    def _is_marked_far(self, entries: Ints, dues: Ints) -> Bools:
        """The same if they are Spark's."""
        below_marks = (entries < self.delivered_upto) & (dues < self.delivered_wake_ms)
        return below_marks | ~self.far_spans.missing(dues)

    # Marks

    @property
    def rows(self) -> int:
        """How many ids of deliveries are kept beyond the marks."""
        return self._near.rows + self._far.rows

    @property
    def cancelled_rows(self) -> int:
        return len(self._cancelled)

    @property
    def is_full(self) -> bool:
        """Whether so much was delivered beyond the marks that what is late has to go first."""
        return self.rows >= MAX_DELIVERED_ROWS

    def move_marks(self, put_upto: int, wake_ms: int, near_wake_ms: int, far_spans: RangeSet) -> None:
        """Bring the marks to P, T and the T of the broker's own, and drop the ids of which they tell."""
        assert wake_ms >= self.wake_ms, f"T went back from {self.wake_ms} to {wake_ms}"
        assert near_wake_ms >= self.near_wake_ms, f"near T went back from {self.near_wake_ms} to {near_wake_ms}"
        assert near_wake_ms >= wake_ms, "the broker's own timers wait for none of Spark's (invariant 9)"
        self.wake_ms, self.near_wake_ms = wake_ms, near_wake_ms
        if put_upto >= self.delivered_upto:
            self.delivered_upto, self.delivered_wake_ms, self.near_delivered_wake_ms = put_upto, wake_ms, near_wake_ms
        self.far_spans = far_spans
        self._near.drop(self._is_marked_near)
        self._far.drop(self._is_marked_far)

    def forget_cancelled(self, put_upto: int, in_memory_ms: int, horizon_ms: int) -> None:
        """Drop cancelled ids that the engine knows of; nothing that wakes before `in_memory_ms` is in memory."""
        self._cancelled.forget(put_upto, in_memory_ms, self.wake_ms, self.far_spans, horizon_ms)

    def forget_adopted(self, saved_wake_ms: int) -> None:
        """A checkpoint on disk has this T."""
        if len(self._adopted) and saved_wake_ms >= self._adopted_until_ms:
            self._adopted = RangeSet()

    def delivered_ranges(self) -> list[tuple[int, int]]:
        """The entries delivered beyond the marks, for the checkpoint."""
        ranges = RangeSet(self._adopted.ranges())
        for delivered in (self._near, self._far):
            ranges.add_ordered(delivered.ranges())
        return ranges.ranges()
