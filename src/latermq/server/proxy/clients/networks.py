"""How many clients each network has, and which one has most: a full table displaces a client of that one."""

import heapq
from collections.abc import Callable

_MIN_ENTRIES = 1_024  # of the heap before it is worth rebuilding


class Networks:
    """Counts by network. A look at all of them for each new client would take 24 ms with 50,000."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        # (negative count, network), outdated if the network has another count by now.
        self._heap: list[tuple[int, str]] = []

    def __getitem__(self, network: str) -> int:
        return self._counts.get(network, 0)

    def add(self, network: str) -> None:
        """Count a client."""
        self._counts[network] = self[network] + 1
        self.note(network)

    def remove(self, network: str) -> None:
        """Count a client no longer."""
        self._counts[network] -= 1
        if self._counts[network]:
            self.note(network)
        else:
            del self._counts[network]

    def note(self, network: str) -> None:
        """Note that a network may be wanted by `largest` again."""
        heapq.heappush(self._heap, (-self._counts[network], network))
        if len(self._heap) > _MIN_ENTRIES and len(self._heap) > 4 * len(self._counts):
            self._heap = sorted((-count, name) for name, count in self._counts.items())

    def largest(self, is_wanted: Callable[[str], bool]) -> str:
        """Return the network with most clients that is wanted, or an empty string."""
        heap = self._heap
        while heap:
            count, network = heap[0]
            if self._counts.get(network) == -count and is_wanted(network):
                return network
            heapq.heappop(heap)
        return ""

    def highest(self) -> int:
        """Return the highest count."""
        return max(self._counts.values(), default=0)
