"""Lookup of brokers and of a topic's queues at the name servers, over a blocking connection."""

from contextlib import suppress
from dataclasses import dataclass

from latermq.client.session.failures import AccessRefused, ConnectionLost, NoBroker, NoNameServer, RequestTimedOut
from latermq.client.session.routes import MASTER, Route, build_route
from latermq.errors import ConfigError, TopicNotFound
from latermq.message.names import AUTO_CREATE_TOPIC, TIMER_TOPIC
from latermq.pipeline.driver.link import BrokerLink
from latermq.protocol.remoting.codes import Request
from latermq.protocol.remoting.json_body import decode_body
from latermq.protocol.remoting.routes import ClusterInfo, TopicRoute


@dataclass(frozen=True, order=True)
class QueuePlace:
    """One queue of a topic, and the address of its broker."""

    broker: str
    queue_id: int
    address: str


def masters(namesrv: str) -> dict[str, str]:
    """Broker name → address, for all masters."""
    info = decode_body(_request(namesrv, Request.GET_BROKER_CLUSTER_INFO, {}), ClusterInfo)
    return {
        name: broker.brokerAddrs[MASTER]
        for name, broker in sorted(info.brokerAddrTable.items())
        if MASTER in broker.brokerAddrs
    }


def scheduling_brokers(namesrv: str, topic: str = "") -> dict[str, str]:
    """Broker name → address, for the masters that rows may go to.

    A user who may not read the cluster uses those in the route of its topic. If there is no such topic, or each row has
    its own, these are the brokers that create topics, as for every producer.
    """
    try:
        return masters(namesrv)
    except AccessRefused as refused:
        for name in (topic, AUTO_CREATE_TOPIC):
            with suppress(NoBroker, TopicNotFound):
                if name:
                    route = _route_of(namesrv, name)
                    found = sorted({queue.brokerName for queue in route.writable} & route.addresses.keys())
                    if found:
                        return {broker: route.addresses[broker] for broker in found}
        raise refused


def queues_of(namesrv: str, topic: str, broker: str = "") -> list[QueuePlace]:
    """The queues of a topic, on one broker or on all. The timer topic has no route: every broker has one."""
    if topic == TIMER_TOPIC:
        found = [QueuePlace(name, 0, address) for name, address in masters(namesrv).items()]
    else:
        route = _route_of(namesrv, topic)
        found = [
            QueuePlace(queue.brokerName, queue.queueId, route.addresses[queue.brokerName])
            for queue in route.readable
            if queue.brokerName in route.addresses
        ]
    found = sorted(place for place in found if broker in ("", place.broker))
    if not found:
        of = f" of broker {broker!r}" if broker else ""
        raise NoBroker(f"no queue of topic {topic!r}{of} is registered", hint="Check that the broker is running")
    return found


def _route_of(namesrv: str, topic: str) -> Route:
    fields = {"topic": topic, "acceptStandardJsonOnly": "true"}
    return build_route(topic, decode_body(_request(namesrv, Request.GET_ROUTEINFO_BY_TOPIC, fields), TopicRoute))


def _request(namesrv: str, code: int, fields: dict[str, str]) -> bytes:
    servers = [part.strip() for part in namesrv.replace(",", ";").split(";") if part.strip()]
    if not servers:
        raise ConfigError("no name server is set", hint="Give host:port, separated by semicolons")
    failures = []
    for server in servers:
        try:
            # No patience: trying the next server is better than retrying this one.
            with BrokerLink(server, timeout_s=5.0, patience_s=0.0) as link:
                return bytes(link.call(code, fields)[1])
        except (ConnectionLost, RequestTimedOut) as error:
            failures.append(error.message)
    raise NoNameServer(f"no name server answers at {', '.join(servers)} ({'; '.join(failures)})")
