"""The queues of a topic on other brokers, from the name servers, for assignments that span the cluster."""

import asyncio

from latermq.client.session.connection import Connections
from latermq.client.session.credentials import Credentials
from latermq.client.session.routes import Routes
from latermq.errors import Busy, LaterMQError, TopicNotFound
from latermq.model.topic import READ
from latermq.server.handlers.assignments import OtherBrokers, WhenKnown
from latermq.tls.client import ClientTls

FRESH_S = 5.0  # clients query their assignments every 20 s; several of one group come together
MAX_TOPICS = 10_000
MAX_WAITING = 10_000  # callers that wait for a name server
CALL_TIMEOUT_S = 2.0  # clients wait 3 s for their assignments


class ClusterRoutes:
    """Looks topics up at the name servers. Answers are kept for a few seconds."""

    def __init__(
        self,
        name_servers: list[str],
        broker_name: str,
        tls: ClientTls | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        self._broker_name = broker_name
        self._connections = Connections(
            on_request=lambda connection, command: None, max_pending=MAX_WAITING, tls=tls, credentials=credentials
        )
        self._routes = Routes(self._connections, ";".join(name_servers), timeout_s=CALL_TIMEOUT_S)
        self._known: dict[str, tuple[float, OtherBrokers]] = {}  # in the order of their time
        self._lookups: dict[str, list[WhenKnown]] = {}
        self._waiting = 0
        self._tasks: set[asyncio.Task[None]] = set()

    def find(self, topic: str, when_known: WhenKnown) -> None:
        """Call back with the other brokers of a topic, at once if they are known."""
        known = self._known.get(topic)
        if known is not None and asyncio.get_running_loop().time() - known[0] < FRESH_S:
            when_known(known[1])
            return
        if self._waiting >= MAX_WAITING:
            when_known(Busy(f"{self._waiting} requests are waiting for a name server", hint="Try again later"))
            return
        self._waiting += 1
        if topic in self._lookups:
            self._lookups[topic].append(when_known)
        else:
            self._lookups[topic] = [when_known]
            task = asyncio.create_task(self._look_up(topic))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _look_up(self, topic: str) -> None:
        found: OtherBrokers | LaterMQError = Busy("the lookup was cancelled")
        try:
            found = await self._fetch(topic)
        except LaterMQError as error:
            # A client keeps the queues it has. An assignment without the other brokers would take them away.
            found = Busy(f"the brokers of topic {topic!r} are not known: {error.message}", hint="Try again later")
        finally:
            callers = self._lookups.pop(topic)
            self._waiting -= len(callers)
            for when_known in callers:
                when_known(found)

    async def _fetch(self, topic: str) -> OtherBrokers:
        try:
            queues = (await self._routes.lookup(topic)).queueDatas
        except TopicNotFound:
            queues = []
        counts = {
            queue.brokerName: max(0, queue.readQueueNums)
            for queue in queues
            if queue.perm & READ and queue.brokerName != self._broker_name
        }
        self._known.pop(topic, None)
        self._known[topic] = asyncio.get_running_loop().time(), counts
        if len(self._known) > MAX_TOPICS:
            del self._known[next(iter(self._known))]
        return counts

    async def close(self) -> None:
        """Stop. Pending lookups call back with an error."""
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self._connections.close()

    def statistics(self) -> dict[str, int]:
        """Topics in the cache, and callers that wait for a name server."""
        return {
            "cluster_routes": len(self._known),
            "assignment_queries": self._waiting,
            "max_assignment_queries": MAX_WAITING,
        }
