"""Long polling: pulls that found nothing wait here until a message comes or their time is up."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class WaitingPull:
    """One pull that waits. `resume(False)` tries again and says whether it was answered; `resume(True)` must answer."""

    deadline_s: float
    resume: Callable[[bool], bool]


class WaitingPulls:
    """Waiting pulls by queue. A touched queue is looked at once, however many messages came."""

    def __init__(self, max_waiting: int) -> None:
        self._max_waiting = max_waiting
        self._by_queue: dict[tuple[str, int], list[WaitingPull]] = {}
        self._touched: set[tuple[str, int]] = set()
        self._count = 0

    @property
    def is_full(self) -> bool:
        """Whether the next pull must be answered at once instead."""
        return self._count >= self._max_waiting

    def add(self, topic: str, queue_id: int, pull: WaitingPull) -> None:
        """Let a pull wait."""
        self._by_queue.setdefault((topic, queue_id), []).append(pull)
        self._count += 1

    def touch(self, topic: str, queue_id: int) -> None:
        """Something was put into this queue."""
        key = (topic, queue_id)
        if key in self._by_queue:
            self._touched.add(key)

    def wake(self) -> None:
        """Try the pulls of touched queues again."""
        while self._touched:
            key = self._touched.pop()
            self._retry(key, lambda pull: pull.resume(False))

    def expire(self, now_s: float) -> None:
        """Answer the pulls whose time is up."""
        for key in list(self._by_queue):
            self._retry(key, lambda pull: pull.deadline_s <= now_s and pull.resume(True))

    def _retry(self, key: tuple[str, int], is_answered: Callable[[WaitingPull], bool]) -> None:
        waiting = self._by_queue.pop(key, [])
        self._count -= len(waiting)
        left = [pull for pull in waiting if not is_answered(pull)]
        if left:
            self._by_queue[key] = left + self._by_queue.get(key, [])
            self._count += len(left)

    def statistics(self) -> dict[str, int]:
        """How many wait."""
        return {"waiting_pulls": self._count, "waited_queues": len(self._by_queue)}
