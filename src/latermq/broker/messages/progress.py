"""Consumer progress: which offset a group continues from, read and committed by its members."""

from typing import Protocol

from latermq.broker.tables.topics import Topics
from latermq.config import BrokerConfig
from latermq.errors import MalformedRequest
from latermq.group.offsets import ConsumerOffsets
from latermq.group.subscriptions import SubscriptionGroups
from latermq.store.log_reader import LogReader


class PoppedOffsets(Protocol):
    """The positions of groups in queues that they pop."""

    def committed(self, group: str, topic: str, queue_id: int, offset: int, *, is_reset: bool) -> int:
        """Return the offset to store when this one is committed."""
        ...


class ConsumerProgress:
    """Checks and bounds the offsets that consumers commit, and chooses a start for groups without one."""

    def __init__(
        self,
        log_reader: LogReader,
        topics: Topics,
        groups: SubscriptionGroups,
        offsets: ConsumerOffsets,
        settings: BrokerConfig,
        popped: PoppedOffsets,
    ) -> None:
        self._log_reader = log_reader
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._recent_log = settings.recent_log
        self._popped = popped

    def committed(self, group: str, topic: str, queue_id: int, *, zero_if_new: bool = True) -> int:
        """The offset a group continues from in a queue; -1 if the client has to choose a start itself."""
        offset = self._offsets.get(group, topic, queue_id)
        if offset >= 0 or not zero_if_new:
            return offset
        queue = self._log_reader.queues.find(topic, queue_id)
        first = queue.entry(0) if queue and queue.min_offset == 0 else None
        if first is not None and self._log_reader.log.end - first[0] <= self._recent_log:
            return 0
        return -1

    def commit(
        self, group: str, topic: str, queue_id: int, offset: int, by: bytes = b"", *, is_reset: bool = False
    ) -> None:
        """Store the offset a group continues from in a queue, at most the queue's end.

        `is_reset` says that no consumer of the group is connected, so an operator may set the offset back.
        """
        if offset < 0:
            raise MalformedRequest(f"offset {offset} cannot be committed", hint="Offsets start at 0")
        config = self._topics.require(topic)
        if not 0 <= queue_id < max(config.read_queues, config.write_queues):
            raise MalformedRequest(f"topic {topic!r} has no queue {queue_id}")
        self._groups.require(group, by)
        offset = min(offset, self._queue_end(topic, queue_id))
        offset = self._popped.committed(group, topic, queue_id, offset, is_reset=is_reset)
        self._offsets.put(group, topic, queue_id, offset)

    def clamp(self) -> int:
        """Reduce stored offsets that are beyond the end of their queue, as after a crash; return their number."""
        return self._offsets.clamp(self._queue_end)

    def _queue_end(self, topic: str, queue_id: int) -> int:
        queue = self._log_reader.queues.find(topic, queue_id)
        return queue.next_offset if queue else 0
