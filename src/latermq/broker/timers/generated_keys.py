"""Unique keys for timers sent without one."""

from latermq.message.names import TIMER_TOPIC
from latermq.store.queues.queue_table import QueueTable


class GeneratedKeys:
    """A key contains the store id and the timer topic's next offset. No record has it yet, so the key is new."""

    def __init__(self, store_id: str, queues: QueueTable) -> None:
        self._prefix = store_id[:16]
        self._queues = queues
        self._count = 0

    def next_key(self) -> str:
        """Return a key that was never used."""
        queue = self._queues.find(TIMER_TOPIC, 0)
        self._count += 1
        return f"{self._prefix}{queue.next_offset if queue else 0:014X}{self._count % 65_536:04X}"
