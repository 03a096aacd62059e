"""Counters of a broker's timers since it started, for monitoring."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(slots=True)
class Tallies:
    """Counts that are updated once per batch, where the event happens. Counts by topic use a timer's real topic."""

    pending_at_start: Counter[str] = field(default_factory=Counter)
    left: Counter[str] = field(default_factory=Counter)  # no longer pending, for any reason
    delivered: Counter[str] = field(default_factory=Counter)
    cancelled: int = 0
    moved: int = 0
    renewed: int = 0
    refused: int = 0  # rejected by flow control

    def scheduled(self, pending: Counter[str]) -> dict[str, int]:
        """Return how many timers were scheduled, given the pending ones. Derived, so that a send updates no counter."""
        topics = {**pending, **self.left}
        return {topic: pending[topic] - self.pending_at_start[topic] + self.left[topic] for topic in topics}


class Counters:
    """The number of pending timers per topic, and the tallies since the start."""

    def __init__(self, pending: Mapping[str, int]) -> None:
        self.pending: Counter[str] = Counter(pending)
        self.tallies = Tallies()

    def start(self) -> None:
        """Start counting. Everything stored before the start counts as pending."""
        self.tallies = Tallies(Counter(self.pending))

    def leave(self, topic: str, count: int) -> None:
        """Count timers of a topic that are no longer pending: delivered, dead-lettered, cancelled or moved."""
        self.pending[topic] -= count
        self.tallies.left[topic] += count
