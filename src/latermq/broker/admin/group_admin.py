"""Administration of consumer groups: their configuration and progress; setting, copying and comparing offsets."""

from collections.abc import Iterable

from latermq.broker.metrics.topic_traffic import TopicTraffic
from latermq.broker.pop.positions import PopPositions
from latermq.broker.tables.topics import Topics
from latermq.clock import Clock
from latermq.config import BrokerConfig
from latermq.config_json.groups import encode_group
from latermq.errors import Busy, GroupNotFound, IllegalMessage, InvalidParameter, LaterMQError
from latermq.group.members import Members
from latermq.group.offsets import ConsumerOffsets
from latermq.group.request_modes import RequestModes
from latermq.group.retry_backoff import RETRY_LEVELS, parse_backoff
from latermq.group.subscriptions import SubscriptionGroups
from latermq.message.names import shown
from latermq.model.group import Group
from latermq.model.statistics import QueueProgress, QueueTimes, TopicProgress
from latermq.model.topic import Topic
from latermq.store.log_reader import LogReader
from latermq.timer.steps import Steps, spend

# Limit of one reply. Each queue takes about 10 µs and 160 bytes; the limit of a frame is 16 MiB.
MAX_LISTED_QUEUES = 50_000
_SEARCH_STEPS = 4  # cost of a search by time in one queue: about 20 reads of the log
# For a queue in which every other group is ahead of the compared one: no offset needs a correction.
_NO_CORRECTION = 0x7FFFFFFFFFFFFFFF


