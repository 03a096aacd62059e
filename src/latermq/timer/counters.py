"""What became of one broker's timers since it started: plain counts, for monitoring."""

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class Tallies:
    """Added to where the thing happens, a batch at a time. Counts by topic are by the topic that a timer is for."""

    pending_at_start: Counter[str]
    left: Counter[str] = field(default_factory=Counter)  # wait no longer, whatever became of them
    delivered: Counter[str] = field(default_factory=Counter)
    cancelled: int = 0
    moved: int = 0
    rolled: int = 0
    refused: int = 0  # by flow control

    def scheduled(self, pending: Counter[str]) -> dict[str, int]:
        """How many began to wait, where so many are pending now: told from the rest, so that a send counts nothing."""
        topics = {**pending, **self.left}
        return {topic: pending[topic] - self.pending_at_start[topic] + self.left[topic] for topic in topics}
