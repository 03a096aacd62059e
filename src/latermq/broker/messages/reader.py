"""Reads stored messages: pulls from a queue, look-ups by key and by log offset, and offsets by time."""

from dataclasses import dataclass

from latermq.broker.metrics.traffic import Traffic
from latermq.broker.tables.topics import Topics
from latermq.config import BrokerConfig
from latermq.errors import InvalidParameter, NoPermission, QueryNotFound
from latermq.group.filters import EVERYTHING, MessageFilter
from latermq.group.subscriptions import SubscriptionGroups
from latermq.message.names import WAITING_TOPICS
from latermq.message.properties import KEY_SEPARATOR, find_property
from latermq.message.record import layout
from latermq.model.pull_status import PullStatus
from latermq.model.topic import READ
from latermq.store.index.key_index import NO_HIT
from latermq.store.log_reader import LogReader
from latermq.store.queues.consume_queue import ConsumeQueue
from latermq.timer.steps import Steps

# Limits of one reply, also if the client requests more, because it is built on the event loop.
MAX_FOUND = 64
MAX_FOUND_BYTES = 4 << 20
UNIQUE_KEY_FOUND = 32  # Apache's own limit for unique keys: a key has one message per attempt to send it


@dataclass(slots=True)
class Pulled:
    """The result of a pull: status, next offset, and the records exactly as they are in the log."""

    status: PullStatus
    next_offset: int
    min_offset: int
    max_offset: int
    pieces: list[bytes]
    messages: int = 0
    work: int = 0  # of the filter, in bytes of records


