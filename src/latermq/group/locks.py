"""Queue locks: the client of an orderly group that may consume a queue."""

from dataclasses import dataclass

from latermq.clock import Clock
from latermq.errors import Busy


@dataclass(slots=True)
class _Lock:
    client_id: str
    renewed_s: float


class QueueLocks:
    """One lock holder per queue and group. A lock that its holder does not renew in time is free again."""

    def __init__(self, clock: Clock, timeout_ms: int, max_locks: int) -> None:
        self._clock = clock
        self._timeout_s = timeout_ms / 1000
        self._locks: dict[str, dict[tuple[str, int], _Lock]] = {}
        self._max_locks = max_locks
        self._count = 0

    def lock(self, group: str, client_id: str, queues: list[tuple[str, int]]) -> list[tuple[str, int]]:
        """Acquire or renew locks. Return those of `queues` that the client now holds."""
        now_s = self._clock.monotonic_s()
        if self._count + len(queues) > self._max_locks:
            known = self._locks.get(group, {})
            if self._count + sum(queue not in known for queue in queues) > self._max_locks:
                raise Busy(
                    f"{self._count} queues are locked; broker.max_queue_locks is {self._max_locks}",
                    hint="Stop orderly consumers that are no longer needed, or raise broker.max_queue_locks",
                )
        locks = self._locks.setdefault(group, {})
        held = []
        for queue in queues:
            lock = locks.get(queue)
            if lock is None or lock.client_id == client_id or now_s - lock.renewed_s > self._timeout_s:
                self._count += lock is None
                locks[queue] = _Lock(client_id, now_s)
                held.append(queue)
        return held

    def unlock(self, group: str, client_id: str, queues: list[tuple[str, int]]) -> None:
        """Release the client's locks. Locks of other clients stay."""
        locks = self._locks.get(group, {})
        for queue in queues:
            lock = locks.get(queue)
            if lock is not None and lock.client_id == client_id:
                del locks[queue]
                self._count -= 1
        if not locks:
            self._locks.pop(group, None)

    def is_held(self, group: str) -> bool:
        """Return whether any member of the group holds a lock, which means that the group consumes in order."""
        oldest_s = self._clock.monotonic_s() - self._timeout_s
        return any(lock.renewed_s >= oldest_s for lock in self._locks.get(group, {}).values())

    def expire(self) -> None:
        """Remove expired locks, so that the table does not grow with groups that are no longer in use."""
        oldest_s = self._clock.monotonic_s() - self._timeout_s
        for group, locks in list(self._locks.items()):
            for queue in [queue for queue, lock in locks.items() if lock.renewed_s < oldest_s]:
                del locks[queue]
                self._count -= 1
            if not locks:
                del self._locks[group]

    def statistics(self) -> dict[str, int]:
        """Return the number of locks."""
        return {"queue_locks": self._count}
