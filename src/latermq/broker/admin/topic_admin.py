"""Topics as operators see them: made, changed, deleted, and the state of their queues."""

from collections.abc import Callable, Mapping

from latermq.broker.broker import Broker
from latermq.errors import IllegalMessage, InvalidParameter
from latermq.message.names import is_system_topic
from latermq.model.statistics import QueueState, TopicState
from latermq.model.topic import Topic
from latermq.store.queues.consume_queue import ConsumeQueue
from latermq.timer.steps import Steps

MAX_PERM = 7

# What RocketMQ knows as a topic's attributes, each with the values that this broker can keep its word about.
_ATTRIBUTES: Mapping[str, frozenset[str]] = {
    "message.type": frozenset({"UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED"}),
    "queue.type": frozenset({"SimpleCQ"}),
    "cleanup.policy": frozenset({"DELETE"}),
    "reserve.time": frozenset({"-1"}),
}


def is_own_topic(broker: Broker, topic: str) -> bool:
    """Whether a topic is the broker's own, which operators neither change nor delete."""
    return is_system_topic(topic) or topic in (broker.config.broker.cluster, broker.config.broker.name)


def own_topics(broker: Broker) -> list[str]:
    """The broker's own topics."""
    return [topic for topic in broker.topics.names() if is_own_topic(broker, topic)]


def check_not_own(broker: Broker, topic: str) -> None:
    """Refuse to touch a topic that the broker itself lives by."""
    if not topic.strip():
        raise InvalidParameter("the topic name is blank", hint="Specify a topic")
    if is_own_topic(broker, topic):
        raise InvalidParameter(
            f"topic {topic!r} is reserved for the broker", hint="It stays as it is; name one of your own"
        )


def delete_topic(broker: Broker, topic: str) -> list[Callable[[], None]]:
    """Forget a topic, its queues and all offsets in it; what is returned does so on disk, like `Tables.savers`."""
    check_not_own(broker, topic)
    try:
        return broker.delete_topic(topic)
    except IllegalMessage as error:
        raise InvalidParameter(error.message, hint=error.hint) from None


def put_topic(broker: Broker, topic: Topic, changes: Mapping[str, str]) -> Topic:
    """Make a topic or change the one that is there; attributes that are not named in `changes` stay."""
    check_not_own(broker, topic.name)
    if not 0 <= topic.permissions <= MAX_PERM:
        raise InvalidParameter(
            f"{topic.permissions} is no permission", hint="2 lets write, 4 lets read, 6 lets do both"
        )
    known = broker.topics.find(topic.name)
    topic.attributes = _changed_attributes(known.attributes if known else {}, changes)
    if known == topic:
        return known
    try:
        return broker.topics.put(topic)
    except IllegalMessage as error:
        raise InvalidParameter(error.message, hint=error.hint) from None


def parse_attributes(text: str | None) -> dict[str, str]:
    """`+name=value,-name` as a map of what to do: the sign stays with the name."""
    changes: dict[str, str] = {}
    for part in filter(None, (text or "").split(",")):
        name, _, value = part.partition("=")
        if name in changes:
            raise InvalidParameter(f"attribute {name!r} is named twice")
        changes[name] = value
    return changes


def _changed_attributes(current: Mapping[str, str], changes: Mapping[str, str]) -> dict[str, str]:
    attributes = dict(current)
    for signed, value in changes.items():
        sign, name = signed[:1], signed[1:]
        allowed = _ATTRIBUTES.get(name)
        if allowed is None or sign not in ("+", "-"):
            raise InvalidParameter(
                f"{signed!r} is no change of an attribute",
                hint=f"Write +name=value or -name; names are {', '.join(_ATTRIBUTES)}",
            )
        if sign == "-":
            attributes.pop(name, None)
        elif value in allowed:
            attributes[name] = value
        else:
            raise InvalidParameter(
                f"attribute {name} cannot be {value!r} here", hint=f"It can be {', '.join(sorted(allowed))}"
            )
    return attributes


def topic_state(broker: Broker, topic: str) -> Steps[TopicState]:
    """First and next offset of each queue, when it last got a message, and how fast messages come."""
    config = broker.topics.require(topic)
    queues = max(config.read_queues, config.write_queues)
    states = []
    for queue_id in range(queues):
        states.append(_queue_state(broker, broker.store.queues.find(topic, queue_id)))
        yield
    taken = broker.topic_traffic.taken(topic, queues, broker.clock.monotonic_s())
    return TopicState(topic, states, taken.minute.per_second)


def _queue_state(broker: Broker, queue: ConsumeQueue | None) -> QueueState:
    if queue is None:
        return QueueState()
    stored_ms = broker.store.reader.store_timestamp_ms(queue, queue.next_offset - 1)
    return QueueState(queue.min_offset, queue.next_offset, max(stored_ms, 0))
