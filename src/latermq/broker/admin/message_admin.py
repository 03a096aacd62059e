"""Administration of queues: lists their entries as they are on disk."""

from latermq.broker.messages.reader import MessageReader
from latermq.errors import InvalidParameter
from latermq.group.filters import Filters
from latermq.group.members import Members
from latermq.model.queue_entries import QueueEntries, QueueEntry
from latermq.store.queues.consume_queue import ENTRY

MAX_LISTED_ENTRIES = 1024  # per reply, because it is built on the event loop


class MessageAdmin:
    """Lists queue entries, and shows which of them match a group's subscription."""

    def __init__(self, reader: MessageReader, members: Members, filters: Filters) -> None:
        self._reader = reader
        self._members = members
        self._filters = filters

    def queue_entries(self, topic: str, queue_id: int, first: int, count: int, group: str | None) -> QueueEntries:
        """Entries of a queue; with a group also whether its subscription matches them."""
        queue = self._reader.find_queue(topic, queue_id)
        if queue is None:
            raise InvalidParameter(f"queue {queue_id} of topic {topic!r} never had a message")
        listed = QueueEntries(min_offset=queue.min_offset, max_offset=queue.next_offset)
        code_matches = None
        if group:
            connected = self._members.consumer_group(group)
            subscription = connected.subscriptions.get(topic) if connected else None
            if subscription is None:
                listed.note = f"{group}@{topic} is not online!"
            else:
                listed.subscription = subscription
                code_matches = self._filters.of(subscription).code_matches or (lambda code: True)
        left = min(count, MAX_LISTED_ENTRIES)
        offset = max(first, queue.min_offset)
        while left > 0 and (raw := queue.entries(offset, left)):
            for at, size, code in ENTRY.iter_unpack(raw):
                is_match = code_matches is not None and code_matches(code)
                listed.entries.append(QueueEntry(at, size, code, is_match))
            read = len(raw) // ENTRY.size
            left -= read
            offset += read
        return listed
