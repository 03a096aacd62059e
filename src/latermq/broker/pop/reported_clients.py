"""Clients of proxies: reported every few seconds, shown as members of their groups, with leases on what they hold."""

from collections.abc import Iterable
from dataclasses import dataclass

from latermq.broker.pop.positions import PopPositions
from latermq.clock import Clock
from latermq.group.members import Channel, Members
from latermq.group.pop.leases import lease_id
from latermq.group.pop.operations import PopOperations
from latermq.model.heartbeat import Consumer, Heartbeat
from latermq.model.subscription import Subscription

REPORT_TIMEOUT_S = 15.0  # a client that is not reported for this long is no longer a member
END_PAUSE_MS = 1_000  # after the end of a client, until its messages are visible
POPS = "CONSUME_POP"


class ReportedChannel:
    """The connection of a client behind a proxy. Nothing can be sent to it: the proxy has no use for notices."""

    __slots__ = ("_proxy",)

    def __init__(self, proxy: Channel) -> None:
        self._proxy = proxy

    @property
    def peer_name(self) -> str:
        return self._proxy.peer_name

    @property
    def is_closing(self) -> bool:
        return self._proxy.is_closing

    @property
    def is_paused(self) -> bool:
        return False

    def send(self, frame: bytes) -> None:
        return

    def disconnect(self, reason: str) -> None:
        return


@dataclass(slots=True)
class ReportedClient:
    """A client as a proxy reports it."""

    client_id: str
    group: str
    topics: list[str]
    language: str = ""
    version: int = 0


@dataclass(slots=True)
class _Known:
    channel: ReportedChannel
    proxy: str
    seen_s: float


def lease_of(group: str, client_id: str) -> int:
    """Return the number of a client's lease in a group."""
    return lease_id(f"{group}\0{client_id}")


class ReportedClients:
    """The clients of all proxies. `Members` bounds their number."""

    def __init__(
        self, operations: PopOperations, positions: PopPositions, members: Members, clock: Clock, client_clock: Clock
    ) -> None:
        self._operations = operations
        self._positions = positions
        self._members = members
        self._clock = clock
        self._client_clock = client_clock
        self._known: dict[tuple[str, str], _Known] = {}  # (group, client id)

    def report(self, proxy: str, connection: Channel, clients: Iterable[ReportedClient]) -> set[str]:
        """Renew the leases of clients, and make them members. Return the groups that changed."""
        now_s, changed, leases = self._client_clock.monotonic_s(), set(), []
        for client in clients:
            key = client.group, client.client_id
            known = self._known.get(key)
            # The newest report wins: the client may have moved to another proxy.
            channel = known.channel if known is not None and known.proxy == proxy else ReportedChannel(connection)
            beat = self._heartbeat(client)
            self._members.check(channel, beat, client.language)
            self._known[key] = _Known(channel, proxy, now_s)
            if known is not None and known.channel is not channel:
                changed |= self._members.disconnected(known.channel)
            changed |= self._members.heartbeat(
                channel, beat, language=client.language, version=client.version, clock=self._client_clock
            )
            leases.append(lease_of(*key))
        self._operations.renew(leases, self._clock.now_ms())
        return changed

    def _heartbeat(self, client: ReportedClient) -> Heartbeat:
        """Return a heartbeat that leaves the subscriptions of the group's other members as they are."""
        group = self._members.consumer_group(client.group)
        subscriptions = dict(group.subscriptions) if group is not None else {}
        for topic in client.topics:
            subscriptions.setdefault(topic, Subscription(topic=topic))
        consumer = Consumer(
            group=client.group,
            consume_type=group.consume_type if group is not None else POPS,
            message_model=group.message_model if group is not None else "CLUSTERING",
            consume_from=group.consume_from if group is not None else None,
            subscriptions=list(subscriptions.values()),
        )
        return Heartbeat(client_id=client.client_id, consumers=[consumer])

    def end(self, group: str, client_id: str) -> set[str]:
        """End a client: what it holds becomes visible soon. The caller journals that. Return the changed groups."""
        known = self._known.pop((group, client_id), None)
        changed = self._members.disconnected(known.channel) if known is not None else set()
        self._operations.end_lease(lease_of(group, client_id), self._clock.now_ms() + END_PAUSE_MS)
        return changed

    def expire(self) -> set[str]:
        """Remove clients that are no longer reported. Their leases end later by themselves."""
        before_s, changed = self._client_clock.monotonic_s() - REPORT_TIMEOUT_S, set()
        for key in [key for key, known in self._known.items() if known.seen_s < before_s]:
            changed |= self._members.disconnected(self._known.pop(key).channel)
        return changed

    def statistics(self) -> dict[str, int]:
        """The number of clients behind proxies."""
        return {"reported_clients": len(self._known)}
