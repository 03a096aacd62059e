"""How many dead letters there are in each topic, and which topics had new ones."""

from typing import NamedTuple

from latermq.broker.tables.topics import Topics
from latermq.message.names import DEAD_LETTER_PREFIX, TIMER_DEAD_LETTER_TOPIC
from latermq.store.queues.queue_table import QueueTable

EVERY_S = 5.0  # a pass over 5,000 topics takes 0.5 ms
KEPT_S = 86_400.0  # how long a topic counts as one with new dead letters, for operators
MAX_LISTED = 100


class NewDeadLetters(NamedTuple):
    """A topic that had a dead letter lately: how many were ever stored there, and the age of the last."""

    topic: str
    stored: int
    age_ms: int


class DeadLetterCounts:
    """Watches the ends of the topics of dead letters."""

    def __init__(self, topics: Topics, queues: QueueTable) -> None:
        self._topics = topics
        self._queues = queues
        self._stored: dict[str, int] | None = None
        self._grown_s: dict[str, float] = {}
        self._again_s = float("-inf")
        self._now_s = 0.0
        self.of_groups = 0  # new ones of consumer groups since the start

    def sample(self, now_s: float) -> None:
        """Count if it is due. Call it about once per second. Dead letters from before the first call are not new."""
        if now_s < self._again_s:
            return
        self._again_s, self._now_s = now_s + EVERY_S, now_s
        before, self._stored = self._stored, self._count()
        if before is None:
            return
        for topic, stored in self._stored.items():
            known = before.get(topic, 0)
            if stored > known:
                self._grown_s[topic] = now_s
                self.of_groups += stored - known if topic != TIMER_DEAD_LETTER_TOPIC else 0
        for topic in [one for one, grown_s in self._grown_s.items() if now_s - grown_s > KEPT_S]:
            del self._grown_s[topic]

    def recent(self) -> list[NewDeadLetters]:
        """Return the topics that had new dead letters, those with the newest first."""
        stored = self._stored or {}
        newest = sorted(self._grown_s.items(), key=lambda item: -item[1])[:MAX_LISTED]
        return [
            NewDeadLetters(topic, stored.get(topic, 0), int((self._now_s - grown_s) * 1000))
            for topic, grown_s in newest
            if topic in stored
        ]

    def _count(self) -> dict[str, int]:
        counts = {}
        for name, topic in self._topics.table.topics.items():
            if name.startswith(DEAD_LETTER_PREFIX) or name == TIMER_DEAD_LETTER_TOPIC:
                queues = (self._queues.find(name, number) for number in range(topic.write_queues))
                counts[name] = sum(queue.next_offset for queue in queues if queue is not None)
        return counts
