"""The clients that the proxy knows: their groups and topics, their telemetry streams, and when they were last seen.

A consumer is known by its client id and group, so that a client that sends another's id with a different group does
not change what is known. Several streams may have one id, as after a reconnect: the newest is used.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Protocol

from latermq.addresses import network_of
from latermq.config import ProxyConfig
from latermq.errors import Busy
from latermq.protocol.messaging import messaging_pb2 as pb
from latermq.protocol.messaging.refusals import CallRefused
from latermq.server.proxy.clients.client_settings import Role
from latermq.server.proxy.clients.networks import Networks

MAX_STREAMS = 4  # of one client; more than one only while an old connection is being lost
_NO_ROLE_BYTES = 200

Key = tuple[str, str]  # client id, and group or an empty string


class Stream(Protocol):
    """An open telemetry stream."""

    peer: str  # the address of the client's host

    @property
    def is_writable(self) -> bool:
        """Whether the client keeps up with what is sent."""
        ...

    def send(self, command: pb.TelemetryCommand) -> None: ...

    def end(self, reason: str) -> None: ...


class Client:
    """One client. Its role is unknown until it sends settings; its group may be known from a heartbeat."""

    __slots__ = ("client_id", "group", "heard_s", "language", "network", "seen_s", "size_bytes", "streams", "topics")

    def __init__(self, client_id: str, group: str, network: str, now_s: float) -> None:
        self.client_id = client_id
        self.group = group
        self.network = network
        self.seen_s = now_s
        self.heard_s = now_s  # of its last call; the end of its stream does not count, which may follow a goodbye
        self.topics: tuple[str, ...] = ()
        self.language = "OTHER"
        self.size_bytes = _NO_ROLE_BYTES
        self.streams: list[Stream] = []  # the newest last

    @property
    def key(self) -> Key:
        return self.client_id, self.group


class Clients:
    """All clients. Bounded in number, per address and in the size of their settings."""

    def __init__(self, config: ProxyConfig, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._timeout_s = config.client_timeout / 1000
        self._lost_timeout_s = config.lost_client_timeout / 1000
        self._max_clients = config.max_clients
        self._max_per_address = config.max_clients_per_address
        self._max_bytes = config.max_all_settings
        self._clients: dict[Key, Client] = {}
        # In the order in which they were last seen; those without a stream by network.
        self._attached: OrderedDict[Key, Client] = OrderedDict()
        self._detached: dict[str, OrderedDict[Key, Client]] = {}
        self._networks = Networks()
        self._publishers: dict[str, dict[Client, None]] = {}  # of each topic, the one to be asked next first
        self._size_bytes = 0
        self._displaced = 0
        # Set by the reports to brokers.
        self.on_new_consumer: Callable[[Client], None] = lambda client: None
        self.on_new_topic: Callable[[str], None] = lambda topic: None
        self.on_goodbye: Callable[[Client], None] = lambda client: None
        self.on_lost: Callable[[Client], None] = lambda client: None  # perhaps to another proxy

    def see(self, client_id: str, group: str, peer: str) -> Client:
        """Note that a client is alive. Raises Busy if there is no place for a new one."""
        client = self._clients.get((client_id, group))
        if client is None:
            client = self._add(client_id, group, peer)
            if group:
                self.on_new_consumer(client)
            return client
        client.seen_s = client.heard_s = self._now_s()
        self._order_of(client).move_to_end(client.key)
        return client

    def is_known(self, client_id: str, group: str = "") -> bool:
        return (client_id, group) in self._clients

    def is_current(self, client: Client) -> bool:
        """Whether this client has not been removed."""
        return self._clients.get(client.key) is client

    def register(self, client_id: str, role: Role, stream: Stream) -> Client:
        """Note the settings that a client sent on a stream. Raises Busy if there is no place for them."""
        known = self._clients.get((client_id, role.group))
        growth = role.size_bytes - (known.size_bytes if known is not None else 0)
        if self._size_bytes + growth > self._max_bytes:
            raise Busy(
                f"the settings of all clients take {self._size_bytes} bytes; the limit is {self._max_bytes}",
                hint="Try again later, or raise proxy.max_all_settings",
            )
        client = self.see(client_id, role.group, stream.peer)
        self._size_bytes += role.size_bytes - client.size_bytes
        client.size_bytes = role.size_bytes
        client.language = role.language
        if client.topics != role.topics:
            self._unpublish(client)
            client.topics = role.topics
            self._publish(client)
        self._attach(client, stream)
        return client

    def detach(self, client: Client, stream: Stream) -> None:
        """Note that a stream has ended."""
        if stream in client.streams:
            client.streams.remove(stream)
            if not client.streams and self.is_current(client):
                del self._attached[client.key]
                self._detached.setdefault(client.network, OrderedDict())[client.key] = client
                self._networks.note(client.network)
                # It sent something until now: the shorter timeout begins.
                client.seen_s = self._now_s()

    def terminate(self, client_id: str, group: str, peer: str) -> None:
        """Remove a client that says goodbye. A client at another address is refused while the client has a stream."""
        client = self._clients.get((client_id, group))
        if client is None:
            return
        if client.streams and client.streams[-1].peer != peer:
            raise CallRefused(pb.FORBIDDEN, f"client {client_id!r} is connected from another address")
        self._remove(client)
        if client.group:
            self.on_goodbye(client)

    def expire(self) -> None:
        """Remove clients that were silent for too long."""
        now_s = self._now_s()
        for order, timeout_s in self._orders():
            while order:
                client = next(iter(order.values()))
                if now_s - client.seen_s < timeout_s:
                    break
                self._remove(client)
                for stream in list(client.streams):
                    stream.end("no heartbeat arrived")
                if client.group:
                    self.on_lost(client)

    def publisher(self, topic: str) -> Stream | None:
        """Return the stream of a client that publishes a topic. Several take turns."""
        publishers = self._publishers.get(topic, {})
        for client in list(publishers):
            for stream in reversed(client.streams):
                if stream.is_writable:
                    del publishers[client]
                    publishers[client] = None
                    return stream
        return None

    @property
    def published_topics(self) -> list[str]:
        """All topics that clients publish, the oldest first."""
        return list(self._publishers)

    def is_published(self, topic: str) -> bool:
        return topic in self._publishers

    def consumers(self) -> Iterator[Client]:
        """All consumers at this moment."""
        return (client for client in list(self._clients.values()) if client.group)

    def statistics(self) -> dict[str, int]:
        return {
            "clients": len(self._clients),
            "address_clients": self._networks.highest(),
            "client_streams": sum(len(client.streams) for client in self._attached.values()),
            "settings_bytes": self._size_bytes,
            "displaced_clients": self._displaced,
        }

    def _add(self, client_id: str, group: str, peer: str) -> Client:
        network = network_of(peer)
        if self._max_per_address and self._networks[network] >= self._max_per_address:
            self._displace(network, "proxy.max_clients_per_address")
        elif len(self._clients) >= self._max_clients:
            # Of the address that has most, so that no flood of new ids displaces the clients of others.
            self._displace(self._networks.largest(self._detached.__contains__), "proxy.max_clients")
        client = Client(client_id, group, network, self._now_s())
        self._clients[client.key] = client
        self._detached.setdefault(network, OrderedDict())[client.key] = client
        self._networks.add(network)
        self._size_bytes += client.size_bytes
        return client

    def _displace(self, network: str, setting: str) -> None:
        """Remove the client without a stream that was silent for longest."""
        order = self._detached.get(network)
        if not order:
            raise Busy("too many clients are connected", hint=f"Try again later, or raise {setting}")
        self._displaced += 1
        self._remove(next(iter(order.values())))

    def _remove(self, client: Client) -> None:
        del self._clients[client.key]
        order = self._order_of(client)
        del order[client.key]
        if not order and order is not self._attached:
            del self._detached[client.network]
        self._networks.remove(client.network)
        self._size_bytes -= client.size_bytes
        self._unpublish(client)

    def _attach(self, client: Client, stream: Stream) -> None:
        if stream in client.streams:
            return
        if not client.streams:
            order = self._detached[client.network]
            del order[client.key]
            if not order:
                del self._detached[client.network]
            self._attached[client.key] = client
        client.streams.append(stream)
        if len(client.streams) > MAX_STREAMS:
            # The oldest from the same address, perhaps this one: another host cannot end the streams of a client.
            oldest = next(one for one in client.streams if one.peer == stream.peer)
            client.streams.remove(oldest)
            oldest.end("the client has too many streams")

    def _order_of(self, client: Client) -> OrderedDict[Key, Client]:
        return self._attached if client.streams else self._detached[client.network]

    def _orders(self) -> list[tuple[OrderedDict[Key, Client], float]]:
        lost = [(order, self._lost_timeout_s) for order in self._detached.values()]
        return [(self._attached, self._timeout_s), *lost]

    def _publish(self, client: Client) -> None:
        if client.group:
            return
        for topic in client.topics:
            publishers = self._publishers.get(topic)
            if publishers is None:
                publishers = self._publishers[topic] = {}
                self.on_new_topic(topic)
            publishers[client] = None

    def _unpublish(self, client: Client) -> None:
        if client.group:
            return
        for topic in client.topics:
            publishers = self._publishers.get(topic)
            if publishers is not None:
                publishers.pop(client, None)
                if not publishers:
                    del self._publishers[topic]
