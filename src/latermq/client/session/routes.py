"""Routes: which queues a topic has and where their brokers are, remembered and kept fresh."""

import asyncio
import logging
from dataclasses import dataclass, field

from latermq.client.session.connection import Connections, split_address
from latermq.client.session.failures import ConnectionLost, NoBroker, NoNameServer, RequestTimedOut
from latermq.errors import LaterMQError, MalformedRequest, ServiceUnavailable, TopicNotFound
from latermq.message.names import AUTO_CREATE_TOPIC
from latermq.model.topic import READ, WRITE
from latermq.protocol.remoting.codes import Request
from latermq.protocol.remoting.json_body import decode_body
from latermq.protocol.remoting.queues import MessageQueue
from latermq.protocol.remoting.routes import ClusterInfo, TopicRoute

_log = logging.getLogger("latermq.client")

REFRESH_S = 30.0
DEFAULT_TOPIC_QUEUES = 4  # how many queues a topic gets that a send creates
MASTER = 0
MAX_QUEUES = 262_144  # of one topic: some 30 MB, and more than any cluster has
# A topic whose brokers are all away looks like one that was deleted; only after this long it is taken for one.
FORGET_AFTER_S = 120.0


@dataclass(slots=True)
class Route:
    """A topic's route, with the queues that can be written and read already listed in the order of their names."""

    topic: str
    data: TopicRoute
    writable: list[MessageQueue] = field(default_factory=list)
    readable: list[MessageQueue] = field(default_factory=list)
    addresses: dict[str, str] = field(default_factory=dict)  # broker name → master, or whoever is left


def build_route(topic: str, data: TopicRoute) -> Route:
    """What clients need of a route: an order-topic setting decides its queues alone, as in Java's client."""
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
            f"the route of topic {topic!r} says that it has {listed} queues, {MAX_QUEUES} are believed",
            hint="Look at how many queues its brokers say it has, and at its order setting at the name server",
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
    """How many queues which broker has: anyone who reaches a name server may write that."""
    pairs = [part.partition(":")[::2] for part in text.split(";") if ":" in part]
    try:
        return [(broker, int(count)) for broker, count in pairs]
    except ValueError:
        raise MalformedRequest(
            f"the order setting of topic {topic!r} at the name server is {text[:200]!r}",
            hint="It must be broker:queues;broker:queues, or be deleted: mqadmin updateOrderConf",
        ) from None


