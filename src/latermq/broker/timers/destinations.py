"""Destination queues of due messages, according to the topic table at that time."""

from latermq.broker.tables.topics import Topics
from latermq.store.queues.queue_table import QueueTable


class Destinations:
    """Finds the queue for a due message."""

    def __init__(self, topics: Topics, queues: QueueTable) -> None:
        self._topics = topics
        self._queues = queues

    def queue_for(self, topic: str, queue_id: int) -> int | str:
        """Return the queue to deliver to, or the reason why the message becomes a dead letter."""
        place = self._topics.readable_queue(topic, queue_id)
        if isinstance(place, str) or self._queues.can_deliver_to(topic, place):
            return place
        return f"queue {place} of topic {topic!r} would exceed store.max_queues"
