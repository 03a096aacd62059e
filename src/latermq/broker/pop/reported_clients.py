"""Clients of proxies: reported every few seconds, shown as members of their groups, with leases on what they hold."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf

from latermq.broker.pop.positions import PopPositions
from latermq.clock import Clock
from latermq.errors import Busy, InvalidParameter
from latermq.group.members import Channel, Members
from latermq.group.pop.leases import lease_id
from latermq.group.pop.operations import PopOperations
from latermq.model.heartbeat import Consumer, Heartbeat
from latermq.model.subscription import Subscription

REPORT_TIMEOUT_S = 15.0  # a client that is not reported for this long is no longer a member
END_PAUSE_MS = 1_000  # after the end of a client, until its messages are visible
POPS = "CONSUME_POP"
_MAX_PROXIES = 4  # that report the same client
# Goodbyes to remember. A proxy that did not get the goodbye reports the client until it forgets it, at the latest after
# `proxy.client_timeout`. If the table is full, the client is shown as a member until then.
GOODBYE_S = 120.0
MAX_GOODBYES = 10_000


class ReportedChannel:
    """The connection of a consumer behind a proxy. Nothing can be sent to it: the proxy has no use for notices."""

    __slots__ = ("_connection",)

    def __init__(self, connection: Channel) -> None:
        self._connection = connection

    @property
    def peer_name(self) -> str:
        return self._connection.peer_name

    @property
    def is_closing(self) -> bool:
        return self._connection.is_closing

    @property
    def is_paused(self) -> bool:
        return False

    def send(self, frame: bytes) -> None:
        return

    def disconnect(self, reason: str) -> None:
        return


class PublisherChannel(ReportedChannel):
    """The way to a proxy whose clients publish a topic. It passes checks of transactions on."""

    __slots__ = ()

    @property
    def is_paused(self) -> bool:
        return self._connection.is_paused

    def send(self, frame: bytes) -> None:
        self._connection.send(frame)


@dataclass(slots=True)
class ReportedClient:
    """A client as a proxy reports it."""

    client_id: str
    group: str
    topics: list[str]
    language: str = ""
    version: int = 0
    idle_ms: int = 0  # since its last call


class _Known:
    """A member that proxies report."""

    __slots__ = ("channel", "proxy", "seen_s")

    def __init__(self, channel: ReportedChannel, proxy: str) -> None:
        self.channel = channel
        self.proxy = proxy  # whose connection the channel has
        self.seen_s: dict[str, float] = {}  # proxy → its last report, the newest last

    def see(self, proxy: str, now_s: float) -> None:
        self.seen_s.pop(proxy, None)
        self.seen_s[proxy] = now_s
        if len(self.seen_s) > _MAX_PROXIES:
            del self.seen_s[next(iter(self.seen_s))]

    def last_s(self, proxy: str = "") -> float:
        """Return the time of the last report, or the last one of this proxy."""
        if proxy:
            return self.seen_s.get(proxy, -inf)
        return next(reversed(self.seen_s.values()), -inf)


def lease_of(group: str, client_id: str) -> int:
    """Return the number of a client's lease in a group."""
    return lease_id(f"{group}\0{client_id}")


