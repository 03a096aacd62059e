"""Removes auto-created retry topics and groups that are not used."""

from collections import Counter

from latermq.broker.tables.topics import Topics
from latermq.group.members import Members
from latermq.group.offsets import ConsumerOffsets
from latermq.group.subscriptions import SubscriptionGroups
from latermq.message.names import dead_letter_topic, group_of, retry_topic

_NAMES_PER_ROUND = 500  # about 1 ms


class UnusedNames:
    """Removes topics and groups that had no connected client for broker.keep_unused.

    A topic counts as used from its first message on (`Topics.for_send`). A topic that is removed has no file and no
    record, and the next heartbeat of its group creates it again.
    """

    def __init__(
        self,
        topics: Topics,
        groups: SubscriptionGroups,
        members: Members,
        offsets: ConsumerOffsets,
        pending_timers: Counter[str],
        keep_unused_ms: int,
    ) -> None:
        """`pending_timers` counts the pending timers of each topic."""
        self._topics = topics
        self._groups = groups
        self._members = members
        self._offsets = offsets
        self._pending_timers = pending_timers
        self._idle_s = keep_unused_ms / 1000

    def remove(self) -> tuple[int, int]:
        """Remove some topics and groups; return the number of each."""
        counts = self._remove_topics(), self._remove_groups()
        for kind in (self._topics.auto_created, self._groups.auto_created):
            kind.forget_old()
        return counts

    def _remove_topics(self) -> int:
        removed, names = 0, self._topics.auto_created
        for topic in names.idle(self._idle_s, _NAMES_PER_ROUND):
            group = group_of(topic)
            if self._members.consumer_group(group) is not None:
                names.note_client(topic)
            elif self._offsets.has_any(group) or self._offsets.groups_of(topic) or self._pending_timers[topic]:
                names.use(topic)
            else:
                self._topics.remove(topic)
                removed += 1
        return removed

    def _remove_groups(self) -> int:
        removed, names = 0, self._groups.auto_created
        for group in names.idle(self._idle_s, _NAMES_PER_ROUND):
            topics = (self._topics.find(topic) for topic in (retry_topic(group), dead_letter_topic(group)))
            if self._members.consumer_group(group) is not None:
                names.note_client(group)
            elif self._offsets.has_any(group) or any(topic is not None for topic in topics):
                names.use(group)
            else:
                self._groups.remove(group)
                removed += 1
        return removed
