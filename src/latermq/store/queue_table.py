"""The table of all consume queues: which there are, how many there may be, and where each goes on."""

from collections.abc import Iterator, Mapping
from functools import cache

from latermq.config import StoreConfig
from latermq.errors import NoPermission
from latermq.message.names import SCHEDULE_TOPIC, TIMER_DEAD_LETTER_TOPIC, TIMER_TOPIC, is_file_name
from latermq.store.consume_queue import FOLDER, ConsumeQueue, are_cut_short
from latermq.store.files.disk import Disk
from latermq.store.map_pool import MapPool

OWN_TOPICS = (SCHEDULE_TOPIC, TIMER_TOPIC, TIMER_DEAD_LETTER_TOPIC)  # they have few queues, and always find room


class QueueTable:
    """All queues of a store. `by_key` is the table itself, for the hot path of the writer."""

    def __init__(self, disk: Disk, config: StoreConfig, ends: dict[str, dict[int, int]] | None) -> None:
        """Takes all queues on disk; `ends` says how long a checkpoint knows them to be."""
        self._disk = disk
        self._file_entries = config.queue_file_entries
        self.pool = MapPool(config.max_open_queues)
        self.max_queues = config.max_queues
        self._max_delivered_queues = config.max_queues
        self.by_key: dict[tuple[str, int], ConsumeQueue] = {}
        found = [
            (topic, int(name))
            for topic in filter(is_file_name, disk.list_names(FOLDER))  # what is no UTF-8 is no topic
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
        """All queues there are now; some may come and go meanwhile."""
        return iter(list(self.by_key.values()))

    def has(self, topic: str, queue_id: int) -> bool:
        """Whether the queue is there."""
        return (topic, queue_id) in self.by_key

    def find(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """The queue, if anything was ever put into it or waits for it."""
        return self.by_key.get((topic, queue_id))

    def ensure(self, topic: str, queue_id: int) -> ConsumeQueue:
        """The queue, made where it is missing."""
        queue = self.by_key.get((topic, queue_id))
        if queue is None:
            queue = self.by_key[topic, queue_id] = ConsumeQueue(
                self._disk, topic, queue_id, file_entries=self._file_entries, pool=self.pool
            )
        return queue

    def admit(self, topic: str, queue_id: int) -> ConsumeQueue:
        """The same for a message that is being sent: it is refused where there are too many queues."""
        if len(self.by_key) >= self.max_queues and (topic, queue_id) not in self.by_key and topic not in OWN_TOPICS:
            raise NoPermission(
                f"there are {len(self.by_key)} queues, as many as store.max_queues allows: none is made for "
                f"{topic!r} {queue_id}",
                hint="Send to a queue that has messages, delete topics that nobody uses, or raise store.max_queues",
            )
        return self.ensure(topic, queue_id)

    def hold(self, topic: str, queue_id: int) -> None:
        """Make sure of a queue's place before a message for it is let wait. It gets its file with the first entry."""
        if (topic, queue_id) not in self.by_key:
            self.admit(topic, queue_id)

    def can_deliver_to(self, topic: str, queue_id: int) -> bool:
        """Whether there is a place for what has waited; it is there but in odd cases, see `store.max_queues`."""
        return (topic, queue_id) in self.by_key or len(self.by_key) < self._max_delivered_queues

    def bound_deliveries(self) -> None:
        """Set the bound for deliveries by how many queues a start found.

        What was accepted shall find a queue when it is delivered, also where an earlier version or a higher bound
        accepted it. But by deleting topics and making them again, nobody gets more than a quarter beyond the bound.
        """
        self._max_delivered_queues = max(self.max_queues, len(self.by_key)) + self.max_queues // 4

    def go_on_from(self, offsets: Mapping[tuple[str, int], int]) -> None:
        """Let queues that no record in the log tells of go on at these offsets: their numbers were given out once.

        For a start without a checkpoint, which would have said how long each queue is.
        """
        for (topic, queue_id), offset in offsets.items():
            queue = self.by_key.get((topic, queue_id))
            if offset and (queue is None or queue.next_offset == queue.min_offset < offset):
                self.ensure(topic, queue_id).restart_at(offset)

    def take_out(self, topic: str) -> list[ConsumeQueue]:
        """Take the queues of a topic out of the table; their files stay."""
        return [self.by_key.pop(key) for key in [key for key in self.by_key if key[0] == topic]]

    def close(self) -> None:
        """Unmap all files."""
        for queue in self.by_key.values():
            queue.close()
