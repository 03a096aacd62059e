"""Retention: drops the oldest segments that are too old or fill the disk, unless they are still needed."""

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import NamedTuple

from latermq.clock import Clock
from latermq.config import StoreConfig
from latermq.message.record import record_store_timestamp_ms
from latermq.message.record_fields import HEAD
from latermq.store.message_store import MessageStore
from latermq.store.queues.queue_table import OWN_TOPICS


@dataclass(frozen=True)
class Removed:
    """A file that the store has dropped but that is still on disk: the log's start, the reason and the path.

    Removing a gigabyte takes a file system a while, so a thread does it. Files are removed in log order: a crash leaves
    a log that begins earlier, never one with a hole.
    """

    start: int
    reason: str
    path: str


class _Expired(NamedTuple):
    """A segment to drop, and the reason."""

    start: int
    end: int
    reason: str


class Retention:
    """Decides which segments to drop. Each guard returns the log offset from which it still needs every record."""

    def __init__(self, store: MessageStore, config: StoreConfig, clock: Clock) -> None:
        self._store = store
        self._config = config
        self._clock = clock
        self._guards: list[Callable[[], int]] = []
        self._dropped_paths: list[str] = []  # dropped queue files, to be removed after the log's own files

    def add_guard(self, needed_from: Callable[[], int]) -> None:
        """Add a guard for a component that reads the log later."""
        self._guards.append(needed_from)

    def run(self) -> list[Removed]:
        """Drop what may go, oldest first, and advance queues and index to the log's start."""
        steps = self.steps()
        while True:
            try:
                next(steps)
            except StopIteration as stop:
                removed: list[Removed] = stop.value
                return removed

    def steps(self) -> Generator[None, None, list[Removed]]:
        """Do the same one queue at a time, so that messages can be stored and read in between. One run at a time.

        A queue costs up to 60 µs, and there may be 50,000. Therefore all queues first stop offering the entries to
        drop, and then the log drops their segments.
        """
        store = self._store
        expired = self._expired()
        if not expired:
            return []
        log_start = expired[-1].end
        for key in [(queue.topic, queue.queue_id) for queue in store.queues]:
            queue = store.queues.find(*key)
            if queue is not None and queue.topic not in OWN_TOPICS:  # waiting messages are needed until the end
                self._dropped_paths += queue.forget_below(log_start)
                yield
        if self._guarded() < log_start:
            return []  # a guard now needs these records
        is_covered = log_start <= store.checkpoint_offset
        assert is_covered, f"recovery reads from {store.checkpoint_offset}, so nothing from there on may be dropped"
        removed = [Removed(one.start, one.reason, store.log.drop_first_segment()) for one in expired]
        for queue in filter(lambda queue: queue.topic in OWN_TOPICS, store.queues):
            self._dropped_paths += queue.forget_below(log_start)
        # After the log's own files: the state after a crash must not look as if files of queues or index had been lost.
        paths, self._dropped_paths = [*self._dropped_paths, *store.index.drop_below(log_start)], []
        return removed + [Removed(log_start, "all its records were deleted", path) for path in paths]

    def _expired(self) -> list[_Expired]:
        """Return the segments that may be dropped now, oldest first."""
        expired: list[_Expired] = []
        guarded: int | None = None
        for start, end in self._store.log.closed_segments():
            reason = self._reason(end)
            # Only data that a checkpoint covers may go, because recovery reads from there.
            if reason is None or end > self._store.checkpoint_offset:
                break
            if guarded is None:
                guarded = self._guarded()  # a guard may look at 100,000 queues
            if end > guarded:
                break
            expired.append(_Expired(start, end, reason))
            if not self._is_old(end):
                break  # one at a time: the disk has more free space only after the file is removed
        return expired

    def _guarded(self) -> int:
        return min((needed_from() for needed_from in self._guards), default=self._store.log.end)

    def expires_until(self) -> int:
        """Return the log offset before which everything is dropped as soon as it is no longer needed."""
        until = self._store.log.start
        for _, end in self._store.log.closed_segments():
            if self._reason(end) is None:
                break
            until = end
        return until

    def _is_old(self, end: int) -> bool:
        stored_ms = record_store_timestamp_ms(self._store.log.read(end, HEAD.size), 0)
        # 0 means that the next segment is still empty, so the age is unknown.
        return stored_ms > 0 and self._clock.now_ms() - stored_ms > self._config.retention

    def _reason(self, end: int) -> str | None:
        """Return why the segment that ends at `end` may be dropped, or None if it stays.

        Its newest message is about as old as the oldest one of the next segment.
        """
        if self._is_old(end):
            return f"older than {self._config.retention // 1000} s"
        used = self._store.used_ratio()
        if used > self._config.disk_high:
            return f"the disk is {used:.0%} full"
        return None
