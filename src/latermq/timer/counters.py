"""What became of one broker's timers since it started: plain counts, for monitoring."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(slots=True)
class Tallies:
    """Added to where the thing happens, a batch at a time. Counts by topic are by the topic that a timer is for."""

    pending_at_start: Counter[str] = field(default_factory=Counter)
    left: Counter[str] = field(default_factory=Counter)  # wait no longer, whatever became of them
    delivered: Counter[str] = field(default_factory=Counter)
    cancelled: int = 0
    moved: int = 0
    renewed: int = 0
    refused: int = 0  # by flow control

    def scheduled(self, pending: Counter[str]) -> dict[str, int]:
        """How many began to wait, where so many are pending now: told from the rest, so that a send counts nothing."""
        topics = {**pending, **self.left}
        return {topic: pending[topic] - self.pending_at_start[topic] + self.left[topic] for topic in topics}


class Counters:
    """How many timers wait for each topic, and the tallies since the start."""

    def __init__(self, pending: Mapping[str, int]) -> None:
        self.pending: Counter[str] = Counter(pending)
        self.tallies = Tallies()

    def start(self) -> None:
        """All that came before a start is counted as pending: begin to count what comes after."""
        self.tallies = Tallies(Counter(self.pending))

    def leave(self, topic: str, count: int) -> None:
        """So many timers for a topic wait no longer: delivered, buried, cancelled or moved."""
        self.pending[topic] -= count
        self.tallies.left[topic] += count
