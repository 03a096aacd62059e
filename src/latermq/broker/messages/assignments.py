"""Queue assignments: which queues a member of a group consumes, and whether it pulls or pops them."""

from collections.abc import Mapping
from typing import NamedTuple

from latermq.broker.tables.topics import Topics
from latermq.errors import InvalidParameter, NoPermission
from latermq.group.allocation import STRATEGIES, Queue, allocate, allocate_shared
from latermq.group.members import Members
from latermq.group.request_modes import RequestModes
from latermq.group.subscriptions import SubscriptionGroups
from latermq.message.names import RETRY_PREFIX
from latermq.model.request_mode import Mode, RequestMode
from latermq.model.topic import READ

BROADCASTING = "BROADCASTING"
MAX_QUEUES = 16_384  # of a topic on all brokers: about 10 ms, and a reply of 1.5 MB


class Assignment(NamedTuple):
    """The queues of one member. `queues` is None if they are not known: the member then keeps those it has."""

    queues: list[Queue] | None
    mode: Mode


class Assignments:
    """Computes assignments from connected members and request modes, and sets the modes."""

    def __init__(
        self,
        topics: Topics,
        groups: SubscriptionGroups,
        members: Members,
        modes: RequestModes,
        broker_name: str,
    ) -> None:
        self._topics = topics
        self._groups = groups
        self._members = members
        self._modes = modes
        self._broker_name = broker_name

    def query(
        self,
        topic: str,
        group: str,
        client_id: str,
        strategy: str,
        model: str,
        other_brokers: Mapping[str, int],
    ) -> Assignment:
        """Return the queues of a member. `other_brokers` has the number of readable queues on each other broker."""
        mode = self._modes.of(topic, group)
        queues = self._readable(topic, other_brokers)
        if queues is None:
            return Assignment(None, mode.mode)
        if model == BROADCASTING:
            return Assignment(queues, mode.mode)
        members = self._members.consumer_group(group)
        if members is None or strategy not in STRATEGIES:
            return Assignment(None, mode.mode)
        client_ids = list(members.members)
        if mode.mode == "POP":
            return Assignment(allocate_shared(strategy, queues, client_id, client_ids, mode.shared_with), mode.mode)
        return Assignment(allocate(strategy, queues, client_id, client_ids), mode.mode)

    def _readable(self, topic: str, other_brokers: Mapping[str, int]) -> list[Queue] | None:
        """Return the readable queues of a topic on all brokers, or None if no broker has the topic."""
        counts = dict(other_brokers)
        own = self._topics.find(topic)
        if own is not None:
            counts[self._broker_name] = own.read_queues if own.permissions & READ else 0
        elif not counts:
            return None
        if sum(counts.values()) > MAX_QUEUES:
            raise InvalidParameter(
                f"topic {topic!r} has {sum(counts.values())} queues; assignments are computed for {MAX_QUEUES}",
                hint="Let the clients rebalance: setClientRebalance(true)",
            )
        return [(broker, queue_id) for broker, count in counts.items() for queue_id in range(count)]

    def set_mode(self, mode: RequestMode, by: bytes = b"") -> None:
        """Set how a group gets a topic's messages. A missing group is auto-created on behalf of the host `by`."""
        if mode.topic.startswith(RETRY_PREFIX):
            raise NoPermission(
                f"the mode of retry topic {mode.topic!r} cannot be set", hint="Retry topics follow their group"
            )
        self._topics.require(mode.topic)
        self._groups.require(mode.group, by)
        self._modes.put(mode)
        self._groups.auto_created.use(mode.group)  # an operator's choice must not be removed as unused

    def mode_of(self, topic: str, group: str) -> RequestMode:
        """Return how a group gets a topic's messages."""
        return self._modes.of(topic, group)
