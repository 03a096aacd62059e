"""Retention: the oldest segments go when they are old enough or the disk is full, unless somebody still needs them."""

from collections.abc import Callable
from dataclasses import dataclass

from latermq.clock import Clock
from latermq.config import StoreConfig
from latermq.message.record import HEAD, record_store_timestamp_ms
from latermq.store.message_store import MessageStore


@dataclass(frozen=True)
class Removed:
    """One segment that the store let go of, why, and its file, which is still to be removed.

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
        removed = []
        store = self._store
        guarded = min((needed_from() for needed_from in self._guards), default=store.log.end)
        for start, end in store.log.closed_segments():
            reason = self._reason(end)
            # Only what a checkpoint covers may go: recovery reads from there.
            if reason is None or end > guarded or end > store.checkpoint_offset:
                break
            removed.append(Removed(start, reason, store.log.drop_first_segment()))
        if removed:
            for queue in store.queues():
                queue.forget_below(store.log.start)
            store.index.forget_below(store.log.start)
        return removed

    def _reason(self, end: int) -> str | None:
        """Why the segment that ends at `end` may go, None where it stays.

        Its newest message is about as old as the oldest of the segment behind it.
        """
        first = self._store.log.read(end, HEAD.size)
        age_ms = self._clock.now_ms() - record_store_timestamp_ms(first, 0)
        if age_ms > self._config.retention:
            return f"older than {self._config.retention // 1000} s"
        used = self._store.used_ratio()
        if used > self._config.disk_high:
            return f"the disk is {used:.0%} full"
        return None
