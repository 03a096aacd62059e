"""Consumer groups as the proxy sees them: their configuration, from a broker."""

from collections.abc import Callable

from latermq.client.session.failures import NoBroker
from latermq.config import ProxyConfig
from latermq.config_json.groups import GroupJson
from latermq.config_json.java_json import convert
from latermq.errors import GroupNotFound, LaterMQError
from latermq.model.group import Group
from latermq.protocol.remoting.codes import Request
from latermq.protocol.remoting.json_body import decode_body
from latermq.server.proxy.brokers.broker_link import BrokerLink
from latermq.server.proxy.brokers.fetched_table import RETRY_S, Fetched, FetchedTable


class Groups:
    """A cache of groups. A group that no broker knows has the defaults: its first pop creates it, or is refused."""

    def __init__(self, link: BrokerLink, config: ProxyConfig, now_s: Callable[[], float]) -> None:
        self._link = link
        self._fresh_s = config.route_refresh / 1000
        self._table: FetchedTable[Group] = FetchedTable(self._fetch, now_s, config.max_routes, config.max_look_ups)
        self.cached = self._table.cached
        self.get = self._table.get
        self.forget = self._table.forget

    def statistics(self) -> dict[str, int]:
        return {f"group_{name}": count for name, count in self._table.statistics().items()}

    async def close(self) -> None:
        await self._table.close()

    async def _fetch(self, group: str, last: Group | None) -> Fetched[Group]:
        """Ask the brokers until one knows the group."""
        failure: LaterMQError = NoBroker("no broker is reachable", hint="Try again in a few seconds")
        is_unknown = False
        for broker in self._link.brokers:
            try:
                response = await self._link.call(broker, Request.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": group})
                return Fetched(convert(decode_body(response.body, GroupJson), Group), self._fresh_s)
            except GroupNotFound:
                is_unknown = True
            except LaterMQError as error:
                failure = error
        if is_unknown:
            return Fetched(Group(name=group), RETRY_S)
        if last is not None:
            return Fetched(last, RETRY_S)
        raise failure
