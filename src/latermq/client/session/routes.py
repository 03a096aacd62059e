"""Topic routes: the queues of a topic and the addresses of their brokers, cached and refreshed."""

import asyncio
import logging
from dataclasses import dataclass, field

from latermq.client.session.connection import Connections, split_address
from latermq.client.session.failures import AccessRefused, ConnectionLost, NoBroker, NoNameServer, RequestTimedOut
from latermq.errors import LaterMQError, MalformedRequest, ServiceUnavailable, TopicNotFound
from latermq.message.names import AUTO_CREATE_TOPIC
from latermq.model.topic import READ, WRITE
from latermq.protocol.remoting.codes import Request
from latermq.protocol.remoting.json_body import decode_body
from latermq.protocol.remoting.queues import MessageQueue
from latermq.protocol.remoting.routes import ClusterInfo, TopicRoute

_log = logging.getLogger("latermq.client")

REFRESH_S = 30.0
DEFAULT_TOPIC_QUEUES = 4  # queues of a topic that is auto-created by a send
MASTER = 0
MAX_QUEUES = 262_144  # of one topic: about 30 MB, and more than any real cluster has
# A topic whose brokers are all down looks like a deleted one. Only after this long is it considered deleted.
FORGET_AFTER_S = 120.0


@dataclass(slots=True)
class Route:
    """A topic's route, with its writable and readable queues sorted by broker name and queue id."""

    topic: str
    data: TopicRoute
    writable: list[MessageQueue] = field(default_factory=list)
    readable: list[MessageQueue] = field(default_factory=list)
    addresses: dict[str, str] = field(default_factory=dict)  # broker name → master, or another replica if there is none


def build_route(topic: str, data: TopicRoute) -> Route:
    """Build a Route from wire data. An order-topic setting alone decides the writable queues, as in Java's client."""
    route = Route(topic, data)
    masters = set()
    for broker in data.brokerDatas:
        if broker.brokerAddrs:
            route.addresses[broker.brokerName] = broker.brokerAddrs.get(MASTER) or min(broker.brokerAddrs.items())[1]
        if MASTER in broker.brokerAddrs:
            masters.add(broker.brokerName)
    ordered = _order_setting(topic, data.orderTopicConf or "")
    counts = [max(queue.readQueueNums, queue.writeQueueNums) for queue in data.queueDatas]
    listed = sum(max(0, count) for count in (*counts, *(count for _, count in ordered)))
    if listed > MAX_QUEUES:
        raise MalformedRequest(
            f"the route of topic {topic!r} lists {listed} queues, the limit is {MAX_QUEUES}",
            hint="Check the topic's queue count on its brokers and its order setting at the name server",
        )
    queues = sorted(data.queueDatas, key=lambda queue: queue.brokerName)
    for queue in queues:
        if queue.perm & READ:
            route.readable += [MessageQueue(topic, queue.brokerName, index) for index in range(queue.readQueueNums)]
        if queue.perm & WRITE and queue.brokerName in masters:
            route.writable += [MessageQueue(topic, queue.brokerName, index) for index in range(queue.writeQueueNums)]
    if data.orderTopicConf:
        route.writable = [MessageQueue(topic, broker, index) for broker, count in ordered for index in range(count)]
    return route


def _order_setting(topic: str, text: str) -> list[tuple[str, int]]:
    """Parse the number of queues per broker. The text is untrusted: any client of a name server can write it."""
    pairs = [part.partition(":")[::2] for part in text.split(";") if ":" in part]
    try:
        return [(broker, int(count)) for broker, count in pairs]
    except ValueError:
        raise MalformedRequest(
            f"the order setting of topic {topic!r} at the name server is not valid: {text[:200]!r}",
            hint="Set it to broker:queues;broker:queues, or delete it, with mqadmin updateOrderConf",
        ) from None


