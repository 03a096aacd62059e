"""Leases: messages that a consumer holds as long as its client is reported alive."""

import heapq
from collections.abc import Iterable, Iterator
from hashlib import blake2b


def lease_id(client_id: str) -> int:
    """Return the number that stands for a client in the table and in the journal. It is never 0, which means none."""
    return int.from_bytes(blake2b(client_id.encode(), digest_size=8).digest(), "big") or 1


class Leases:
    """The rows of each lease, and the time when it ends unless the client is reported again."""

    def __init__(self) -> None:
        self._rows: dict[int, set[int]] = {}
        # A client that holds nothing for a moment stays here until its end: then the heap has one entry per client.
        self._until_ms: dict[int, int] = {}
        self._heap: list[tuple[int, int]] = []  # (end, lease); the end may have moved since

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[int]:
        return iter(self._rows)

    def add(self, lease: int, row: int) -> None:
        """Add a row to a lease."""
        self._rows.setdefault(lease, set()).add(row)

    def discard(self, lease: int, row: int) -> None:
        """Remove a row that is no longer held."""
        rows = self._rows[lease]
        rows.discard(row)
        if not rows:
            del self._rows[lease]

    def rows_of(self, lease: int) -> list[int]:
        """Return the rows of a lease."""
        return list(self._rows.get(lease, ()))

    def take(self, lease: int) -> set[int]:
        """End a lease and return its rows."""
        return self._rows.pop(lease, set())

    def renew(self, leases: Iterable[int], until_ms: int) -> None:
        """Prolong leases that hold messages. A lease never becomes shorter by this."""
        for lease in leases:
            if lease in self._rows:
                known_ms = self._until_ms.get(lease)
                if known_ms is None:
                    heapq.heappush(self._heap, (until_ms, lease))
                self._until_ms[lease] = max(until_ms, known_ms or 0)

    def ended(self, now_ms: int) -> list[int]:
        """Return the leases that have ended. The caller takes them."""
        ended = []
        heap = self._heap
        while heap and heap[0][0] <= now_ms:
            _, lease = heapq.heappop(heap)
            until_ms = self._until_ms[lease]
            if until_ms > now_ms:
                heapq.heappush(heap, (until_ms, lease))
                continue
            del self._until_ms[lease]
            if lease in self._rows:
                ended.append(lease)
        return ended

    def shift(self, by_ms: int) -> None:
        """Move the ends of all leases."""
        self._until_ms = {lease: until_ms + by_ms for lease, until_ms in self._until_ms.items()}
        self._heap = [(end_ms + by_ms, lease) for end_ms, lease in self._heap]

    def next_end_ms(self) -> int | None:
        """Return a time before which no lease ends."""
        return self._heap[0][0] if self._heap else None
