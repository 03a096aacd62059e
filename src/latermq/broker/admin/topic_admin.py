"""Administration of topics: creates, changes and deletes them, and reports the state of their queues."""

from collections.abc import Callable, Mapping

from latermq.broker.metrics.topic_traffic import TopicTraffic
from latermq.broker.pop.positions import PopPositions
from latermq.broker.pop.waiting_pops import WaitingPops
from latermq.broker.tables.table_saver import Tables
from latermq.broker.tables.topics import Topics
from latermq.clock import Clock
from latermq.config import BrokerConfig
from latermq.errors import IllegalMessage, InvalidParameter
from latermq.group.offsets import ConsumerOffsets
from latermq.group.request_modes import RequestModes
from latermq.message.names import is_system_topic
from latermq.model.statistics import QueueState, TopicState
from latermq.model.topic import Topic
from latermq.store.message_store import MessageStore
from latermq.store.queues.consume_queue import ConsumeQueue
from latermq.timer.steps import Steps

MAX_PERMISSIONS = 7

# RocketMQ's topic attributes, each with the values that this broker supports.
_ATTRIBUTES: Mapping[str, frozenset[str]] = {
    "message.type": frozenset({"UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED"}),
    "queue.type": frozenset({"SimpleCQ"}),
    "cleanup.policy": frozenset({"DELETE"}),
    "reserve.time": frozenset({"-1"}),
}


class TopicAdmin:
    """Creates, changes, deletes and describes topics."""

    def __init__(
        self,
        topics: Topics,
        offsets: ConsumerOffsets,
        modes: RequestModes,
        tables: Tables,
        store: MessageStore,
        traffic: TopicTraffic,
        clock: Clock,
        settings: BrokerConfig,
        popped: PopPositions,
        waiting_pops: WaitingPops,
    ) -> None:
        self._topics = topics
        self._offsets = offsets
        self._modes = modes
        self._tables = tables
        self._store = store
        self._log_reader = store.reader
        self._traffic = traffic
        self._clock = clock
        self._popped = popped
        self._waiting_pops = waiting_pops
        self._names = (settings.cluster, settings.name)

    def is_own(self, topic: str) -> bool:
        """Whether the broker owns a topic, so that operators can neither change nor delete it."""
        return is_system_topic(topic) or topic in self._names

    def own_topics(self) -> list[str]:
        """The topics that the broker owns."""
        return [topic for topic in self._topics.names() if self.is_own(topic)]

    def _check_not_own(self, topic: str) -> None:
        """Refuse to change a topic that the broker itself needs."""
        if not topic.strip():
            raise InvalidParameter("the topic name is blank", hint="Specify a topic")
        if self.is_own(topic):
            raise InvalidParameter(f"topic {topic!r} is reserved for the broker", hint="Specify a topic of your own")

    def put(self, topic: Topic, changes: Mapping[str, str]) -> Topic:
        """Create a topic or change an existing one; attributes that are not named in `changes` stay."""
        self._check_not_own(topic.name)
        if not 0 <= topic.permissions <= MAX_PERMISSIONS:
            raise InvalidParameter(
                f"{topic.permissions} is not a valid permission", hint="Use 2 to write, 4 to read, 6 for both"
            )
        known = self._topics.find(topic.name)
        topic.attributes = _changed_attributes(known.attributes if known else {}, changes)
        if known == topic:
            return known
        try:
            self._topics.put(topic)
        except IllegalMessage as error:
            raise InvalidParameter(error.message, hint=error.hint) from None
        self._waiting_pops.mark_topic(topic.name)  # it may have more queues to read from
        return topic

    def delete(self, topic: str) -> list[Callable[[], None]]:
        """Delete a topic, its queues, and all offsets and modes in it; return the work for the disk."""
        self._check_not_own(topic)
        try:
            self._topics.check_removable(topic)
        except IllegalMessage as error:
            raise InvalidParameter(error.message, hint=error.hint) from None
        self._popped.remove_topic(topic)
        remove_files = self._store.remove_topic(topic)  # first: the disk may be full
        self._topics.remove(topic)
        self._offsets.remove_topic(topic)
        self._modes.remove_topic(topic)
        self._topics.pending_deletions.add(topic)

        def remove() -> None:
            try:
                remove_files()
            finally:
                self._topics.pending_deletions.discard(topic)

        return [remove, *self._tables.savers()]

    def state(self, topic: str) -> Steps[TopicState]:
        """First and next offset of each queue, the time of its last message, and the rate of messages."""
        config = self._topics.require(topic)
        queues = max(config.read_queues, config.write_queues)
        states = []
        for queue_id in range(queues):
            states.append(self._queue_state(self._log_reader.queues.find(topic, queue_id)))
            yield
        stored = self._traffic.stored(topic, queues, self._clock.monotonic_s())
        return TopicState(topic, states, stored.minute.per_second)

    def _queue_state(self, queue: ConsumeQueue | None) -> QueueState:
        if queue is None:
            return QueueState()
        stored_ms = self._log_reader.store_timestamp_ms(queue, queue.next_offset - 1)
        return QueueState(queue.min_offset, queue.next_offset, max(stored_ms, 0))


def parse_attributes(text: str | None) -> dict[str, str]:
    """Parse `+name=value,-name` into a map of changes; the sign is part of the name."""
    changes: dict[str, str] = {}
    for part in filter(None, (text or "").split(",")):
        name, _, value = part.partition("=")
        if name in changes:
            raise InvalidParameter(f"attribute {name!r} occurs twice")
        changes[name] = value
    return changes


def _changed_attributes(current: Mapping[str, str], changes: Mapping[str, str]) -> dict[str, str]:
    attributes = dict(current)
    for signed, value in changes.items():
        sign, name = signed[:1], signed[1:]
        allowed = _ATTRIBUTES.get(name)
        if allowed is None or sign not in ("+", "-"):
            raise InvalidParameter(
                f"{signed!r} is not a valid change of an attribute",
                hint=f"Write +name=value or -name; names are {', '.join(_ATTRIBUTES)}",
            )
        if sign == "-":
            attributes.pop(name, None)
        elif value in allowed:
            attributes[name] = value
        else:
            raise InvalidParameter(
                f"attribute {name} cannot be {value!r}", hint=f"This broker supports {', '.join(sorted(allowed))}"
            )
    return attributes