class ReportedClients:
    """The clients of all proxies. `Members` bounds their number.

    A client that moves is reported by two proxies until the first one has forgotten it.
    """

    def __init__(
        self,
        operations: PopOperations,
        positions: PopPositions,
        members: Members,
        clock: Clock,
        client_clock: Clock,
        max_topics: int,
    ) -> None:
        """`max_topics` are shown of a group: each report of one of its clients copies them."""
        self._operations = operations
        self._positions = positions
        self._members = members
        self._clock = clock
        self._client_clock = client_clock
        self._max_topics = max_topics
        self._known: dict[tuple[str, str], _Known] = {}  # (group, client id)
        self._publishers: dict[tuple[str, str], _Known] = {}  # (topic, proxy)
        self._goodbyes: dict[tuple[str, str], float] = {}  # (group, client id) → time, the oldest first
        self._refused = 0

    def report(self, proxy: str, connection: Channel, clients: Iterable[ReportedClient]) -> set[str]:
        """Renew the leases of clients, and make them members. Return the groups that changed.

        A client for which a limit leaves no place is no member, but keeps its lease and does not affect the others.
        """
        changed, leases = set(), []
        for client in clients:
            key = client.group, client.client_id
            if self._goodbyes and self._has_left(key, client.idle_ms):
                continue
            leases.append(lease_of(*key))
            beat = self._heartbeat(client)
            changed |= self._join(self._known, key, proxy, ReportedChannel(connection), beat, client)
        self._operations.renew(leases, self._clock.now_ms())
        return changed

    def renew(self, proxy: str, client: ReportedClient) -> bool:
        """Do the same for a client about which nothing has changed, for a tenth of the cost.

        Return whether that was enough. Otherwise it must be reported.
        """
        key = client.group, client.client_id
        known, group = self._known.get(key), self._members.consumer_group(client.group)
        now_s = self._client_clock.monotonic_s()
        if known is None or group is None or key in self._goodbyes:
            return False
        if known.channel.is_closing or known.last_s(known.proxy) < now_s - REPORT_TIMEOUT_S:
            return False
        member, topics = group.members.get(client.client_id), group.subscriptions
        if member is None or member.channel is not known.channel:
            return False
        if (member.language, member.version) != (client.language, client.version):
            return False
        if len(topics) < self._max_topics and not all(map(topics.__contains__, client.topics)):
            return False
        member.seen_s, member.seen_ms = now_s, self._client_clock.now_ms()
        known.see(proxy, now_s)
        self._operations.renew((lease_of(*key),), self._clock.now_ms())
        return True

    def report_topics(self, proxy: str, connection: Channel, topics: Iterable[str]) -> None:
        """Make a proxy a producer of the groups with the names of these topics, which get checks of transactions."""
        for topic in topics:
            client = ReportedClient(f"latermq-proxy@{proxy}", topic, [])
            beat = Heartbeat(client_id=client.client_id, producer_groups=[topic])
            self._join(self._publishers, (topic, proxy), proxy, PublisherChannel(connection), beat, client)

    def _join(
        self, known_members: dict[tuple[str, str], _Known], key: tuple[str, str], proxy: str, channel: ReportedChannel,
        beat: Heartbeat, client: ReportedClient,
    ) -> set[str]:  # fmt: skip
        now_s = self._client_clock.monotonic_s()
        known = known_members.get(key)
        changed = set()
        if known is not None:
            # The channel stays while its proxy reports the client, so that the group does not change with each report.
            if known.channel.is_closing or known.last_s(known.proxy) < now_s - REPORT_TIMEOUT_S:
                changed = self._members.disconnected(known.channel)
                known.channel, known.proxy = channel, proxy
        else:
            known = _Known(channel, proxy)
        try:
            self._members.check(known.channel, beat, client.language)
        except (Busy, InvalidParameter):
            self._refused += 1
            return changed
        known_members[key] = known
        known.see(proxy, now_s)
        return changed | self._members.heartbeat(
            known.channel, beat, language=client.language, version=client.version, clock=self._client_clock
        )

    def topics_of(self, group: str) -> int:
        """Return the number of topics of a group, which each report of one of its clients copies."""
        known = self._members.consumer_group(group)
        return len(known.subscriptions) if known is not None else 0

    def _heartbeat(self, client: ReportedClient) -> Heartbeat:
        """Return a heartbeat that leaves the subscriptions of the group's other members as they are."""
        group = self._members.consumer_group(client.group)
        subscriptions = dict(group.subscriptions) if group is not None else {}
        for topic in client.topics[: max(0, self._max_topics - len(subscriptions))]:
            subscriptions.setdefault(topic, Subscription(topic=topic))
        consumer = Consumer(
            group=client.group,
            consume_type=group.consume_type if group is not None else POPS,
            message_model=group.message_model if group is not None else "CLUSTERING",
            consume_from=group.consume_from if group is not None else None,
            subscriptions=list(subscriptions.values()),
        )
        return Heartbeat(client_id=client.client_id, consumers=[consumer])

    def end(self, group: str, client_id: str, proxy: str = "") -> set[str]:
        """End a client: what it holds becomes visible soon. The caller journals that. Return the changed groups.

        A proxy that has lost a client names itself: if another one reports the client, it has only moved.
        """
        key = group, client_id
        known = self._known.get(key)
        if proxy and known is not None:
            known.seen_s.pop(proxy, None)
            if known.last_s() >= self._client_clock.monotonic_s() - REPORT_TIMEOUT_S:
                return set()
        if self._known.pop(key, None) is not None and not proxy:
            self._note_goodbye(key)
        changed = self._members.disconnected(known.channel) if known is not None else set()
        self._operations.end_lease(lease_of(group, client_id), self._clock.now_ms() + END_PAUSE_MS)
        return changed

    def _note_goodbye(self, key: tuple[str, str]) -> None:
        goodbyes = self._goodbyes
        goodbyes.pop(key, None)
        goodbyes[key] = now_s = self._client_clock.monotonic_s()
        oldest = next(iter(goodbyes))
        if len(goodbyes) > MAX_GOODBYES or goodbyes[oldest] < now_s - GOODBYE_S:
            del goodbyes[oldest]

    def _has_left(self, key: tuple[str, str], idle_ms: int) -> bool:
        """Whether a client has said goodbye to one proxy after its last call at the proxy that reports it."""
        left_s = self._goodbyes.get(key)
        if left_s is None:
            return False
        now_s = self._client_clock.monotonic_s()
        if left_s < now_s - GOODBYE_S or now_s - idle_ms / 1000 > left_s:
            del self._goodbyes[key]  # it has started again
            return False
        return True

    def expire(self) -> set[str]:
        """Remove clients that are no longer reported. Their leases end later by themselves."""
        before_s, changed = self._client_clock.monotonic_s() - REPORT_TIMEOUT_S, set()
        for members in (self._known, self._publishers):
            for key in [key for key, known in members.items() if known.last_s() < before_s]:
                changed |= self._members.disconnected(members.pop(key).channel)
        return changed

    def statistics(self) -> dict[str, int]:
        """The numbers of clients behind proxies, and of reports without a place for a client."""
        return {
            "reported_clients": len(self._known),
            "reported_topics": len(self._publishers),
            "goodbyes": len(self._goodbyes),
            "refused_reports": self._refused,
        }
