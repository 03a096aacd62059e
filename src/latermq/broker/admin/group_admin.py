"""Consumer groups as operators see them: how far they are, and their offsets set, copied and compared."""

from collections.abc import Iterable

from latermq.broker.broker import Broker
from latermq.config_json.groups import encode_group
from latermq.errors import Busy, GroupNotFound, IllegalMessage, InvalidParameter, LaterMQError
from latermq.group.retry_backoff import RETRY_LEVELS, parse_backoff
from latermq.message.names import shown
from latermq.model.group import Group
from latermq.model.statistics import QueueProgress, QueueTimes, TopicProgress
from latermq.model.topic import Topic
from latermq.timer.steps import Steps, spend

# Queues that one answer lists. Each takes about 10 µs and 160 bytes; a frame holds 16 MiB.
MAX_LISTED_QUEUES = 50_000
_SEARCH_STEPS = 4  # what a search by time in one queue counts for: some 20 reads of the log
# What is compared with a group that has gone beyond all others: it need not go back.
_NO_CORRECTION = 0x7FFFFFFFFFFFFFFF


def group_config(broker: Broker, group: str) -> Group:
    """A group's configuration; of one that its first heartbeat would make, the one that it would get."""
    known = broker.groups.find(group)
    if known is not None:
        return known
    if not broker.config.broker.auto_create_groups:
        raise _no_such_group(group)
    return Group(name=group)


def put_group(broker: Broker, group: Group) -> None:
    """Make a group or change the one that is there; attributes that it does not name stay.

    Attributes come as changes, `+name` or `-name`; a name without a sign, as in a configuration that was asked for and
    comes back, is taken as it stands.
    """
    known = broker.groups.find(group.name)
    attributes = dict(known.attributes) if known else {}
    for signed, value in group.attributes.items():
        name = signed.lstrip("+-")
        if name != RETRY_LEVELS:
            raise InvalidParameter(
                f"{signed!r} is no change of a group's attribute",
                hint=f"Write +name=value or -name; the name is {RETRY_LEVELS}",
            )
        if signed.startswith("-"):
            attributes.pop(name, None)
        else:
            attributes[name] = " ".join(parse_backoff(value))
    group.attributes = attributes
    _check_config(broker, group)
    try:
        broker.groups.put(group)
    except IllegalMessage as error:
        raise InvalidParameter(error.message, hint=error.hint) from None


def _check_config(broker: Broker, group: Group) -> None:
    """Refuse what no retry topic can have, and what is longer than a configuration may be."""
    max_queues = broker.config.broker.max_topic_queues
    if not 0 <= group.retry_queues <= max_queues:
        raise InvalidParameter(
            f"a retry topic cannot have {group.retry_queues} queues",
            hint=f"Give it 0 (none) to {max_queues}, or raise broker.max_topic_queues",
        )
    size, limit = len(encode_group(group)), int(broker.config.broker.max_group_config)
    if size > limit:
        raise InvalidParameter(
            f"the configuration of group {shown(group.name)} takes {size} bytes, the limit is {limit}",
            hint="Name fewer subscriptions in it, or raise broker.max_group_config",
        )


def _no_such_group(group: str) -> GroupNotFound:
    return GroupNotFound(f"consumer group {group!r} does not exist", hint=f"Create it: latermq group create {group}")


def watched_topics(broker: Broker, group: str, topics: Iterable[str]) -> list[Topic]:
    """Those of the topics that exist and, while members of the group are connected, that they subscribe to."""
    connected = broker.members.consumer_group(group)
    subscribed = connected.subscriptions if connected else None
    found = (broker.topics.find(topic) for topic in sorted(topics) if not subscribed or topic in subscribed)
    return [config for config in found if config is not None]


