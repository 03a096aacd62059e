"""Messages as operators look for them: by key, by place, and as entries of a queue."""

from latermq.broker.admin.topic_admin import find_queue
from latermq.broker.broker import Broker
from latermq.errors import InvalidParameter, QueryNotFound
from latermq.message.properties import KEY_SEPARATOR, find_property
from latermq.message.record import layout
from latermq.model.queue_entries import QueueEntries, QueueEntry
from latermq.store.index.key_index import NO_HIT
from latermq.store.queues.consume_queue import ENTRY
from latermq.timer.steps import Steps

# What one answer holds at most, whatever was asked for: it is built on the loop that serves everybody.
MAX_FOUND = 64
MAX_FOUND_BYTES = 4 << 20
MAX_LISTED_ENTRIES = 1024
UNIQUE_KEY_FOUND = 32  # Apache's own bound for unique keys, of which there are as many as a send was retried


def find_by_key(
    broker: Broker, topic: str, key: str, *, unique: bool, max_found: int, begin_ms: int, end_ms: int
) -> Steps[list[bytes]]:
    """Records of a topic that have this key, the newest first; with `unique` only the unique key counts."""
    wanted = min(UNIQUE_KEY_FOUND if unique else max_found, MAX_FOUND)
    found: list[bytes] = []
    found_bytes = 0
    for offset in broker.store.reader.search_key(topic, key, begin_ms, end_ms):
        if len(found) >= wanted or found_bytes >= MAX_FOUND_BYTES:
            break
        yield
        record = broker.store.log.read_record(offset) if offset != NO_HIT else None
        if record is not None and _has_key(record, topic.encode(), key.encode(), unique=unique):
            found.append(record)
            found_bytes += len(record)
    if not found:
        raise QueryNotFound(
            f"no message of topic {topic!r} has the key {key!r} in that time", hint="Look at the key and the times"
        )
    return found


def _has_key(record: bytes, topic: bytes, key: bytes, *, unique: bool) -> bool:
    """Whether the record is what the hash promised: two keys, and two topics, may share one."""
    parts = layout(record, 0, len(record))
    if parts is None or record[parts.topic_at : parts.topic_at + parts.topic_bytes] != topic:
        return False
    properties = record[parts.properties_at :]
    if find_property(properties, b"UNIQ_KEY") == key:
        return True
    keys = find_property(properties, b"KEYS")
    return not unique and keys is not None and key in keys.split(KEY_SEPARATOR.encode())


def topics_at(broker: Broker, physical_offset: int) -> list[str]:
    """The topic of the message at a place of the log; none where no message begins there."""
    message = broker.store.reader.read_message(physical_offset)
    return [] if message is None else [message.topic]


def read_record(broker: Broker, physical_offset: int) -> bytes:
    """The record at a place of the log."""
    record = broker.store.log.read_record(physical_offset)
    if record is None:
        log = broker.store.log
        raise QueryNotFound(
            f"no message begins at {physical_offset} of the log",
            hint=f"It goes from {log.start} to {log.end}; the message may have been removed by age",
        )
    return record


def queue_entries(broker: Broker, topic: str, queue_id: int, first: int, count: int, group: str | None) -> QueueEntries:
    """Entries of a queue as they lie on disk; with a group also whether its tags let them through."""
    queue = find_queue(broker, topic, queue_id)
    if queue is None:
        raise InvalidParameter(f"nothing was ever put into queue {queue_id} of topic {topic!r}")
    listed = QueueEntries(min_offset=queue.min_offset, max_offset=queue.next_offset)
    code_matches = None
    if group:
        connected = broker.members.consumer_group(group)
        subscription = connected.subscriptions.get(topic) if connected else None
        if subscription is None:
            listed.note = f"{group}@{topic} is not online!"
        else:
            listed.subscription = subscription
            code_matches = broker.filters.of(subscription).code_matches or (lambda code: True)
    left = min(count, MAX_LISTED_ENTRIES)
    offset = max(first, queue.min_offset)
    while left > 0 and (raw := queue.entries(offset, left)):
        for at, size, code in ENTRY.iter_unpack(raw):
            let_through = code_matches is not None and code_matches(code)
            listed.entries.append(QueueEntry(at, size, code, let_through))
        read = len(raw) // ENTRY.size
        left -= read
        offset += read
    return listed