class Routes:
    """Asks name servers, remembers what they said, asks again every 30 s and when something failed."""

    def __init__(
        self, connections: Connections, namesrv: str, *, timeout_s: float = 3.0, max_topics: int = 10_000
    ) -> None:
        self.servers = [part.strip() for part in namesrv.replace(",", ";").split(";") if part.strip()]
        if not self.servers:
            raise ValueError("no name server given; write host:port, several parted by semicolons")
        for server in self.servers:
            split_address(server)
        self._connections = connections
        self._timeout_s = timeout_s
        self._max_topics = max_topics
        self._first = 0  # the name server that answered last
        self._known: dict[str, Route] = {}
        self._missing_since_s: dict[str, float] = {}  # known topics that name servers know no more
        self._asking: dict[str, asyncio.Task[Route]] = {}
        self.brokers: dict[str, str] = {}  # broker name → address, over all routes

    def known(self, topic: str) -> Route | None:
        return self._known.get(topic)

    async def get(self, topic: str) -> Route:
        """The route of a topic, from memory if it is there."""
        return self._known.get(topic) or await self.refresh(topic)

    async def refresh(self, topic: str) -> Route:
        """The route of a topic as a name server tells it now; who asks at the same time shares one request."""
        task = self._asking.get(topic)
        if task is None:
            task = asyncio.create_task(self._ask(topic))
            self._asking[topic] = task
            task.add_done_callback(lambda done: self._asked(topic, done))
        return await asyncio.shield(task)

    async def get_for_sending(self, topic: str, *, fresh: bool = False) -> Route:
        """The route of a topic, or, as it may not exist yet, that of the brokers which create topics on a send.

        Such a borrowed route is not remembered: the broker that takes the first message makes the true one.
        """
        try:
            route = await (self.refresh(topic) if fresh else self.get(topic))
        except (TopicNotFound, ServiceUnavailable, NoBroker) as error:
            route = self._known.get(topic) or build_route(topic, await self._route_of_creators(error))
            self.brokers.update(route.addresses)
        if not route.writable:
            raise NoBroker(f"topic {topic!r} has no queue that can be written", hint="Look at its permissions")
        return route

    async def _route_of_creators(self, no_route: LaterMQError) -> TopicRoute:
        """Where a send may create a topic; `no_route` if nowhere, unless no broker is there to ask."""
        try:
            data = await self.lookup(AUTO_CREATE_TOPIC)
        except (TopicNotFound, ServiceUnavailable):
            raise no_route from None
        for queue in data.queueDatas:
            queue.readQueueNums = queue.writeQueueNums = min(DEFAULT_TOPIC_QUEUES, queue.readQueueNums)
        return data

    async def broker_address(self, queue: MessageQueue) -> str:
        """Where the broker of a queue is."""
        address = self.brokers.get(queue.brokerName)
        if address is None:
            route = await self.refresh(queue.topic)
            address = route.addresses.get(queue.brokerName)
        if address is None:
            raise NoBroker(f"no broker {queue.brokerName!r} in the route of topic {queue.topic!r}")
        return address

    async def lookup(self, topic: str) -> TopicRoute:
        """The route as the first name server says that answers.

        RocketMQ's own name server calls a topic unknown that it has not heard of yet. Where it knows no broker at all,
        as after a restart, that is no answer.
        """
        fields = {"topic": topic, "acceptStandardJsonOnly": "true"}
        try:
            answer = await self.ask_name_server(Request.GET_ROUTEINFO_BY_TOPIC, fields)
        except TopicNotFound:
            body = await self.ask_name_server(Request.GET_BROKER_CLUSTER_INFO)
            if not decode_body(body, ClusterInfo).brokerAddrTable:
                raise NoBroker(
                    f"no broker is registered at {', '.join(self.servers)}", hint="Is one running?"
                ) from None
            raise
        return decode_body(answer, TopicRoute)

    async def ask_name_server(
        self, code: int, fields: dict[str, str] | None = None, *, timeout_s: float | None = None
    ) -> bytes:
        """The body of the first answer; servers that do not answer are passed over."""
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        problems = []
        for turn in range(len(self.servers)):
            index = (self._first + turn) % len(self.servers)
            try:
                answer = await self._connections.call(self.servers[index], code, fields, timeout_s=timeout_s)
            except (ConnectionLost, RequestTimedOut) as error:
                problems.append(error.message)
                continue
            self._first = index
            return answer.body
        raise NoNameServer(
            f"no name server answers at {', '.join(self.servers)}; is `latermq serve` running? ({'; '.join(problems)})"
        )

    async def refresh_all(self) -> bool:
        """Ask for every known topic again; whether any of them changed or is gone for good."""
        changed = False
        for topic, old in list(self._known.items()):
            try:
                changed |= (await self.refresh(topic)).data != old.data
            except TopicNotFound:
                changed |= topic not in self._known
            except LaterMQError as error:
                _log.warning("the routes could not be refreshed: %s", error)
                break
        in_use = {name for route in self._known.values() for name in route.addresses}
        for name in self.brokers.keys() - in_use:
            del self.brokers[name]
        return changed

    def statistics(self) -> dict[str, int]:
        return {"topics": len(self._known), "brokers": len(self.brokers)}

    async def close(self) -> None:
        tasks = list(self._asking.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _ask(self, topic: str) -> Route:
        try:
            route = build_route(topic, await self.lookup(topic))
        except TopicNotFound:
            self._note_missing(topic)
            raise
        self._missing_since_s.pop(topic, None)
        self._known.pop(topic, None)
        if len(self._known) >= self._max_topics:
            oldest = next(iter(self._known))
            del self._known[oldest]
            self._missing_since_s.pop(oldest, None)
        self._known[topic] = route
        self.brokers.update(route.addresses)
        return route

    def _note_missing(self, topic: str) -> None:
        if topic in self._known:
            now_s = asyncio.get_running_loop().time()
            if now_s - self._missing_since_s.setdefault(topic, now_s) >= FORGET_AFTER_S:
                del self._known[topic], self._missing_since_s[topic]

    def _asked(self, topic: str, task: asyncio.Task[Route]) -> None:
        del self._asking[topic]
        if not task.cancelled():
            task.exception()
