"""The marks P and T: the progress of the engine and of deliveries. A start skips everything before them."""

from collections.abc import Iterator

import numpy as np

from latermq.store.message_store import MessageStore
from latermq.store.ranges import RangeSet
from latermq.timer.delivery.in_flight import InFlight
from latermq.timer.far.windows import Windows
from latermq.timer.intake.loader import RETRY_MS, Loader
from latermq.timer.intake.settled import Settled
from latermq.timer.intake.timer_topic import TimerTopic
from latermq.timer.intake.write_queue import WriteQueue

TIDY_ROWS = 100_000  # number of delivered ids that moves the marks between checkpoints


class Marks:
    """Computes the marks from the earliest timer in each place that holds timers."""

    def __init__(
        self,
        store: MessageStore,
        topic: TimerTopic,
        settled: Settled,
        write_queue: WriteQueue,
        loader: Loader,
        windows: Windows,
        in_flight: InFlight,
    ) -> None:
        self._store = store
        self._topic = topic
        self._settled = settled
        self._write_queue = write_queue
        self._loader = loader
        self._windows = windows
        self._in_flight = in_flight
        self._now_ms = 0
        self._tidy_above = TIDY_ROWS
        self._tidied_at_ms = 0

    def all_wake_from_ms(self) -> int:
        """T: no undelivered timer below P wakes before it. It never goes back.

        It is never ahead of the clock either. So timers scheduled later wake after it and need not be held.
        """
        if not self._windows.are_open:  # until then the checkpoint's windows keep T unchanged
            return self._settled.wake_ms
        far_ms = min([self._windows.all_wake_from_ms(), *self._first_in_flight(is_far=True)])
        return max(self._settled.wake_ms, min(self.near_wake_from_ms(), far_ms))

    def near_wake_from_ms(self) -> int:
        """Return T for the broker's own timers, independent of Spark's."""
        held_ms = [self._now_ms, self._loader.all_wake_from_ms(), *self._first_in_flight(is_far=False)]
        return max(self._settled.near_wake_ms, min(held_ms))

    def _first_in_flight(self, *, is_far: bool) -> Iterator[int]:
        return (int(dues[0]) for dues in self._in_flight.timer_dues(is_far=is_far))

    def tidy(self, now_ms: int) -> None:
        """Advance the marks if there are many ids beyond them. Call it in each round, because T follows `now_ms`."""
        self._now_ms = now_ms
        is_waiting = self._settled.is_full and abs(now_ms - self._tidied_at_ms) >= RETRY_MS
        if self._settled.rows >= self._tidy_above or is_waiting:
            self.advance()

    def advance(self) -> None:
        """Advance all marks as far as possible, and forget the ids that they cover."""
        self._write_queue.drop_settled()
        put_upto = self._write_queue.put_upto
        near_ms, wake_ms = self.near_wake_from_ms(), self.all_wake_from_ms()
        spans = RangeSet(span for span in self._settled.far_spans.ranges() if span[1] > wake_ms)
        far_dues = np.sort(np.concatenate([np.empty(0, np.int64), *self._in_flight.timer_dues(is_far=True)]))
        for from_ms, until_ms in self._windows.loaded_spans(far_dues):
            spans.add(from_ms, until_ms)
        self._settled.move_marks(put_upto, wake_ms, near_ms, spans)
        self._tidy_above = max(TIDY_ROWS, 2 * self._settled.rows)
        self._tidied_at_ms = self._now_ms
        # Held timers wake before T, but are still in memory.
        head_ms = self._loader.head_due_ms()
        heads = [*self._first_in_flight(is_far=False), *([head_ms] if head_ms is not None else [])]
        self._settled.forget_cancelled(put_upto, min([near_ms, *heads]), self._loader.live.horizon_ms)

    def needed_from(self) -> int:
        """Return the log offset of the first record that is still pending; retention stops there (invariant 8).

        The broker's own pending timers wake at their mark or later, and at most one renewal window after they were
        stored. The mark of the checkpoint on disk counts too: a start reads the engine from there, and replayed cancels
        act on what they find in the log.
        """
        queue = self._topic.queue()
        if queue is None:
            return self._store.log.end
        saved = self._store.waiting.saved_marks
        saved_ms = max(saved.wake_ms, saved.near_done_wake_ms) if saved is not None else 0
        wake_ms = min(self.near_wake_from_ms(), saved_ms)
        entry = queue.entry(self._store.reader.offset_by_time(queue, wake_ms - self._topic.renewal_window_ms))
        needed = entry[0] if entry else self._store.log.end
        in_memory = self._write_queue.first_physical_offset()
        return needed if in_memory is None else min(needed, in_memory)
