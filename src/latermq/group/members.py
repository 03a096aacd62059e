"""Who is connected: producers and consumers by group, kept alive by their heartbeats."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from latermq.clock import Clock
from latermq.protocol.remoting.bodies import ConsumerData, HeartbeatData, SubscriptionData


class Channel(Protocol):
    """The connection of a client, as far as groups need it."""

    @property
    def peer_name(self) -> str: ...

    @property
    def is_closing(self) -> bool: ...

    @property
    def is_paused(self) -> bool:
        """Whether the client is behind with reading."""
        ...

    def send(self, frame: bytes) -> None: ...

    def cut_off(self, reason: str) -> None:
        """Close at once, and log why."""
        ...


@dataclass(slots=True)
class Member:
    """One client in one group."""

    client_id: str
    channel: Channel
    language: str
    version: int
    seen_s: float  # for expiry, by a clock that nobody sets
    seen_ms: int  # for operators


@dataclass(slots=True)
class ConsumerGroup:
    """The connected members of a consumer group and what they subscribe to."""

    name: str
    consume_type: str | None = None
    message_model: str | None = None
    consume_from: str | None = None
    members: dict[str, Member] = field(default_factory=dict)
    subscriptions: dict[str, SubscriptionData] = field(default_factory=dict)

    def subscribe(self, wanted: Iterable[SubscriptionData]) -> bool:
        """Take over the subscriptions of a heartbeat; whether any is new, changed or gone."""
        changed = False
        latest = {subscription.topic: subscription for subscription in wanted}
        for topic, subscription in latest.items():
            known = self.subscriptions.get(topic)
            if known is None or subscription.subVersion > known.subVersion:
                self.subscriptions[topic] = subscription
                changed = True
        for topic in [topic for topic in self.subscriptions if topic not in latest]:
            del self.subscriptions[topic]
            changed = True
        return changed


class Members:
    """All connected clients. Methods that change a consumer group return the names of the groups that changed."""

    def __init__(self) -> None:
        self._consumers: dict[str, ConsumerGroup] = {}
        self._producers: dict[str, dict[str, Member]] = {}
        # (group, client id) pairs by connection: thousands may go at once, and each must be quick to find.
        self._named_by: dict[Channel, set[tuple[str, str]]] = {}

    def heartbeat(
        self, channel: Channel, beat: HeartbeatData, *, language: str, version: int, clock: Clock
    ) -> set[str]:
        """Take in a heartbeat."""
        changed = set()
        member = Member(beat.clientID, channel, language, version, clock.monotonic_s(), clock.now_ms())
        named = self._named_by.setdefault(channel, set())
        named.update((producer.groupName, beat.clientID) for producer in beat.producerDataSet)
        named.update((consumer.groupName, beat.clientID) for consumer in beat.consumerDataSet)
        for producer in beat.producerDataSet:
            members = self._producers.setdefault(producer.groupName, {})
            members[beat.clientID] = member
        for data in beat.consumerDataSet:
            if self._join(data, member):
                changed.add(data.groupName)
        return changed

    def _join(self, data: ConsumerData, member: Member) -> bool:
        group = self._consumers.get(data.groupName)
        if group is None:
            group = self._consumers[data.groupName] = ConsumerGroup(data.groupName)
        group.consume_type = data.consumeType
        group.message_model = data.messageModel
        group.consume_from = data.consumeFromWhere
        known = group.members.get(member.client_id)
        joined = known is None or known.channel is not member.channel
        group.members[member.client_id] = member
        return group.subscribe(data.subscriptionDataSet) or joined

    def unregister(self, client_id: str, *, producer_group: str | None, consumer_group: str | None) -> set[str]:
        """A client says that it leaves a group."""
        if producer_group:
            self._leave_producers(producer_group, client_id)
        if consumer_group:
            group = self._consumers.get(consumer_group)
            if group is not None and group.members.pop(client_id, None) is not None:
                self._drop_if_empty(group)
                return {consumer_group}
        return set()

    def disconnected(self, channel: Channel) -> set[str]:
        """A connection is gone, and with it every client on it."""
        changed = set()
        for name, client_id in self._named_by.pop(channel, ()):
            producer = self._producers.get(name, {}).get(client_id)
            if producer is not None and producer.channel is channel:
                self._leave_producers(name, client_id)
            group = self._consumers.get(name)
            consumer = group.members.get(client_id) if group else None
            if group is not None and consumer is not None and consumer.channel is channel:
                del group.members[client_id]
                self._drop_if_empty(group)
                changed.add(name)
        return changed

    def expire(self, before_s: float) -> set[str]:
        """Forget clients whose last heartbeat is older."""
        changed = set()
        for group in list(self._consumers.values()):
            gone = [client_id for client_id, member in group.members.items() if member.seen_s < before_s]
            for client_id in gone:
                del group.members[client_id]
            if gone:
                changed.add(group.name)
                self._drop_if_empty(group)
        for name, members in list(self._producers.items()):
            for client_id in [client_id for client_id, member in members.items() if member.seen_s < before_s]:
                self._leave_producers(name, client_id)
        return changed

    def _leave_producers(self, group: str, client_id: str) -> None:
        members = self._producers.get(group, {})
        members.pop(client_id, None)
        if not members:
            self._producers.pop(group, None)

    def _drop_if_empty(self, group: ConsumerGroup) -> None:
        if not group.members:
            self._consumers.pop(group.name, None)

    def consumer_group(self, name: str) -> ConsumerGroup | None:
        """The connected side of a consumer group, if anyone is there."""
        return self._consumers.get(name)

    def consumer_groups(self) -> list[ConsumerGroup]:
        """All consumer groups that have members."""
        return list(self._consumers.values())

    def producers(self, group: str) -> list[Member]:
        """The connected members of a producer group."""
        return list(self._producers.get(group, {}).values())

    def producer_groups(self) -> dict[str, list[Member]]:
        """All producer groups that have members."""
        return {name: list(members.values()) for name, members in self._producers.items()}

    def statistics(self) -> dict[str, int]:
        """How many there are."""
        return {
            "consumer_groups": len(self._consumers),
            "consumers": sum(len(group.members) for group in self._consumers.values()),
            "producer_groups": len(self._producers),
            "producers": sum(len(members) for members in self._producers.values()),
        }