def _progress(broker: Broker, group: str, topic: Topic) -> Steps[TopicProgress]:
    store = broker.store
    offsets = broker.offsets.of_topic(group, topic.name)
    queues = []
    for queue_id in range(topic.read_queues):
        queue = store.queues.find(topic.name, queue_id)
        offset = max(0, offsets.get(queue_id, 0))
        consumed_ms = store.reader.store_timestamp_ms(queue, offset - 1) if queue is not None and offset > 0 else 0
        queues.append(QueueProgress(queue.next_offset if queue else 0, offset, max(consumed_ms, 0)))
        yield
    pulled = broker.topic_traffic.pulled(topic.name, group, broker.clock.monotonic_s())
    return TopicProgress(topic.name, queues, pulled.minute.per_second)


def progress(broker: Broker, group: str, topics: Iterable[Topic]) -> Steps[list[TopicProgress]]:
    """How far a group is in some topics, and how fast it pulls from them."""
    topics = list(topics)
    _check_listable(sum(topic.read_queues for topic in topics))
    found = []
    for topic in topics:
        found.append((yield from _progress(broker, group, topic)))
        yield
    return found


def all_progress(broker: Broker, *, only_ordered: bool) -> Steps[dict[str, list[TopicProgress]]]:
    """How far every group is in each of its topics."""
    plan = {}
    queues = 0
    topics_of: dict[str, list[str]] = {}
    for topic, group in (yield from broker.offsets.pairs()):
        topics_of.setdefault(group, []).append(topic)
    for group in sorted(broker.groups.table.groups):
        topics = watched_topics(broker, group, topics_of.get(group, ()))
        plan[group] = [topic for topic in topics if topic.is_ordered or not only_ordered]
        queues += sum(topic.read_queues for topic in plan[group])
        yield
    _check_listable(queues)
    found = {}
    for group, wanted in plan.items():
        found[group] = yield from progress(broker, group, wanted)
        yield
    return found


def _check_listable(queues: int) -> None:
    if queues > MAX_LISTED_QUEUES:
        raise LaterMQError(
            f"the answer would list {queues} queues, the limit is {MAX_LISTED_QUEUES}",
            hint="Ask for one group and topic at a time: consumerProgress -g GROUP -t TOPIC",
        )


def reset_offsets(
    broker: Broker, group: str, topic: str, *, timestamp_ms: int, queue_id: int, offset: int | None, force: bool
) -> Steps[dict[int, int]]:
    """Set a group's offsets: in all queues to a time, which when negative is the end, or in one queue to an offset.

    Without `force` a time only takes a group back, never ahead. Returns the new offsets. Of queues that never had a
    message none are kept, and a topic may have 65,535 of them: a group begins there at 0 anyway.
    """
    config = broker.topics.require(topic)
    if broker.groups.find(group) is None:
        raise _no_such_group(group)
    if queue_id >= config.read_queues:
        raise InvalidParameter(
            f"topic {topic!r} has no queue {queue_id}", hint=f"Its queues are 0 to {config.read_queues - 1}"
        )
    stored: set[int] = set()
    if queue_id >= 0 and offset is not None and offset != -1:
        stored.update([queue_id] if broker.store.queues.find(topic, queue_id) is not None else [])
        targets = {queue_id: _checked_offset(broker, topic, queue_id, offset)}
    else:
        queue_ids = [queue_id] if queue_id >= 0 else range(config.read_queues)
        targets = {}
        for one in queue_ids:
            targets[one] = _offset_at(broker, topic, one, timestamp_ms)
            if broker.store.queues.find(topic, one) is not None:
                stored.add(one)
            yield from spend(1 if timestamp_ms < 0 else _SEARCH_STEPS)
        # Both may have gone meanwhile, and what is set now would stay for ever. Offsets of a topic that was made anew
        # would lie beyond its ends, and the group would miss what comes until then.
        if broker.topics.require(topic) is not config:
            raise Busy(f"topic {topic!r} was changed while its offsets were looked for", hint="Ask again")
        if broker.groups.find(group) is None:
            raise _no_such_group(group)
        if not force:
            current = broker.offsets.of_topic(group, topic)
            targets = {one: min(target, current.get(one, target)) for one, target in targets.items()}
    broker.offsets.put_all(group, topic, {one: target for one, target in targets.items() if one in stored})
    return targets


