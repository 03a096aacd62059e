"""Topics as the proxy sees them: their routes from the name servers, and their message types from a broker."""

from collections.abc import Callable
from dataclasses import dataclass

from latermq.client.session.failures import NoBroker
from latermq.client.session.routes import Route, build_route
from latermq.config import Config
from latermq.config_json.topics import TopicJson
from latermq.errors import LaterMQError, ServiceUnavailable, TopicNotFound
from latermq.message.names import AUTO_CREATE_TOPIC
from latermq.protocol.remoting.codes import Request
from latermq.protocol.remoting.json_body import decode_body
from latermq.server.proxy.brokers.broker_link import BrokerLink
from latermq.server.proxy.brokers.fetched_table import RETRY_S, Fetched, FetchedTable

MESSAGE_TYPE = "message.type"  # the attribute of a topic


@dataclass(slots=True)
class TopicInfo:
    """A topic as clients see it."""

    topic: str
    route: Route
    message_type: str  # NORMAL, FIFO, DELAY, TRANSACTION, MIXED, or another that a broker knows
    is_template: bool  # the topic does not exist, and its first message creates it like this


class Topics:
    """A cache of topics."""

    def __init__(self, link: BrokerLink, config: Config, now_s: Callable[[], float]) -> None:
        self._link = link
        self._fresh_s = config.proxy.route_refresh / 1000
        self._default_type = config.proxy.untyped_topics
        self._table: FetchedTable[TopicInfo] = FetchedTable(
            self._fetch, now_s, config.proxy.max_routes, config.proxy.max_look_ups
        )
        self.cached = self._table.cached
        self.get = self._table.get
        self.refresh = self._table.refresh
        self.forget = self._table.forget

    def statistics(self) -> dict[str, int]:
        return {f"topic_{name}": count for name, count in self._table.statistics().items()}

    async def close(self) -> None:
        await self._table.close()

    async def _fetch(self, topic: str, last: TopicInfo | None) -> Fetched[TopicInfo]:
        try:
            route = await self._route(topic, topic)
        except (TopicNotFound, ServiceUnavailable) as error:
            if last is not None and not last.is_template and self._is_away(last.route):
                return Fetched(last, RETRY_S)
            try:
                template = await self._route(topic, AUTO_CREATE_TOPIC)
            except (TopicNotFound, ServiceUnavailable):
                raise error from None
            return Fetched(TopicInfo(topic, template, await self._type(AUTO_CREATE_TOPIC, template), True), RETRY_S)
        except LaterMQError:
            if last is None or last.is_template:
                raise
            return Fetched(last, RETRY_S)  # no name server answers, or no broker is registered
        if not route.addresses:
            raise NoBroker(f"topic {topic!r} has no broker", hint="Try again in a few seconds")
        return Fetched(TopicInfo(topic, route, await self._type(topic, route), False), self._fresh_s)

    async def _route(self, topic: str, registered: str) -> Route:
        """Return the route of a topic, which is registered by this name or another."""
        route = build_route(topic, await self._link.name_servers.lookup(registered))
        for broker in route.addresses:
            self._link.is_known(broker)  # if not, it has just joined, and the link looks for it
        return route

    def _is_away(self, route: Route) -> bool:
        """Whether a broker of a route is down. Its topics then look like deleted ones."""
        return not all(self._link.is_open(broker) for broker in route.addresses)

    async def _type(self, topic: str, route: Route) -> str:
        for broker in route.addresses:
            try:
                response = await self._link.call(broker, Request.GET_TOPIC_CONFIG, {"topic": topic})
                return decode_body(response.body, TopicJson).attributes.get(MESSAGE_TYPE) or self._default_type
            except LaterMQError:
                continue  # the next broker knows it too
        # Brokers check messages themselves, so a client that may send anything does no harm.
        return "MIXED"
