"""Messages received per topic and pulled per group, over the last minute, hour and day."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from latermq.store.queues.queue_table import QueueTable

# Counted pairs of topic and group. Snapshots of this many take about 30 MB.
MAX_PAIRS = 10_000
PAIR_SEPARATOR = "@"


class Span(NamedTuple):
    """The number of messages in a span of time, and the rate per second."""

    messages: int
    per_second: float


class Spans(NamedTuple):
    """The last minute, hour and day, or as much of them as the broker has been running."""

    minute: Span
    hour: Span
    day: Span


@dataclass(frozen=True, slots=True)
class _Snapshot:
    time_s: float
    stored: dict[str, int]
    pulled: dict[str, int]


@dataclass(slots=True)
class _History:
    """Snapshots at intervals. Once there are enough, the oldest is one span old."""

    interval_s: float
    snapshots: deque[_Snapshot] = field(default_factory=deque)

    def is_due(self, now_s: float) -> bool:
        return not self.snapshots or now_s - self.snapshots[-1].time_s >= self.interval_s


class TopicTraffic:
    """Messages received are computed from the ends of queues, so that sends cost nothing. Pulls are counted."""

    def __init__(self, queues: QueueTable, now_s: float) -> None:
        self._queues = queues
        self._pulled: dict[str, int] = {}
        self._histories = (
            _History(10.0, deque(maxlen=7)),
            _History(600.0, deque(maxlen=7)),
            _History(3600.0, deque(maxlen=25)),
        )
        self.sample(now_s)

    def count_pulled(self, topic: str, group: str, messages: int) -> None:
        """Count messages of a topic that a group pulled."""
        pair = topic + PAIR_SEPARATOR + group
        before = self._pulled.get(pair)
        if before is not None:
            self._pulled[pair] = before + messages
        elif len(self._pulled) < MAX_PAIRS:
            self._pulled[pair] = messages

    def sample(self, now_s: float) -> None:
        """Take a snapshot if one is due. Call it about once per second.

        Every ten seconds it visits all queues, which takes 10 ms for 40,000.
        """
        due = [history for history in self._histories if history.is_due(now_s)]
        if not due:
            return
        self._forget_idle_pairs()
        snapshot = _Snapshot(now_s, self._count_stored(), dict(self._pulled))
        for history in due:
            history.snapshots.append(snapshot)

    def _count_stored(self) -> dict[str, int]:
        stored: dict[str, int] = {}
        for queue in self._queues:
            stored[queue.topic] = stored.get(queue.topic, 0) + queue.next_offset
        return stored

    def _forget_idle_pairs(self) -> None:
        """Make room for new pairs if many are counted: drop pairs without a pull for a whole day."""
        days = self._histories[-1].snapshots
        if len(self._pulled) < MAX_PAIRS or len(days) < (days.maxlen or 0):
            return
        oldest = days[0].pulled
        self._pulled = {pair: count for pair, count in self._pulled.items() if oldest.get(pair) != count}

    def stored(self, topic: str, queues: int, now_s: float) -> Spans:
        """The messages received by a topic with this many queues."""
        ends = (self._queues.find(topic, queue_id) for queue_id in range(queues))
        count = sum(queue.next_offset for queue in ends if queue is not None)
        return self._spans(count, now_s, lambda snapshot: snapshot.stored.get(topic, 0))

    def pulled(self, topic: str, group: str, now_s: float) -> Spans:
        """The messages that a group pulled from a topic."""
        pair = topic + PAIR_SEPARATOR + group
        return self._spans(self._pulled.get(pair, 0), now_s, lambda snapshot: snapshot.pulled.get(pair, 0))

    def _spans(self, count: int, now_s: float, count_in: Callable[[_Snapshot], int]) -> Spans:
        spans = []
        for history in self._histories:
            oldest = history.snapshots[0]
            before = count_in(oldest)
            # Fewer than before: the topic was deleted and created again.
            messages = count - before if count >= before else count
            elapsed_s = now_s - oldest.time_s
            spans.append(Span(messages, messages / elapsed_s if elapsed_s > 0 else 0.0))
        return Spans(*spans)

    def statistics(self) -> dict[str, int]:
        """The number of counted pairs."""
        return {"counted_pairs": len(self._pulled)}
