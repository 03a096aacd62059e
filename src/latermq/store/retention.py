"""Retention: the oldest segments go when they are old enough or the disk is full, unless somebody still needs them."""

from collections.abc import Callable
from dataclasses import dataclass

from latermq.clock import Clock
from latermq.config import StoreConfig
from latermq.message.record import HEAD, record_store_timestamp_ms
from latermq.store.message_store import MessageStore


@dataclass(frozen=True)
class Removed:
    """One file that the store let go of, where the log began, why, and its path: it is still to be removed.

    Removing a gigabyte takes a file system a while, so it is left to a thread. Files go in the order of the log: what a
    crash leaves behind is the end of a log that begins earlier, never one with a hole.
    """

    start: int
    reason: str
    path: str


class Retention:
    """Decides which segments go. Guards name the log offset from which on they still need every record."""

    def __init__(self, store: MessageStore, config: StoreConfig, clock: Clock) -> None:
        self._store = store
        self._config = config
        self._clock = clock
        self._guards: list[Callable[[], int]] = []

    def add_guard(self, needed_from: Callable[[], int]) -> None:
        """Let a part that reads the log later keep what it needs."""
        self._guards.append(needed_from)

    def run(self) -> list[Removed]:
        """Let go of what may go, oldest first, and bring queues and index after the log's start."""
        removed: list[Removed] = []
        store = self._store
        guarded = min((needed_from() for needed_from in self._guards), default=store.log.end)
        for start, end in store.log.closed_segments():
            reason = self._reason(end)
            # Only what a checkpoint covers may go: recovery reads from there.
            if reason is None or end > guarded or end > store.checkpoint_offset:
                break
            removed.append(Removed(start, reason, store.log.drop_first_segment()))
            if not self._is_old(end):
                break  # the disk is emptier only once the file is gone: one at a time
        if removed:
            # Behind the log's own: what a crash leaves must not look as if files of queues or index had been lost.
            paths = [path for queue in store.queues() for path in queue.forget_below(store.log.start)]
            for path in (*paths, *store.index.drop_below(store.log.start)):
                removed.append(Removed(store.log.start, "all its records are gone", path))
        return removed

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
