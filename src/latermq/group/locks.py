"""Queue locks: which client of an orderly group may consume a queue."""

from dataclasses import dataclass

from latermq.clock import Clock


@dataclass(slots=True)
class _Lock:
    client_id: str
    renewed_ms: int


class QueueLocks:
    """One holder a queue and group; a lock that is not renewed in time is free again."""

    def __init__(self, clock: Clock, timeout_ms: int) -> None:
        self._clock = clock
        self._timeout_ms = timeout_ms
        self._locks: dict[str, dict[tuple[str, int], _Lock]] = {}

    def lock(self, group: str, client_id: str, queues: list[tuple[str, int]]) -> list[tuple[str, int]]:
        """Take or renew locks; the queues that the client now holds."""
        now_ms = self._clock.now_ms()
        locks = self._locks.setdefault(group, {})
        held = []
        for queue in queues:
            lock = locks.get(queue)
            # A clock that stepped back leaves locks of the future: they count as fresh for no longer than any other.
            if lock is None or lock.client_id == client_id or abs(now_ms - lock.renewed_ms) > self._timeout_ms:
                locks[queue] = _Lock(client_id, now_ms)
                held.append(queue)
        return held

    def unlock(self, group: str, client_id: str, queues: list[tuple[str, int]]) -> None:
        """Give locks back; those of others stay."""
        locks = self._locks.get(group, {})
        for queue in queues:
            lock = locks.get(queue)
            if lock is not None and lock.client_id == client_id:
                del locks[queue]
        if not locks:
            self._locks.pop(group, None)

    def expire(self) -> None:
        """Drop locks that nobody renewed, so that the table stays as large as the groups in use."""
        oldest_ms = self._clock.now_ms() - self._timeout_ms
        for group, locks in list(self._locks.items()):
            for queue in [queue for queue, lock in locks.items() if lock.renewed_ms < oldest_ms]:
                del locks[queue]
            if not locks:
                del self._locks[group]

    def statistics(self) -> dict[str, int]:
        """How many locks are held."""
        return {"queue_locks": sum(map(len, self._locks.values()))}
