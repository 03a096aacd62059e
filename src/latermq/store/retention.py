"""Retention: the oldest segments go when they are old enough or the disk is full, unless somebody still needs them."""

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import NamedTuple

from latermq.clock import Clock
from latermq.config import StoreConfig
from latermq.message.record import record_store_timestamp_ms
from latermq.message.record_fields import HEAD
from latermq.store.message_store import MessageStore
from latermq.store.queue_table import OWN_TOPICS


@dataclass(frozen=True)
class Removed:
    """One file that the store let go of, where the log began, why, and its path: it is still to be removed.

    Removing a gigabyte takes a file system a while, so it is left to a thread. Files go in the order of the log: what a
    crash leaves behind is the end of a log that begins earlier, never one with a hole.
    """

    start: int
    reason: str
    path: str


class _Going(NamedTuple):
    """A segment that is to go, and why."""

    start: int
    end: int
    reason: str


class Retention:
    """Decides which segments go. Guards name the log offset from which on they still need every record."""

    def __init__(self, store: MessageStore, config: StoreConfig, clock: Clock) -> None:
        self._store = store
        self._config = config
        self._clock = clock
        self._guards: list[Callable[[], int]] = []
        self._left: list[str] = []  # files that queues have let go of: they are removed after the log's own

    def add_guard(self, needed_from: Callable[[], int]) -> None:
        """Let a part that reads the log later keep what it needs."""
        self._guards.append(needed_from)

    def run(self) -> list[Removed]:
        """Let go of what may go, oldest first, and bring queues and index after the log's start."""
        steps = self.steps()
        while True:
            try:
                next(steps)
            except StopIteration as stop:
                removed: list[Removed] = stop.value
                return removed

    def steps(self) -> Generator[None, None, list[Removed]]:
        """The same, a queue at a time: messages are stored and read between. One run at a time.

        A queue costs up to 60 µs, and there may be 50,000. So queues first cease to offer what is to go, and the log
        lets go of it when the last one has.
        """
        store = self._store
        going = self._going()
        if not going:
            return []
        log_start = going[-1].end
        for key in [(queue.topic, queue.queue_id) for queue in store.queues]:
            queue = store.queues.find(*key)
            if queue is not None and queue.topic not in OWN_TOPICS:  # what waits is needed until the very end
                self._left += queue.forget_below(log_start)
                yield
        if self._guarded() < log_start:
            return []  # somebody has come who needs it
        removed = [Removed(one.start, one.reason, store.log.drop_first_segment()) for one in going]
        for queue in filter(lambda queue: queue.topic in OWN_TOPICS, store.queues):
            self._left += queue.forget_below(log_start)
        # Behind the log's own: what a crash leaves must not look as if files of queues or index had been lost.
        paths, self._left = [*self._left, *store.index.drop_below(log_start)], []
        return removed + [Removed(log_start, "all its records are gone", path) for path in paths]

    def _going(self) -> list[_Going]:
        """The segments that may go now, oldest first."""
        going: list[_Going] = []
        guarded = self._guarded()
        for start, end in self._store.log.closed_segments():
            reason = self._reason(end)
            # Only what a checkpoint covers may go: recovery reads from there.
            if reason is None or end > guarded or end > self._store.checkpoint_offset:
                break
            going.append(_Going(start, end, reason))
            if not self._is_old(end):
                break  # the disk is emptier only once the file is gone: one at a time
        return going

    def _guarded(self) -> int:
        return min((needed_from() for needed_from in self._guards), default=self._store.log.end)

    def doomed_until(self) -> int:
        """The log offset before which everything goes as soon as nobody needs it."""
        doomed = self._store.log.start
        for _, end in self._store.log.closed_segments():
            if self._reason(end) is None:
                break
            doomed = end
        return doomed

    def _is_old(self, end: int) -> bool:
        stored_ms = record_store_timestamp_ms(self._store.log.read(end, HEAD.size), 0)
        # 0: the segment behind is still empty, so nobody knows.
        return stored_ms > 0 and self._clock.now_ms() - stored_ms > self._config.retention

    def _reason(self, end: int) -> str | None:
        """Why the segment that ends at `end` may go, None where it stays.

        Its newest message is about as old as the oldest of the segment behind it.
        """
        if self._is_old(end):
            return f"older than {self._config.retention // 1000} s"
        used = self._store.used_ratio()
        if used > self._config.disk_high:
            return f"the disk is {used:.0%} full"
        return None
