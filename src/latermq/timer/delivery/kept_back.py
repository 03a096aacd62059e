"""Blocks that could not be appended: kept per queue in order, and retried after a growing pause."""

from collections.abc import Iterator

import numpy as np

from latermq.arrays import Indices, Ints
from latermq.errors import StoreError
from latermq.retry import Backoff
from latermq.store.block import Block

FIRST_PAUSE_MS = 100
LONGEST_PAUSE_MS = 5_000


class KeptBack:
    """Blocks by blocked queue. Later records for such a queue wait until those that failed are stored."""

    def __init__(self) -> None:
        self._stuck: dict[tuple[str, int], list[tuple[Block, Ints]]] = {}
        self.size_bytes = 0
        self._backoff = Backoff(FIRST_PAUSE_MS, LONGEST_PAUSE_MS)

    def __bool__(self) -> bool:
        return bool(self._stuck)

    def __contains__(self, queue: tuple[str, int]) -> bool:
        return queue in self._stuck

    def blocks(self) -> Iterator[tuple[Block, Ints]]:
        """Yield all blocks with the due times of their records; those of a queue are in order."""
        return (kept for queue in self._stuck.values() for kept in queue)

    @property
    def records(self) -> int:
        return sum(len(block) for block, _ in self.blocks())

    def add(self, block: Block, dues: Ints) -> None:
        """Keep a block for a single queue."""
        queue = block.queues[int(block.queue_of[0])]
        assert np.all(block.queue_of == block.queue_of[0]), "a held-back block is for one queue"
        self._stuck.setdefault(queue, []).append((block, dues))
        self.size_bytes += block.size

    def add_blocked(self, block: Block, dues: Ints) -> Indices:
        """Add records for blocked queues after those already kept; return the rows for other queues."""
        free = np.ones(len(block), bool)
        for number, own in block.rows_by_queue().items():
            if block.queues[number] in self._stuck:
                free[own] = False
                self.add(block.rows(own), dues[own])
        return np.flatnonzero(free)

    # Retries

    def pause(self, error: StoreError, now_ms: int) -> None:
        """Note that an append failed for this reason. Failures of several queues in one round count once."""
        if self._backoff.is_ready(now_ms):
            self._backoff.record_failure(error.remark, now_ms)
        else:
            self._backoff.error = error.remark

    def end_pause(self) -> None:
        """Reset the pause, because no queue is blocked any more."""
        self._backoff.reset()

    @property
    def failure(self) -> str:
        """Why the last append failed; empty if no queue is blocked."""
        return self._backoff.error

    def wait_ms(self, now_ms: int) -> int:
        """Return how long until the next retry; zero or negative if it is due."""
        return self._backoff.wait(now_ms)

    def pop_all(self) -> list[tuple[Block, Ints]]:
        """Return all blocks for a retry. If a queue's first block fails again, the others wait for it."""
        kept = list(self.blocks())
        self._stuck, self.size_bytes = {}, 0
        return kept
