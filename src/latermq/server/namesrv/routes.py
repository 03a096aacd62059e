"""The name server's tables: the live brokers, their queues, and the resulting routes."""

from collections import Counter
from dataclasses import dataclass, field

from latermq.clock import Clock
from latermq.config import NameServerConfig
from latermq.config_json.topics import DataVersionJson, TopicJson
from latermq.errors import LaterMQError, NoPermission, ServiceUnavailable, TopicNotFound
from latermq.model.topic import READ, WRITE
from latermq.protocol.remoting.routes import (
    BrokerData,
    ClusterInfo,
    QueueData,
    RegisterBrokerBody,
    RegisterBrokerHeader,
    TopicRoute,
)
from latermq.protocol.remoting.topics import TopicList
from latermq.server.namesrv.known_brokers import KnownBrokers

MASTER_ID = 0
_NAMES_IN_A_REMARK = 3

Address = tuple[str, str]  # (cluster, host:port), which identifies one broker process


@dataclass(slots=True)
class _Live:
    """A registered broker process that has not been silent for too long."""

    name: str
    last_seen_s: float
    timeout_s: float
    version: DataVersionJson
    ha_address: str
    filter_servers: list[str]
    owner: object
    host: str


@dataclass(slots=True)
class Registered:
    """The response to a registration. A replica learns its master's address from it."""

    ha_address: str | None = None
    master_address: str | None = None
    is_new: bool = False
    replaced: str | None = None  # the previous address of the same name and id


@dataclass(slots=True)
class RemovedBroker:
    """A broker process that was removed from the routes, and the connection on which it had registered."""

    cluster: str
    name: str
    address: str
    owner: object


@dataclass(slots=True)
class _BrokerTopics:
    """The topics of one broker name, and the host that registered them."""

    host: str
    topics: dict[str, None] = field(default_factory=dict)  # in order of registration


