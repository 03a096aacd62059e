"""The queues that waiting messages are delivered to, as the topic table has them when they are due."""

from latermq.broker.tables.topics import Topics
from latermq.store.queues.queue_table import QueueTable


class Destinations:
    """Finds the queue of a message that is due."""

    def __init__(self, topics: Topics, queues: QueueTable) -> None:
        self._topics = topics
        self._queues = queues

    def queue_for(self, topic: str, queue_id: int) -> int | str:
        """The queue to deliver to; or the reason why there is none, and the message becomes a dead letter."""
        place = self._topics.readable_queue(topic, queue_id)
        if isinstance(place, str) or self._queues.can_deliver_to(topic, place):
            return place
        return f"queue {place} of topic {topic!r} would be one more than store.max_queues allows"