class MessageReader:
    """Reads messages for consumers and operators. It changes nothing but its counters."""

    def __init__(
        self,
        log_reader: LogReader,
        topics: Topics,
        groups: SubscriptionGroups,
        settings: BrokerConfig,
        traffic: Traffic,
    ) -> None:
        self._log_reader = log_reader
        self._topics = topics
        self._groups = groups
        self._traffic = traffic
        self._max_messages = settings.pull_max_messages
        self._max_bytes = int(settings.pull_batch)
        self._max_scan = settings.pull_scan
        self._max_work = settings.pull_work
        self._exhausted_pulls = 0  # pulls answered before their filter had examined all the messages requested

    # Pulls

    def check_readable(self, group: str, topic: str, queue_id: int, by: bytes = b"") -> None:
        """Refuse a pull that the group, the topic or the queue does not allow; `by` is the client's host."""
        if not self._groups.require(group, by).can_consume:
            raise NoPermission(
                f"consumer group {group!r} may not consume", hint="Enable it with updateSubGroup -s true"
            )
        if topic in WAITING_TOPICS:
            raise NoPermission(
                f"topic {topic!r} holds messages of the broker and cannot be consumed",
                hint="Subscribe to the topic that messages were sent to",
            )
        config = self._topics.require(topic)
        if not config.permissions & READ:
            raise NoPermission(f"topic {topic!r} is not readable", hint="Change its permission with updateTopic -p 6")
        if not 0 <= queue_id < config.read_queues:
            raise InvalidParameter(
                f"topic {topic!r} has {config.read_queues} queues to read from, none with the id {queue_id}"
            )

    def pull(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_messages: int,
        *,
        message_filter: MessageFilter = EVERYTHING,
        max_bytes: int | None = None,
        until: int | None = None,
    ) -> Pulled:
        """Read from a queue, up to the offset `until` if it is given. The caller has called `check_readable`."""
        queue = self._log_reader.queues.find(topic, queue_id)
        if queue is None or queue.next_offset == queue.min_offset:
            end = queue.next_offset if queue else 0
            moved = offset != end
            return Pulled(PullStatus.OFFSET_MOVED if moved else PullStatus.NO_NEW_MESSAGE, end, end, end, [])
        low, high = queue.min_offset, queue.next_offset
        if offset == high:
            return Pulled(PullStatus.NO_NEW_MESSAGE, offset, low, high, [])
        if offset < low or offset > high:
            return Pulled(PullStatus.OFFSET_MOVED, low if offset < low else high, low, high, [])
        pieces, messages, next_offset, work = self.fetch(queue, offset, max_messages, message_filter, max_bytes, until)
        status = PullStatus.FOUND if messages else PullStatus.NO_MATCHED_MESSAGE
        return Pulled(status, next_offset, low, high, pieces, messages, work)

    def fetch(
        self,
        queue: ConsumeQueue,
        offset: int,
        max_messages: int,
        message_filter: MessageFilter,
        max_bytes: int | None = None,
        until: int | None = None,
    ) -> tuple[list[bytes], int, int, int]:
        """Read from an offset inside a queue: return records, their number, the next offset, and the filter's work."""
        limit = self._max_bytes
        pieces, messages, next_offset, work, is_exhausted = self._log_reader.fetch(
            queue,
            offset,
            max_count=max(1, min(max_messages, self._max_messages)),
            max_bytes=limit if max_bytes is None or max_bytes <= 0 else min(max_bytes, limit),
            code_matches=message_filter.code_matches,
            record_matches=message_filter.record_matches,
            max_scan=self._max_scan,
            max_work=self._max_work,
            record_work=message_filter.record_work,
            byte_work=message_filter.byte_work,
            until=until,
        )
        self._exhausted_pulls += is_exhausted
        self._traffic.messages_out += messages
        return pieces, messages, next_offset, work

    # Queues and offsets

    def find_queue(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """A queue that the topic has or once had; None if no message was ever stored in it."""
        config = self._topics.require(topic)
        queue = self._log_reader.queues.find(topic, queue_id)
        if queue is None and not 0 <= queue_id < max(config.read_queues, config.write_queues):
            raise InvalidParameter(
                f"topic {topic!r} has no queue {queue_id}", hint=f"Its queues are 0 to {config.read_queues - 1}"
            )
        return queue

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int, *, upper: bool) -> int:
        """The first message stored at or after a time; with `upper` the last one stored at or before it."""
        queue = self.find_queue(topic, queue_id)
        return self._log_reader.offset_by_time(queue, timestamp_ms, upper=upper) if queue else 0

    def earliest_ms(self, topic: str, queue_id: int) -> int:
        """When the oldest message of a queue was stored; -1 if there is none."""
        queue = self.find_queue(topic, queue_id)
        return self._log_reader.store_timestamp_ms(queue, queue.min_offset) if queue else -1

    # Look-ups

    def find_by_key(
        self, topic: str, key: str, *, unique: bool, max_found: int, begin_ms: int, end_ms: int
    ) -> Steps[list[bytes]]:
        """Records of a topic that have this key, newest first; with `unique` only the unique key is compared."""
        wanted = min(UNIQUE_KEY_FOUND if unique else max_found, MAX_FOUND)
        found: list[bytes] = []
        found_bytes = 0
        for offset in self._log_reader.search_key(topic, key, begin_ms, end_ms):
            if len(found) >= wanted or found_bytes >= MAX_FOUND_BYTES:
                break
            yield
            record = self._log_reader.log.read_record(offset) if offset != NO_HIT else None
            if record is not None and _has_key(record, topic.encode(), key.encode(), unique=unique):
                found.append(record)
                found_bytes += len(record)
        if not found:
            raise QueryNotFound(
                f"no message of topic {topic!r} has the key {key!r} in that time range",
                hint="Check the key and the times",
            )
        return found

    @property
    def newest_indexed(self) -> tuple[int, int]:
        """Store time and physical offset of the newest record in the key index."""
        return self._log_reader.newest_indexed

    def topics_at(self, physical_offset: int) -> list[str]:
        """The topic of the message that begins at this offset of the log; an empty list if none does."""
        message = self._log_reader.read_message(physical_offset)
        return [] if message is None else [message.topic]

    def read_record(self, physical_offset: int) -> bytes:
        """The record that begins at this offset of the log."""
        log = self._log_reader.log
        record = log.read_record(physical_offset)
        if record is None:
            raise QueryNotFound(
                f"no message begins at {physical_offset} of the log",
                hint=f"The log has offsets {log.start} to {log.end}; the message may have expired",
            )
        return record

    def statistics(self) -> dict[str, int]:
        """Pulls that ended early because their filter reached a limit."""
        return {"worn_out_pulls": self._exhausted_pulls}


def _has_key(record: bytes, topic: bytes, key: bytes, *, unique: bool) -> bool:
    """Whether the record really has the key: the index holds hashes, which two keys or topics may share."""
    parts = layout(record, 0, len(record))
    if parts is None or record[parts.topic_at : parts.topic_at + parts.topic_bytes] != topic:
        return False
    properties = record[parts.properties_at :]
    if find_property(properties, b"UNIQ_KEY") == key:
        return True
    keys = find_property(properties, b"KEYS")
    return not unique and keys is not None and key in keys.split(KEY_SEPARATOR.encode())
