"""Long polling: pulls that found nothing wait here until a message comes or their time is up."""

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class WaitingPull:
    """One pull that waits. `resume(False)` tries again and says whether it was answered; `resume(True)` must answer."""

    deadline_s: float
    resume: Callable[[bool], bool]
    key: tuple[str, int] = field(default=("", 0))


class WaitingPulls:
    """Waiting pulls by queue, and by deadline. A touched queue is looked at once, however many messages came."""

    def __init__(self, max_waiting: int) -> None:
        self._max_waiting = max_waiting
        self.by_queue: dict[tuple[str, int], dict[WaitingPull, None]] = {}
        self._by_deadline: list[tuple[float, int, WaitingPull]] = []
        self._numbers = itertools.count()
        self._touched: set[tuple[str, int]] = set()
        self._count = 0

    @property
    def is_full(self) -> bool:
        """Whether the next pull must be answered at once instead."""
        return self._count >= self._max_waiting

    def add(self, topic: str, queue_id: int, pull: WaitingPull) -> None:
        """Let a pull wait."""
        pull.key = (topic, queue_id)
        self.by_queue.setdefault(pull.key, {})[pull] = None
        self._count += 1
        # Answered pulls are left in the heap; when they are the most of it, it is made anew.
        if len(self._by_deadline) > 2 * self._count + 1_000:
            self._by_deadline = [entry for entry in self._by_deadline if self._waits(entry[2])]
            heapq.heapify(self._by_deadline)
        heapq.heappush(self._by_deadline, (pull.deadline_s, next(self._numbers), pull))

    def touch(self, topic: str, queue_id: int) -> None:
        """Something was put into this queue."""
        key = (topic, queue_id)
        if key in self.by_queue:
            self._touched.add(key)

    def wake(self) -> None:
        """Try the pulls of touched queues again."""
        while self._touched:
            for pull in list(self.by_queue.get(self._touched.pop(), ())):
                if pull.resume(False):
                    self._forget(pull)

    def expire(self, now_s: float) -> None:
        """Answer the pulls whose time is up."""
        while self._by_deadline and self._by_deadline[0][0] <= now_s:
            pull = heapq.heappop(self._by_deadline)[2]
            if self._waits(pull):
                self._forget(pull)
                pull.resume(True)

    def _waits(self, pull: WaitingPull) -> bool:
        return pull in self.by_queue.get(pull.key, ())

    def _forget(self, pull: WaitingPull) -> None:
        waiting = self.by_queue[pull.key]
        del waiting[pull]
        if not waiting:
            del self.by_queue[pull.key]
        self._count -= 1

    def statistics(self) -> dict[str, int]:
        """How many wait."""
        return {"waiting_pulls": self._count, "waited_queues": len(self.by_queue)}