class GroupAdmin:
    """Creates, changes and deletes groups, reports their progress, and changes their offsets."""

    def __init__(
        self,
        groups: SubscriptionGroups,
        members: Members,
        offsets: ConsumerOffsets,
        modes: RequestModes,
        topics: Topics,
        log_reader: LogReader,
        traffic: TopicTraffic,
        clock: Clock,
        settings: BrokerConfig,
        popped: PopPositions,
    ) -> None:
        self._groups = groups
        self._members = members
        self._offsets = offsets
        self._modes = modes
        self._topics = topics
        self._log_reader = log_reader
        self._queues = log_reader.queues
        self._traffic = traffic
        self._clock = clock
        self._settings = settings
        self._popped = popped

    def config(self, group: str) -> Group:
        """A group's configuration; for an unknown group, the one that auto-creation would give it."""
        known = self._groups.find(group)
        if known is not None:
            return known
        if not self._settings.auto_create_groups:
            raise _no_such_group(group)
        return Group(name=group)

    def put(self, group: Group) -> None:
        """Create a group or change an existing one; attributes that are not named stay.

        Attributes are changes, `+name` or `-name`. A name without a sign, as in a configuration that a tool read and
        sends back, sets the attribute.
        """
        known = self._groups.find(group.name)
        attributes = dict(known.attributes) if known else {}
        for signed, value in group.attributes.items():
            name = signed.lstrip("+-")
            if name != RETRY_LEVELS:
                raise InvalidParameter(
                    f"{signed!r} is not a valid change of a group's attribute",
                    hint=f"Write +name=value or -name; the name is {RETRY_LEVELS}",
                )
            if signed.startswith("-"):
                attributes.pop(name, None)
            else:
                attributes[name] = " ".join(parse_backoff(value))
        group.attributes = attributes
        self._check_config(group)
        try:
            self._groups.put(group)
        except IllegalMessage as error:
            raise InvalidParameter(error.message, hint=error.hint) from None

    def _check_config(self, group: Group) -> None:
        """Refuse an invalid number of retry queues, and a configuration that is too large."""
        max_queues = self._settings.max_topic_queues
        if not 0 <= group.retry_queues <= max_queues:
            raise InvalidParameter(
                f"a retry topic cannot have {group.retry_queues} queues",
                hint=f"Give it 0 (none) to {max_queues}, or raise broker.max_topic_queues",
            )
        size, limit = len(encode_group(group)), int(self._settings.max_group_config)
        if size > limit:
            raise InvalidParameter(
                f"the configuration of group {shown(group.name)} takes {size} bytes, the limit is {limit}",
                hint="Name fewer subscriptions in it, or raise broker.max_group_config",
            )

    def delete(self, group: str, *, clean_offsets: bool) -> None:
        """Delete a group's configuration and request modes, and its offsets if requested."""
        self._popped.remove_group(group)
        self._groups.remove(group)
        self._modes.remove_group(group)
        if clean_offsets:
            self._offsets.remove_group(group)

    def watched_topics(self, group: str, topics: Iterable[str]) -> list[Topic]:
        """The topics that exist and, while members of the group are connected, that they subscribe to."""
        connected = self._members.consumer_group(group)
        subscribed = connected.subscriptions if connected else None
        found = (self._topics.find(topic) for topic in sorted(topics) if not subscribed or topic in subscribed)
        return [config for config in found if config is not None]

    def progress(self, group: str, topics: Iterable[Topic]) -> Steps[list[TopicProgress]]:
        """A group's offsets and pull rates in some topics."""
        topics = list(topics)
        _check_listable(sum(topic.read_queues for topic in topics))
        found = []
        for topic in topics:
            found.append((yield from self._topic_progress(group, topic)))
            yield
        return found

    def _topic_progress(self, group: str, topic: Topic) -> Steps[TopicProgress]:
        offsets = self._offsets.of_topic(group, topic.name)
        queues = []
        for queue_id in range(topic.read_queues):
            queue = self._queues.find(topic.name, queue_id)
            offset = max(0, offsets.get(queue_id, 0))
            consumed_ms = (
                self._log_reader.store_timestamp_ms(queue, offset - 1) if queue is not None and offset > 0 else 0
            )
            end = queue.next_offset if queue else 0
            delivered = self._popped.delivered_offset(group, topic.name, queue_id)
            queues.append(QueueProgress(end, offset, max(consumed_ms, 0), max(offset, delivered)))
            yield
        pulled = self._traffic.pulled(topic.name, group, self._clock.monotonic_s())
        return TopicProgress(topic.name, queues, pulled.minute.per_second)

    def all_progress(self, *, only_ordered: bool) -> Steps[dict[str, list[TopicProgress]]]:
        """The progress of every group in each of its topics."""
        plan = {}
        queues = 0
        topics_of: dict[str, list[str]] = {}
        for topic, group in (yield from self._offsets.pairs()):
            topics_of.setdefault(group, []).append(topic)
        for group in sorted(self._groups.table.groups):
            topics = self.watched_topics(group, topics_of.get(group, ()))
            plan[group] = [topic for topic in topics if topic.is_ordered or not only_ordered]
            queues += sum(topic.read_queues for topic in plan[group])
            yield
        _check_listable(queues)
        found = {}
        for group, wanted in plan.items():
            found[group] = yield from self.progress(group, wanted)
            yield
        return found

    def reset_offsets(
        self, group: str, topic: str, *, timestamp_ms: int, queue_id: int, offset: int | None, force: bool
    ) -> Steps[dict[int, int]]:
        """Set a group's offsets: in all queues to a time (negative: the end), or in one queue to an offset.

        Without `force` a time only moves a group back, never ahead. Returns the new offsets. No offsets are stored for
        queues that never had a message: a topic may have 65,535 of them, and a group starts there at 0 anyway.
        """
        config = self._topics.require(topic)
        if self._groups.find(group) is None:
            raise _no_such_group(group)
        if queue_id >= config.read_queues:
            raise InvalidParameter(
                f"topic {topic!r} has no queue {queue_id}", hint=f"Its queues are 0 to {config.read_queues - 1}"
            )
        stored: set[int] = set()
        if queue_id >= 0 and offset is not None and offset != -1:
            stored.update([queue_id] if self._queues.find(topic, queue_id) is not None else [])
            targets = {queue_id: self._checked_offset(topic, queue_id, offset)}
        else:
            queue_ids = [queue_id] if queue_id >= 0 else range(config.read_queues)
            targets = {}
            for one in queue_ids:
                targets[one] = self._offset_at(topic, one, timestamp_ms)
                if self._queues.find(topic, one) is not None:
                    stored.add(one)
                yield from spend(1 if timestamp_ms < 0 else _SEARCH_STEPS)
            # Both may have been deleted meanwhile, and offsets that are set now would never be removed. In a topic that
            # was created again, they would be beyond the ends, and the group would miss messages until then.
            if self._topics.require(topic) is not config:
                raise Busy(f"topic {topic!r} changed during the search for its offsets", hint="Try again")
            if self._groups.find(group) is None:
                raise _no_such_group(group)
            if not force:
                current = self._offsets.of_topic(group, topic)
                targets = {one: min(target, current.get(one, target)) for one, target in targets.items()}
        current = self._offsets.of_topic(group, topic)
        self._offsets.put_all(group, topic, {one: target for one, target in targets.items() if one in stored})
        for one, target in targets.items():
            if force or current.get(one) != target:
                self._popped.reset(group, topic, one, target)
        return targets

    def _checked_offset(self, topic: str, queue_id: int, offset: int) -> int:
        queue = self._queues.find(topic, queue_id)
        low, high = (queue.min_offset, queue.next_offset) if queue else (0, 0)
        if not low <= offset <= high:
            raise InvalidParameter(
                f"offset {offset} is not in queue {queue_id} of topic {topic!r}",
                hint=f"The queue has offsets {low} to {high}",
            )
        return offset

    def _offset_at(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        queue = self._queues.find(topic, queue_id)
        if queue is None:
            return 0
        return queue.next_offset if timestamp_ms < 0 else self._log_reader.offset_by_time(queue, timestamp_ms)

    def clone_offsets(self, source: str, target: str, topic: str, *, offline: bool) -> Steps[list[str]]:
        """Copy a group's offsets to another group, in one topic or in all; return the topics."""
        self._groups.require(target)
        topics = [topic] if topic else (yield from self.topics_of(source))
        if topic:
            self._topics.require(topic)
        if not offline:
            topics = [config.name for config in self.watched_topics(source, topics)]
        cloned = [name for name in topics if self._offsets.of_topic(source, name)]
        if not cloned:
            raise GroupNotFound(
                f"consumer group {source!r} has no offsets " + (f"in topic {topic!r}" if topic else "in any topic"),
                hint="The group must consume first",
            )
        for name in cloned:
            self._offsets.copy(source, target, name)
            for queue_id, offset in self._offsets.of_topic(target, name).items():
                self._popped.reset(target, name, queue_id, offset)
            yield
        return cloned

    def topics_of(self, group: str) -> Steps[list[str]]:
        """The topics that a group has offsets in."""
        pairs = yield from self._offsets.pairs()
        return sorted(topic for topic, owner in pairs if owner == group)

    def groups_of(self, topic: str) -> Steps[list[str]]:
        """The groups that have offsets in a topic."""
        pairs = yield from self._offsets.pairs()
        return sorted(group for name, group in pairs if name == topic)

    def queue_times(self, group: str, topic: str) -> Steps[list[QueueTimes]]:
        """For each queue the times of its first, its last and the last consumed message, and the group's delay."""
        now_ms = self._clock.now_ms()
        config = self._topics.require(topic)
        spans = []
        for queue_id in range(config.write_queues):
            queue = self._queues.find(topic, queue_id)
            first_ms = last_ms = consumed_ms = -1
            late_ms = 0
            if queue is not None:
                offset = max(0, self._offsets.get(group, topic, queue_id))
                first_ms = self._log_reader.store_timestamp_ms(queue, queue.min_offset)
                last_ms = self._log_reader.store_timestamp_ms(queue, queue.next_offset - 1)
                consumed_ms = self._log_reader.store_timestamp_ms(queue, offset - 1) if offset > 0 else first_ms
                next_ms = self._log_reader.store_timestamp_ms(queue, max(offset, queue.min_offset))
                late_ms = max(0, now_ms - next_ms) if next_ms >= 0 else 0
            spans.append(QueueTimes(first_ms, last_ms, consumed_ms, late_ms))
            yield
        return spans

    def correction_offsets(self, topic: str, compared: str, ignored: Iterable[str]) -> Steps[dict[int, int]]:
        """Per queue the smallest offset of all groups except the ignored, if the compared group is not behind it."""
        smallest: dict[int, int] = {}
        for group in set((yield from self.groups_of(topic))) - set(ignored):
            for queue_id, offset in self._offsets.of_topic(group, topic).items():
                yield
                queue = self._queues.find(topic, queue_id)
                if offset >= (queue.min_offset if queue else 0):
                    smallest[queue_id] = min(offset, smallest.get(queue_id, offset))
        for queue_id, offset in self._offsets.of_topic(compared, topic).items():
            if smallest.get(queue_id, _NO_CORRECTION) > offset:
                smallest[queue_id] = _NO_CORRECTION
        return smallest


def _no_such_group(group: str) -> GroupNotFound:
    return GroupNotFound(f"consumer group {group!r} does not exist", hint=f"Create it: latermq group create {group}")


def _check_listable(queues: int) -> None:
    if queues > MAX_LISTED_QUEUES:
        raise LaterMQError(
            f"the reply would list {queues} queues, the limit is {MAX_LISTED_QUEUES}",
            hint="Query one group and topic at a time: consumerProgress -g GROUP -t TOPIC",
        )