@dataclass(slots=True)
class Routes:
    """Stores registrations and returns routes.

    An `owner` is the connection of a registration. When it closes, the broker is removed. While it is open and
    active, no other connection can replace the broker, unregister it or keep it alive.
    """

    clock: Clock
    broker_timeout_s: float
    bounds: NameServerConfig
    known: KnownBrokers
    _live: dict[Address, _Live] = field(default_factory=dict)
    _brokers: dict[str, BrokerData] = field(default_factory=dict)
    _topics: dict[str, dict[str, QueueData]] = field(default_factory=dict)  # topic → broker name → queues
    _by_name: dict[str, _BrokerTopics] = field(default_factory=dict)  # by broker name

    # Requests of brokers.

    def register(
        self, header: RegisterBrokerHeader, body: RegisterBrokerBody, owner: object, host: str = ""
    ) -> Registered:
        """Register a new or known broker and its topics. Topics that it no longer names stay until they are deleted."""
        table = body.topicConfigSerializeWrapper
        address = (header.clusterName, header.brokerAddr)
        self._check_owner(header, owner)
        self.heartbeat(*address, owner)  # the broker is alive even if its topics exceed a limit
        self._check_brokers(address, header.brokerName, host)
        brings_topics = header.brokerId == MASTER_ID or (
            header.enableActingMaster is not None and header.brokerId == min(self._ids_with(header))
        )
        if brings_topics:
            self._check_topics(header.brokerName, table.topics, host)
        rival_address = self._find_rival(header)
        if rival_address is not None:
            del self._live[rival_address]  # it was registered on this connection too
        previous = self._live.get(address)
        if previous is not None and previous.name != header.brokerName:
            self._remove(address)
            previous = None
        addresses = self._set_address(header)
        if brings_topics:
            changed = previous is None or previous.version != table.version
            self._set_topics(header.brokerName, table.topics, changed, host)
        timeout_ms = header.heartbeatTimeoutMillis
        self._live[address] = _Live(
            name=header.brokerName,
            last_seen_s=self.clock.monotonic_s(),
            # A broker with a longer timeout would stay in the routes for too long after its end.
            timeout_s=self.broker_timeout_s if timeout_ms is None else min(timeout_ms / 1000, self.broker_timeout_s),
            version=table.version,
            ha_address=header.haServerAddr,
            filter_servers=body.filterServerList,
            owner=owner,
            host=host,
        )
        answer = self._answer(header, addresses)
        answer.is_new = previous is None
        answer.replaced = rival_address[1] if rival_address is not None else None
        return answer

    def heartbeat(self, cluster: str, address: str, owner: object) -> None:
        """Record that a broker is alive. Heartbeats from connections that do not own it are ignored."""
        live = self._live.get((cluster, address))
        if live is not None and live.owner is owner:
            live.last_seen_s = self.clock.monotonic_s()

    def data_version(self, cluster: str, address: str) -> DataVersionJson | None:
        """The data version of the topics that a broker registered last."""
        live = self._live.get((cluster, address))
        return None if live is None else live.version

    def unregister(self, cluster: str, address: str, owner: object) -> RemovedBroker | None:
        """Remove a broker at its own request."""
        live = self._live.get((cluster, address))
        if live is not None and live.owner is not owner:
            raise NoPermission(
                f"broker {live.name!r} at {address} registered on another connection",
                hint="It is removed when it unregisters, stops, or sends no heartbeat for server.broker_timeout",
            )
        return self._remove((cluster, address))

    def remove_owner(self, owner: object) -> list[RemovedBroker]:
        """Remove all brokers whose last registration used this connection, which has closed."""
        return self._remove_all([address for address, live in self._live.items() if live.owner is owner])

    def expire(self) -> list[RemovedBroker]:
        """Remove all brokers that have been silent for longer than their timeout."""
        now_s = self.clock.monotonic_s()
        return self._remove_all(
            [address for address, live in self._live.items() if now_s - live.last_seen_s > live.timeout_s]
        )

    # Requests of clients and operators.

    def route(self, topic: str) -> TopicRoute:
        """The queues of a topic and the brokers that hold them."""
        queues = self._topics.get(topic, {})
        brokers = [self._brokers[name] for name in queues if name in self._brokers]
        if not brokers:
            raise self._no_route(topic)
        servers = {
            address: live.filter_servers
            for broker in brokers
            for address in broker.brokerAddrs.values()
            if (live := self._live.get((broker.cluster, address))) is not None and live.filter_servers
        }
        return TopicRoute(queueDatas=list(queues.values()), brokerDatas=brokers, filterServerTable=servers)

    def _no_route(self, topic: str) -> LaterMQError:
        """The error for a topic without a route. It is temporary while a broker that may have the topic is away."""
        away = self.known.offline()
        if away:
            names = sorted(away)[:_NAMES_IN_A_REMARK]
            more = f" or one of {len(away) - len(names)} more" if len(away) > len(names) else ""
            return ServiceUnavailable(
                f"no route to topic {topic!r}: {', '.join(names)}{more} may have it and is offline",
                hint="Try again when it is online",
            )
        if not self._brokers:
            return ServiceUnavailable(
                f"no route to topic {topic!r}: no broker is registered", hint="Start a broker, or try again in a moment"
            )
        return TopicNotFound(
            f"no route to topic {topic!r}: no registered broker has it",
            hint="Create it, or send a message if brokers auto-create topics",
        )

    def cluster_info(self) -> ClusterInfo:
        """All brokers, the broker names of each cluster, and the names of brokers that may come back."""
        clusters: dict[str, list[str]] = {}
        for broker in self._brokers.values():
            clusters.setdefault(broker.cluster, []).append(broker.brokerName)
        return ClusterInfo(
            brokerAddrTable=self._brokers, clusterAddrTable=clusters, offlineBrokers=sorted(self.known.offline())
        )

    def topics(self) -> TopicList:
        return TopicList(topicList=list(self._topics))

    def topics_of_cluster(self, cluster: str) -> TopicList:
        found: dict[str, None] = {}
        for name, held in self._by_name.items():
            if self._brokers[name].cluster == cluster:
                found |= held.topics
        return TopicList(topicList=list(found))

    def system_topics(self) -> TopicList:
        """Cluster and broker names, which are topics too, and the address of a broker that can list the rest."""
        names: dict[str, None] = {}
        address = None
        for broker in self._brokers.values():
            names |= {broker.cluster: None, broker.brokerName: None}
            address = address or next(iter(broker.brokerAddrs.values()), None)
        return TopicList(topicList=list(names), brokerAddr=address)

    def members(self, cluster: str, name: str) -> BrokerData:
        """The processes of one broker name by id; empty if the name is unknown."""
        broker = self._brokers.get(name)
        return BrokerData(cluster=cluster, brokerName=name, brokerAddrs={} if broker is None else broker.brokerAddrs)

    def delete_topic(self, topic: str, cluster: str = "") -> None:
        """Remove a topic from the brokers of one cluster or of all. A broker that still has it registers it again."""
        queues = self._topics.get(topic, {})
        for name in list(queues):
            broker = self._brokers.get(name)
            if not cluster or (broker is not None and broker.cluster == cluster):
                del queues[name]
                del self._by_name[name].topics[topic]
        if not queues:
            self._topics.pop(topic, None)

    def set_writable(self, name: str, writable: bool) -> int:
        """Allow or forbid sends to all topics of a broker until its topics change; the number of topics."""
        held = self._by_name.get(name)
        affected = [self._topics[topic][name] for topic in held.topics] if held is not None else []
        for queue in affected:
            queue.perm = queue.perm | READ | WRITE if writable else queue.perm & ~WRITE
        return len(affected)

    def statistics(self) -> dict[str, int]:
        away = self.known.offline()
        host_brokers = Counter([live.host for live in self._live.values()] + [broker.host for broker in away.values()])
        host_topics: Counter[str] = Counter()
        for host, topics in (
            *((held.host, len(held.topics)) for held in self._by_name.values()),
            *((broker.host, broker.topics) for broker in away.values()),
        ):
            host_topics[host] += topics
        return {
            "brokers": len(self._live),
            "brokers_away": len(away),
            "brokers_held": host_brokers.total(),
            "host_brokers": max(host_brokers.values(), default=0),
            "max_brokers": self.bounds.max_brokers,
            "max_host_brokers": self.bounds.max_host_brokers,
            "broker_names": len(self._brokers),
            "topics": len(self._topics),
            "broker_topics": sum(len(held.topics) for held in self._by_name.values()),
            "broker_topics_kept": sum(broker.topics for broker in away.values()),
            "broker_topics_held": host_topics.total(),
            "host_topics": max(host_topics.values(), default=0),
            "max_topics": self.bounds.max_topics,
            "max_host_topics": self.bounds.max_host_topics,
            "max_registration_bytes": self.bounds.max_registration,
        }

    # Ownership and limits of registrations.

    def _check_owner(self, header: RegisterBrokerHeader, owner: object) -> None:
        """Reject a registration that would replace one of another connection."""
        broker = self._brokers.get(header.brokerName)
        for (cluster, address), live in self._live.items():
            if live.owner is owner:
                continue
            if address == header.brokerAddr:
                raise _taken(f"address {address} is registered as broker {live.name!r}")
            if live.name != header.brokerName:
                continue
            if cluster != header.clusterName:
                raise _taken(f"broker {live.name!r} is registered in cluster {cluster!r}")
            if broker is not None and broker.brokerAddrs.get(header.brokerId) == address:
                raise _taken(f"broker {live.name!r} with id {header.brokerId} is registered at {address}")

    def _check_brokers(self, address: Address, name: str, host: str) -> None:
        known = self._live.get(address)
        if known is not None and known.name == name:
            return
        away = self.known.offline()
        kept = len(away) - (name in away)  # a broker that comes back is already counted
        here = sum(live.host == host for live in self._live.values())
        here += sum(broker.host == host and other != name for other, broker in away.items())
        for count, limit, setting in (
            (len(self._live) + kept, self.bounds.max_brokers, "namesrv.max_brokers"),
            (here, self.bounds.max_host_brokers, "namesrv.max_host_brokers"),
        ):
            if count >= limit:
                raise ServiceUnavailable(
                    f"the name server has {count} brokers; the limit is {limit} ({setting})",
                    hint="Raise the limit, or use another name server",
                )

    def _check_topics(self, name: str, topics: dict[str, TopicJson], host: str) -> None:
        own = self._by_name.get(name)
        held = len(own.topics | topics) if own is not None else len(topics)
        away = self.known.offline()
        others = [(other.host, len(other.topics)) for key, other in self._by_name.items() if key != name]
        others += [(other.host, other.topics) for key, other in away.items() if key != name]
        for count, limit, setting in (
            (held + sum(count for _, count in others), self.bounds.max_topics, "namesrv.max_topics"),
            (
                held + sum(count for other, count in others if other == host),
                self.bounds.max_host_topics,
                "namesrv.max_host_topics",
            ),
        ):
            # A registration without new topics must not fail because of other brokers' topics.
            if count > limit and (own is None or held > len(own.topics)):
                raise ServiceUnavailable(
                    f"the name server would have {count} topics; the limit is {limit} ({setting})",
                    hint="Delete unused topics, or raise the limit",
                )

    def _ids_with(self, header: RegisterBrokerHeader) -> set[int]:
        """The ids of a broker name after this registration."""
        broker = self._brokers.get(header.brokerName)
        known = broker.brokerAddrs if broker is not None else {}
        return {id_ for id_, address in known.items() if address != header.brokerAddr} | {header.brokerId}

    def _find_rival(self, header: RegisterBrokerHeader) -> Address | None:
        """Another live process with the name and id of a registration."""
        broker = self._brokers.get(header.brokerName)
        held = broker.brokerAddrs.get(header.brokerId) if broker is not None else None
        if held is None or held == header.brokerAddr or (header.clusterName, held) not in self._live:
            return None
        return (header.clusterName, held)

    def _set_address(self, header: RegisterBrokerHeader) -> dict[int, str]:
        broker = self._brokers.get(header.brokerName)
        if broker is None:
            broker = BrokerData(cluster=header.clusterName, brokerName=header.brokerName, brokerAddrs={})
            self._brokers[header.brokerName] = broker
            self.known.add(header.brokerName)
        broker.cluster = header.clusterName
        # An address has one id: a replica that becomes the master registers again with id 0.
        broker.brokerAddrs = {id_: known for id_, known in broker.brokerAddrs.items() if known != header.brokerAddr}
        broker.brokerAddrs[header.brokerId] = header.brokerAddr
        return broker.brokerAddrs

    def _set_topics(self, name: str, topics: dict[str, TopicJson], changed: bool, host: str) -> None:
        held = self._by_name.setdefault(name, _BrokerTopics(host))
        held.host = host
        if not changed and topics.keys() <= held.topics.keys():
            return  # the usual case: nothing has changed
        for topic, config in topics.items():
            held.topics[topic] = None
            queues = self._topics.setdefault(topic, {})
            # Without a change the queues stay as they are, so that a wiped write permission stays wiped.
            if changed or name not in queues:
                queues[name] = QueueData(
                    brokerName=name,
                    readQueueNums=config.read_queues,
                    writeQueueNums=config.write_queues,
                    perm=config.permissions,
                    topicSysFlag=config.system_flags,
                )

    def _answer(self, header: RegisterBrokerHeader, addresses: dict[int, str]) -> Registered:
        master = addresses.get(MASTER_ID) if header.brokerId != MASTER_ID else None
        live = self._live.get((header.clusterName, master)) if master is not None else None
        return Registered() if live is None else Registered(ha_address=live.ha_address, master_address=master)

    def _remove_all(self, addresses: list[Address]) -> list[RemovedBroker]:
        return [gone for address in addresses if (gone := self._remove(address)) is not None]

    def _remove(self, address: Address) -> RemovedBroker | None:
        live = self._live.pop(address, None)
        if live is None:
            return None
        broker = self._brokers.get(live.name)
        if broker is not None:
            broker.brokerAddrs = {id_: known for id_, known in broker.brokerAddrs.items() if known != address[1]}
            if not broker.brokerAddrs:
                self._forget_broker(live.name, live.host)
        return RemovedBroker(cluster=address[0], name=live.name, address=address[1], owner=live.owner)

    def _forget_broker(self, name: str, host: str) -> None:
        del self._brokers[name]
        held = self._by_name.pop(name, None) or _BrokerTopics(host)
        self.known.disconnect(name, host, len(held.topics))
        for topic in held.topics:
            del self._topics[topic][name]
            if not self._topics[topic]:
                del self._topics[topic]


def _taken(what: str) -> NoPermission:
    return NoPermission(
        f"{what} on another connection",
        hint="It can register again when that connection closes or sends no heartbeat for server.broker_timeout",
    )
