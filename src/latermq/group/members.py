"""Connected clients: producers and consumers by group, kept alive by their heartbeats."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from latermq.clock import Clock
from latermq.config import BrokerConfig
from latermq.errors import Busy, InvalidParameter
from latermq.model.heartbeat import Consumer, Heartbeat
from latermq.model.subscription import Subscription

MAX_CLIENT_ID_CHARS = 1_024
MAX_NAME_CHARS = 255  # the limit of RocketMQ's clients for a group name
MAX_WORD_CHARS = 64  # of fields with only a few possible values, such as CONSUME_PASSIVELY
_CHECKED_AT_ONCE = 5_000  # members that `expire` checks in one call, about 1 ms
# The memory of a subscription, a tag and a tag's code, excluding their texts.
_SUBSCRIPTION_BYTES, _TAG_BYTES, _CODE_BYTES = 300, 60, 40


class Channel(Protocol):
    """The part of a client's connection that groups use."""

    @property
    def peer_name(self) -> str: ...

    @property
    def is_closing(self) -> bool: ...

    @property
    def is_paused(self) -> bool:
        """Whether writing is paused because the client reads too slowly."""
        ...

    def send(self, frame: bytes) -> None: ...

    def disconnect(self, reason: str) -> None:
        """Close immediately and log the reason."""
        ...


@dataclass(slots=True)
class Member:
    """One client in one group."""

    client_id: str
    channel: Channel
    language: str
    version: int
    seen_s: float  # monotonic, for expiry
    seen_ms: int  # wall clock, for operators


@dataclass(slots=True)
class ConsumerGroup:
    """The connected members of a consumer group and their subscriptions."""

    name: str
    consume_type: str | None = None
    message_model: str | None = None
    consume_from: str | None = None
    members: dict[str, Member] = field(default_factory=dict)
    subscriptions: dict[str, Subscription] = field(default_factory=dict)
    size_bytes: int = 0  # of the subscriptions

    def subscribe(self, wanted: Iterable[Subscription]) -> bool:
        """Apply the subscriptions of a heartbeat. Return whether any was added, changed or removed."""
        changed = False
        latest = {subscription.topic: subscription for subscription in wanted}
        for topic, subscription in latest.items():
            known = self.subscriptions.get(topic)
            if known is None or subscription.version > known.version:
                self.subscriptions[topic] = subscription
                changed = True
        for topic in [topic for topic in self.subscriptions if topic not in latest]:
            del self.subscriptions[topic]
            changed = True
        return changed


class _Membership(NamedTuple):
    """A client in a producer group or a consumer group."""

    group: str
    client_id: str
    consumes: bool


def check_client_id(client_id: str) -> None:
    """Reject a client id that is too long."""
    _check_length("client id", client_id, MAX_CLIENT_ID_CHARS)


def _check_length(what: str, text: str | None, limit: int) -> None:
    if text is not None and len(text) > limit:
        raise InvalidParameter(f"{what} {text[:40]!r}… has {len(text)} characters; the limit is {limit}")


def _size_bytes(subscriptions: Iterable[Subscription]) -> int:
    """Estimate the memory of subscriptions."""
    total = 0
    for one in subscriptions:
        total += _SUBSCRIPTION_BYTES + len(one.topic) + len(one.expression) + len(one.expression_type or "")
        total += sum(map(len, one.tags)) + _TAG_BYTES * len(one.tags) + _CODE_BYTES * len(one.codes)
    return total


