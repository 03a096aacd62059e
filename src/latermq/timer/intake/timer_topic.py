"""The timer topic's queue: the kind, owner, due time and wake time of its entries."""

import numpy as np

from latermq.arrays import Bools, Ints
from latermq.message.names import TIMER_TOPIC
from latermq.message.timer_code import is_timer_code, kinds_and_dues
from latermq.store.message_store import MessageStore
from latermq.store.queues.consume_queue import ConsumeQueue
from latermq.timer.far.frontier import Frontier
from latermq.timer.intake.renewal import wakes_of

GONE = -1  # offset of a record that has left the log


class TimerTopic:
    """The one queue for every timer, cancel, move and cut. Its order decides."""

    def __init__(self, store: MessageStore, frontier: Frontier, renewal_window_ms: int) -> None:
        self._store = store
        self.frontier = frontier
        self.renewal_window_ms = renewal_window_ms

    def queue(self) -> ConsumeQueue | None:
        """Return the queue; None before the first entry."""
        return self._store.queues.find(TIMER_TOPIC, 0)

    @property
    def first_entry(self) -> int:
        """The first entry whose record is in the log."""
        queue = self.queue()
        return queue.min_offset if queue else 0

    @property
    def next_entry(self) -> int:
        """The entry that the next record of the topic gets."""
        queue = self.queue()
        return queue.next_offset if queue else 0

    def kinds_and_dues(self, codes: Ints, physical: Ints) -> tuple[Ints, Ints]:
        """Return the kinds and due times of the queue entries with these codes."""
        foreign = ~is_timer_code(codes)
        if foreign.any():  # RocketMQ wrote the queue, so the records are read
            codes = codes.copy()
            for row in np.flatnonzero(foreign).tolist():
                codes[row] = self._store.reader.waiting_code_at(int(physical[row]))
        return kinds_and_dues(codes)

    def is_near(self, entries: Ints, dues: Ints, physical: Ints) -> Bools:
        """Which of these timers are the broker's own. Timers whose record is GONE are all Spark's."""
        near: Bools = physical != GONE
        near[near] = self.frontier.is_near(entries[near], dues[near])
        return near

    def near_wakes(self, entries: Ints, dues: Ints, physical: Ints) -> tuple[Ints, Bools]:
        """Return when these timers of the broker's own wake, and which of them are renewed then."""
        return wakes_of(self._store.log, entries, dues, physical, self.renewal_window_ms)

    def wakes(self, entries: Ints, dues: Ints, physical: Ints, near: Bools) -> tuple[Ints, Bools]:
        """Return the same for timers of any owner. Spark's wake when they are due and are never renewed."""
        wakes, renews = dues.copy(), np.zeros(len(dues), bool)
        wakes[near], renews[near] = self.near_wakes(entries[near], dues[near], physical[near])
        return wakes, renews