class Routes:
    """A cache of routes from the name servers, refreshed every 30 s and after failures."""

    def __init__(
        self, connections: Connections, namesrv: str, *, timeout_s: float = 3.0, max_topics: int = 10_000
    ) -> None:
        self.servers = [part.strip() for part in namesrv.replace(",", ";").split(";") if part.strip()]
        if not self.servers:
            raise ValueError("no name server is given; use host:port, and separate several by semicolons")
        for server in self.servers:
            split_address(server)
        self._connections = connections
        self._timeout_s = timeout_s
        self._max_topics = max_topics
        self._preferred = 0  # the name server that answered last
        self._routes: dict[str, Route] = {}
        self._missing_since_s: dict[str, float] = {}  # cached topics that the name servers no longer list
        self._fetches: dict[str, asyncio.Task[Route]] = {}
        self.brokers: dict[str, str] = {}  # broker name → address, over all routes

    def cached(self, topic: str) -> Route | None:
        return self._routes.get(topic)

    async def get(self, topic: str) -> Route:
        """Return the route of a topic, from the cache if possible."""
        return self._routes.get(topic) or await self.refresh(topic)

    async def refresh(self, topic: str) -> Route:
        """Fetch the current route of a topic from a name server. Concurrent callers share one request."""
        task = self._fetches.get(topic)
        if task is None:
            task = asyncio.create_task(self._fetch(topic))
            self._fetches[topic] = task
            task.add_done_callback(lambda done: self._on_fetch_done(topic, done))
        return await asyncio.shield(task)

    async def get_for_send(self, topic: str, *, fresh: bool = False) -> Route:
        """Return the route of a topic or, if it does not exist yet, of the brokers that auto-create topics on a send.

        A route borrowed in this way is not cached: the broker that receives the first message creates the real one.
        """
        try:
            route = await (self.refresh(topic) if fresh else self.get(topic))
        except (TopicNotFound, ServiceUnavailable, NoBroker) as error:
            route = self._routes.get(topic) or build_route(topic, await self._auto_create_route(error))
            self.brokers.update(route.addresses)
        if not route.writable:
            raise NoBroker(f"topic {topic!r} has no writable queue", hint="Check its permissions")
        return route

    async def _auto_create_route(self, error: LaterMQError) -> TopicRoute:
        """Return the route to brokers that auto-create topics.

        Raises `error` if there are none, and NoBroker if no broker is registered at all.
        """
        try:
            data = await self.lookup(AUTO_CREATE_TOPIC)
        except (TopicNotFound, ServiceUnavailable):
            raise error from None
        for queue in data.queueDatas:
            queue.readQueueNums = queue.writeQueueNums = min(DEFAULT_TOPIC_QUEUES, queue.readQueueNums)
        return data

    async def broker_address(self, queue: MessageQueue) -> str:
        """Return the address of a queue's broker."""
        address = self.brokers.get(queue.brokerName)
        if address is None:
            route = await self.refresh(queue.topic)
            address = route.addresses.get(queue.brokerName)
        if address is None:
            raise NoBroker(f"broker {queue.brokerName!r} is not in the route of topic {queue.topic!r}")
        return address

    async def lookup(self, topic: str) -> TopicRoute:
        """Return the route from the first name server that answers.

        RocketMQ's name server reports a topic as unknown until a broker registers it. If it knows no broker at all, as
        after a restart, that answer means nothing, so NoBroker is raised instead of TopicNotFound.
        """
        fields = {"topic": topic, "acceptStandardJsonOnly": "true"}
        try:
            response = await self.call_name_server(Request.GET_ROUTEINFO_BY_TOPIC, fields)
        except TopicNotFound:
            if not await self._knows_brokers():
                raise NoBroker(
                    f"no broker is registered at {', '.join(self.servers)}", hint="Check that a broker is running"
                ) from None
            raise
        return decode_body(response, TopicRoute)

    async def _knows_brokers(self) -> bool:
        """Whether the name server knows a broker, as far as this client's user may ask."""
        try:
            body = await self.call_name_server(Request.GET_BROKER_CLUSTER_INFO)
        except AccessRefused:
            return True
        return bool(decode_body(body, ClusterInfo).brokerAddrTable)

    async def call_name_server(
        self, code: int, fields: dict[str, str] | None = None, *, timeout_s: float | None = None
    ) -> bytes:
        """Return the body of the first response. Name servers that do not answer are skipped."""
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        failures = []
        hint = ""
        for step in range(len(self.servers)):
            index = (self._preferred + step) % len(self.servers)
            try:
                response = await self._connections.call(self.servers[index], code, fields, timeout_s=timeout_s)
            except (ConnectionLost, RequestTimedOut) as error:
                failures.append(error.message)
                hint = hint or error.hint
                continue
            self._preferred = index
            return response.body
        raise NoNameServer(
            f"no name server answers at {', '.join(self.servers)}; is `latermq serve` running? ({'; '.join(failures)})",
            hint=hint,
        )

    async def refresh_all(self) -> bool:
        """Refresh the route of every cached topic. Return whether any route changed or was removed."""
        changed = False
        for topic, old in list(self._routes.items()):
            try:
                changed |= (await self.refresh(topic)).data != old.data
            except TopicNotFound:
                changed |= topic not in self._routes
            except LaterMQError as error:
                _log.warning("cannot refresh the routes: %s", error)
                break
        in_use = {name for route in self._routes.values() for name in route.addresses}
        for name in self.brokers.keys() - in_use:
            del self.brokers[name]
        return changed

    def statistics(self) -> dict[str, int]:
        return {"topics": len(self._routes), "brokers": len(self.brokers)}

    async def close(self) -> None:
        tasks = list(self._fetches.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _fetch(self, topic: str) -> Route:
        try:
            route = build_route(topic, await self.lookup(topic))
        except TopicNotFound:
            self._forget_if_missing(topic)
            raise
        self._missing_since_s.pop(topic, None)
        self._routes.pop(topic, None)
        if len(self._routes) >= self._max_topics:
            oldest = next(iter(self._routes))
            del self._routes[oldest]
            self._missing_since_s.pop(oldest, None)
        self._routes[topic] = route
        self.brokers.update(route.addresses)
        return route

    def _forget_if_missing(self, topic: str) -> None:
        if topic in self._routes:
            now_s = asyncio.get_running_loop().time()
            if now_s - self._missing_since_s.setdefault(topic, now_s) >= FORGET_AFTER_S:
                del self._routes[topic], self._missing_since_s[topic]

    def _on_fetch_done(self, topic: str, task: asyncio.Task[Route]) -> None:
        del self._fetches[topic]
        if not task.cancelled():
            task.exception()