class Members:
    """All connected clients. Methods that change consumer groups return the names of the changed groups."""

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self._consumers: dict[str, ConsumerGroup] = {}
        self._producers: dict[str, dict[str, Member]] = {}
        # Indexed by connection: thousands may close at once, and finding the clients of each must be fast.
        self._memberships: dict[Channel, set[_Membership]] = {}
        self._expiry_queue: list[tuple[str, bool]] = []  # groups that the current round of `expire` has not checked yet
        self._count = 0  # clients, counted once for each of their groups
        self._size_bytes = 0  # of all subscriptions

    def check(self, channel: Channel, beat: Heartbeat, language: str) -> None:
        """Reject a heartbeat that would exceed the limits of one connection, one group or the whole broker."""
        config, client_id = self._config, beat.client_id
        check_client_id(client_id)
        _check_length("language", language, MAX_WORD_CHARS)
        current = self._memberships.get(channel, set())
        wanted = {_Membership(name, client_id, False) for name in beat.producer_groups}
        wanted.update(_Membership(consumer.group, client_id, True) for consumer in beat.consumers)
        new = len(wanted - current)
        if len(current) + new > config.max_connection_groups:
            raise InvalidParameter(
                f"the clients of one connection cannot join more than {config.max_connection_groups} groups",
                hint="Open another connection, or raise broker.max_connection_groups",
            )
        if self._count + new > config.max_clients:
            raise Busy(
                f"{self._count} clients are connected, each counted once for each of its groups",
                hint="Stop some clients, or raise broker.max_clients",
            )
        for name in beat.producer_groups:
            _check_length("group", name, MAX_NAME_CHARS)
            self._check_members(name, self._producers.get(name, {}), client_id)
        size_bytes = 0
        for consumer in beat.consumers:
            group = self._consumers.get(consumer.group)
            self._check_members(consumer.group, group.members if group else {}, client_id)
            for word in (consumer.consume_type, consumer.message_model, consumer.consume_from):
                _check_length("word", word, MAX_WORD_CHARS)
            for one in consumer.subscriptions:
                _check_length("topic", one.topic, MAX_NAME_CHARS)
            size_bytes += max(0, _size_bytes(consumer.subscriptions) - (group.size_bytes if group else 0))
        if size_bytes and self._size_bytes + size_bytes > config.max_subscriptions:
            raise Busy(
                f"the subscriptions of all groups have {self._size_bytes} bytes; with these they would exceed "
                f"broker.max_subscriptions",
                hint="Subscribe to fewer topics or tags, or raise broker.max_subscriptions",
            )

    def _check_members(self, group: str, members: Mapping[str, Member], client_id: str) -> None:
        if len(members) >= self._config.max_group_members and client_id not in members:
            raise Busy(
                f"group {group!r} has {len(members)} members, the limit set by broker.max_group_members",
                hint="Stop some members, or raise broker.max_group_members",
            )

    def heartbeat(self, channel: Channel, beat: Heartbeat, *, language: str, version: int, clock: Clock) -> set[str]:
        """Apply a heartbeat that has passed `check`."""
        changed = set()
        member = Member(beat.client_id, channel, language, version, clock.monotonic_s(), clock.now_ms())
        current = self._memberships.setdefault(channel, set())
        for name in beat.producer_groups:
            members = self._producers.setdefault(name, {})
            self._count += beat.client_id not in members
            members[beat.client_id] = member
            current.add(_Membership(name, beat.client_id, False))
        for consumer in beat.consumers:
            if self._join(consumer, member):
                changed.add(consumer.group)
            current.add(_Membership(consumer.group, beat.client_id, True))
        return changed

    def _join(self, consumer: Consumer, member: Member) -> bool:
        group = self._consumers.get(consumer.group)
        if group is None:
            group = self._consumers[consumer.group] = ConsumerGroup(consumer.group)
        group.consume_type = consumer.consume_type
        group.message_model = consumer.message_model
        group.consume_from = consumer.consume_from
        known = group.members.get(member.client_id)
        joined = known is None or known.channel is not member.channel
        self._count += known is None
        group.members[member.client_id] = member
        subscribed = group.subscribe(consumer.subscriptions)
        if subscribed:
            size_bytes = _size_bytes(group.subscriptions.values())
            self._size_bytes += size_bytes - group.size_bytes
            group.size_bytes = size_bytes
        return subscribed or joined

    def unregister(self, client_id: str, *, producer_group: str | None, consumer_group: str | None) -> set[str]:
        """Remove a client from the groups that it leaves."""
        if producer_group:
            self._leave_producers(producer_group, client_id)
        if consumer_group and self._leave_consumers(consumer_group, client_id):
            return {consumer_group}
        return set()

    def disconnected(self, channel: Channel) -> set[str]:
        """Remove every client of a closed connection."""
        changed = set()
        for name, client_id, consumes in self._memberships.pop(channel, ()):
            group = self._consumers.get(name)
            members = self._producers.get(name, {}) if not consumes else group.members if group else {}
            member = members.get(client_id)
            if member is None or member.channel is not channel:
                continue  # the client has left, or has reconnected over another connection
            if consumes:
                self._leave_consumers(name, client_id)
                changed.add(name)
            else:
                self._leave_producers(name, client_id)
        return changed

    def expire(self, before_s: float) -> set[str]:
        """Remove clients whose last heartbeat is older. If there are very many clients, the next call continues."""
        changed = set()
        if not self._expiry_queue:
            self._expiry_queue = [(name, True) for name in self._consumers] + [
                (name, False) for name in self._producers
            ]
        checked = 0
        while self._expiry_queue and checked < _CHECKED_AT_ONCE:
            name, consumes = self._expiry_queue.pop()
            group = self._consumers.get(name)
            members = self._producers.get(name, {}) if not consumes else group.members if group else {}
            checked += 1 + len(members)
            for client_id in [client_id for client_id, member in members.items() if member.seen_s < before_s]:
                if not consumes:
                    self._leave_producers(name, client_id)
                elif self._leave_consumers(name, client_id):
                    changed.add(name)
        return changed

    def _leave_producers(self, group: str, client_id: str) -> None:
        members = self._producers.get(group, {})
        member = members.pop(client_id, None)
        if not members:
            self._producers.pop(group, None)
        if member is not None:
            self._drop(_Membership(group, client_id, False), member.channel)

    def _leave_consumers(self, name: str, client_id: str) -> bool:
        """Remove a client from a consumer group. Return whether it was a member."""
        group = self._consumers.get(name)
        member = group.members.pop(client_id, None) if group else None
        if group is None or member is None:
            return False
        if not group.members:
            del self._consumers[name]
            self._size_bytes -= group.size_bytes
        self._drop(_Membership(name, client_id, True), member.channel)
        return True

    def _drop(self, membership: _Membership, channel: Channel) -> None:
        """Update the indexes. A long-lived connection must not accumulate the names of all its former clients."""
        self._count -= 1
        current = self._memberships.get(channel)
        if current is not None:
            current.discard(membership)
            if not current:
                del self._memberships[channel]

    def consumes(self, group: str, channel: Channel) -> bool:
        """Return whether a client on this connection is a member of a consumer group."""
        return any(one.group == group and one.consumes for one in self._memberships.get(channel, ()))

    def consumer_group(self, name: str) -> ConsumerGroup | None:
        """Return a consumer group, or None if it has no connected members."""
        return self._consumers.get(name)

    def consumer_groups(self) -> list[ConsumerGroup]:
        """Return all consumer groups that have members."""
        return list(self._consumers.values())

    def producers(self, group: str) -> list[Member]:
        """Return the connected members of a producer group."""
        return list(self._producers.get(group, {}).values())

    def producer_groups(self) -> dict[str, list[Member]]:
        """Return all producer groups that have members."""
        return {name: list(members.values()) for name, members in self._producers.items()}

    def statistics(self) -> dict[str, int]:
        """Return the numbers of clients and groups, and the usage of each limit."""
        consumers = [len(group.members) for group in self._consumers.values()]
        producers = list(map(len, self._producers.values()))
        return {
            "clients": self._count,
            "consumer_groups": len(consumers),
            "consumers": sum(consumers),
            "producer_groups": len(producers),
            "producers": sum(producers),
            "subscription_bytes": self._size_bytes,
            "group_members": max(max(consumers, default=0), max(producers, default=0)),
            "connection_groups": max(map(len, self._memberships.values()), default=0),
        }
