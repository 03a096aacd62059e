"""The table of all consume queues: which exist, how many may exist, and where each one continues."""

from collections.abc import Iterator, Mapping
from functools import cache

from latermq.config import StoreConfig
from latermq.errors import NoPermission
from latermq.message.names import (
    HALF_TOPIC,
    OP_HALF_TOPIC,
    POP_TOPIC,
    SCHEDULE_TOPIC,
    TIMER_DEAD_LETTER_TOPIC,
    TIMER_TOPIC,
    TRANSACTION_CHECK_TOPIC,
    is_file_name,
)
from latermq.store.files.disk import Disk
from latermq.store.queues.consume_queue import FOLDER, ConsumeQueue, are_cut_short
from latermq.store.queues.map_pool import MapPool

# Few queues, exempt from the limit.
OWN_TOPICS = (
    SCHEDULE_TOPIC, TIMER_TOPIC, TIMER_DEAD_LETTER_TOPIC, HALF_TOPIC, OP_HALF_TOPIC, TRANSACTION_CHECK_TOPIC,
    POP_TOPIC,
)  # fmt: skip


class QueueTable:
    """All queues of a store. `by_key` is the table itself, for the writer's hot path."""

    def __init__(self, disk: Disk, config: StoreConfig, ends: dict[str, dict[int, int]] | None) -> None:
        """Open all queues on disk; `ends` contains their lengths according to a checkpoint."""
        self._disk = disk
        self._file_entries = config.queue_file_entries
        self.pool = MapPool(config.max_open_queues)
        self.max_queues = config.max_queues
        self._max_delivered_queues = config.max_queues
        self.by_key: dict[tuple[str, int], ConsumeQueue] = {}
        found = [
            (topic, int(name))
            for topic in filter(is_file_name, disk.list_names(FOLDER))  # skips names that are not UTF-8
            for name in disk.list_names(f"{FOLDER}/{topic}")
            if name.isdigit()
        ]
        promised = {
            (topic, queue_id): None if ends is None else ends.get(topic, {}).get(queue_id, 0)
            for topic, queue_id in found
        }
        is_size_right = cache(lambda: are_cut_short(disk, config.queue_file_entries, promised))
        for (topic, queue_id), end in promised.items():
            self.by_key[topic, queue_id] = ConsumeQueue(
                disk,
                topic,
                queue_id,
                file_entries=config.queue_file_entries,
                pool=self.pool,
                promised_end=end,
                is_size_right=is_size_right,
            )

    def __len__(self) -> int:
        return len(self.by_key)

    def __iter__(self) -> Iterator[ConsumeQueue]:
        """Iterate over a snapshot of the queues. Queues may be added or removed during the iteration."""
        return iter(list(self.by_key.values()))

    def has(self, topic: str, queue_id: int) -> bool:
        """Whether the queue exists."""
        return (topic, queue_id) in self.by_key

    def find(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """Return the queue, or None if nothing was stored in it and no message waits for it."""
        return self.by_key.get((topic, queue_id))

    def ensure(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Return the queue, and create it if it is missing."""
        queue = self.by_key.get((topic, queue_id))
        if queue is None:
            queue = self.by_key[topic, queue_id] = ConsumeQueue(
                self._disk, topic, queue_id, file_entries=self._file_entries, pool=self.pool
            )
        return queue

    def admit(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Do the same for a message that is being sent. Reject it if there are too many queues."""
        if len(self.by_key) >= self.max_queues and (topic, queue_id) not in self.by_key and topic not in OWN_TOPICS:
            raise NoPermission(
                f"there are {len(self.by_key)} queues, the limit set by store.max_queues; cannot create queue "
                f"{queue_id} of {topic!r}",
                hint="Send to an existing queue, delete unused topics, or raise store.max_queues",
            )
        return self.ensure(topic, queue_id)

    def hold(self, topic: str, queue_id: int) -> None:
        """Reserve a queue's place before a message starts to wait for it. Its first entry creates its file."""
        if (topic, queue_id) not in self.by_key:
            self.admit(topic, queue_id)

    def can_deliver_to(self, topic: str, queue_id: int) -> bool:
        """Whether a waiting message can be delivered to this queue. Rarely false, see `store.max_queues`."""
        return (topic, queue_id) in self.by_key or len(self.by_key) < self._max_delivered_queues

    def bound_deliveries(self) -> None:
        """Set the limit for deliveries from the number of queues found at the start.

        Every accepted message must find a queue when it is delivered, even if an earlier version or a higher limit
        accepted it. But deleting and recreating topics must not exceed the limit by more than a quarter.
        """
        self._max_delivered_queues = max(self.max_queues, len(self.by_key)) + self.max_queues // 4

    def resume_from(self, offsets: Mapping[tuple[str, int], int]) -> None:
        """Continue queues without records in the log at these offsets, because the offsets below were already used.

        This is for a start without a checkpoint, which would have the length of each queue.
        """
        for (topic, queue_id), offset in offsets.items():
            queue = self.by_key.get((topic, queue_id))
            if offset and (queue is None or queue.next_offset == queue.min_offset < offset):
                self.ensure(topic, queue_id).restart_at(offset)

    def detach(self, topic: str) -> list[ConsumeQueue]:
        """Remove the queues of a topic from the table and return them. Their files stay."""
        return [self.by_key.pop(key) for key in [key for key in self.by_key if key[0] == topic]]

    def close(self) -> None:
        """Unmap all files."""
        for queue in self.by_key.values():
            queue.close()