def _checked_offset(broker: Broker, topic: str, queue_id: int, offset: int) -> int:
    queue = broker.store.queues.find(topic, queue_id)
    low, high = (queue.min_offset, queue.next_offset) if queue else (0, 0)
    if not low <= offset <= high:
        raise InvalidParameter(
            f"offset {offset} is not in queue {queue_id} of topic {topic!r}", hint=f"It goes from {low} to {high}"
        )
    return offset


def _offset_at(broker: Broker, topic: str, queue_id: int, timestamp_ms: int) -> int:
    queue = broker.store.queues.find(topic, queue_id)
    if queue is None:
        return 0
    return queue.next_offset if timestamp_ms < 0 else broker.store.reader.offset_by_time(queue, timestamp_ms)


def clone_offsets(broker: Broker, source: str, target: str, topic: str, *, offline: bool) -> Steps[list[str]]:
    """Give a group another one's offsets, in one topic or in all; the topics in which it did."""
    broker.groups.require(target)
    topics = [topic] if topic else (yield from topics_of(broker, source))
    if topic:
        broker.topics.require(topic)
    if not offline:
        topics = [config.name for config in watched_topics(broker, source, topics)]
    cloned = [name for name in topics if broker.offsets.of_topic(source, name)]
    if not cloned:
        raise GroupNotFound(
            f"consumer group {source!r} has no offsets " + (f"in topic {topic!r}" if topic else "in any topic"),
            hint="It has to consume first",
        )
    for name in cloned:
        broker.offsets.copy(source, target, name)
        yield
    return cloned


def topics_of(broker: Broker, group: str) -> Steps[list[str]]:
    """The topics that a group has offsets in."""
    pairs = yield from broker.offsets.pairs()
    return sorted(topic for topic, owner in pairs if owner == group)


def groups_of(broker: Broker, topic: str) -> Steps[list[str]]:
    """The groups that have offsets in a topic."""
    pairs = yield from broker.offsets.pairs()
    return sorted(group for name, group in pairs if name == topic)


def queue_times(broker: Broker, group: str, topic: str) -> Steps[list[QueueTimes]]:
    """For each queue the times of its first, its last and the last consumed message, and how late the group is."""
    store, now_ms = broker.store, broker.clock.now_ms()
    config = broker.topics.require(topic)
    spans = []
    for queue_id in range(config.write_queues):
        queue = store.queues.find(topic, queue_id)
        first_ms = last_ms = consumed_ms = -1
        late_ms = 0
        if queue is not None:
            offset = max(0, broker.offsets.get(group, topic, queue_id))
            first_ms = store.reader.store_timestamp_ms(queue, queue.min_offset)
            last_ms = store.reader.store_timestamp_ms(queue, queue.next_offset - 1)
            consumed_ms = store.reader.store_timestamp_ms(queue, offset - 1) if offset > 0 else first_ms
            next_ms = store.reader.store_timestamp_ms(queue, max(offset, queue.min_offset))
            late_ms = max(0, now_ms - next_ms) if next_ms >= 0 else 0
        spans.append(QueueTimes(first_ms, last_ms, consumed_ms, late_ms))
        yield
    return spans


def correction_offsets(broker: Broker, topic: str, compared: str, ignored: Iterable[str]) -> Steps[dict[int, int]]:
    """For each queue the smallest offset of all groups but the ignored, where the compared group is not behind it."""
    smallest: dict[int, int] = {}
    for group in set((yield from groups_of(broker, topic))) - set(ignored):
        for queue_id, offset in broker.offsets.of_topic(group, topic).items():
            yield
            queue = broker.store.queues.find(topic, queue_id)
            if offset >= (queue.min_offset if queue else 0):
                smallest[queue_id] = min(offset, smallest.get(queue_id, offset))
    for queue_id, offset in broker.offsets.of_topic(compared, topic).items():
        if smallest.get(queue_id, _NO_CORRECTION) > offset:
            smallest[queue_id] = _NO_CORRECTION
    return smallest
