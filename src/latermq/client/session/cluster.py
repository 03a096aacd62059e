"""The base class of clients that call individual brokers: it finds the brokers of a cluster and of a topic."""

from latermq.client.session.failures import NoBroker
from latermq.client.session.retry import TRANSIENT, with_retries
from latermq.client.session.routes import Route
from latermq.client.session.session import Client
from latermq.errors import LaterMQError
from latermq.protocol.remoting.codes import Request
from latermq.protocol.remoting.frames import Command
from latermq.protocol.remoting.json_body import decode_body
from latermq.protocol.remoting.routes import BrokerData, ClusterInfo

MASTER = 0


class ClusterClient(Client):
    """Finds the brokers of a cluster and calls them."""

    async def clusters(self) -> dict[str, list[str]]:
        """Return the names of the brokers in each cluster."""
        return {name: sorted(brokers) for name, brokers in (await self._cluster_info()).clusterAddrTable.items()}

    async def brokers(self) -> list[BrokerData]:
        """Return every broker with its addresses."""
        return _sorted_brokers(await self._cluster_info())

    async def _call(
        self,
        address: str,
        code: int,
        fields: dict[str, str] | None = None,
        body: bytes = b"",
        *,
        retry_on: tuple[type[LaterMQError], ...] = TRANSIENT,
    ) -> Command:
        self._session.check_running()
        connections = self._session.connections
        return await with_retries(
            self._session.request_timeout_s,
            lambda left_s: connections.call(address, code, fields, body, timeout_s=left_s),
            retry_on,
        )

    async def _cluster_info(self) -> ClusterInfo:
        return decode_body(await self._call_name_server(Request.GET_BROKER_CLUSTER_INFO), ClusterInfo)

    async def _call_name_server(self, code: int) -> bytes:
        self._session.check_running()
        routes = self._session.routes
        return await with_retries(
            self._session.request_timeout_s, lambda left_s: routes.call_name_server(code, timeout_s=left_s)
        )

    async def _route(self, topic: str) -> Route:
        """Return the current route of a topic. Raises TopicNotFound only if no broker that may have it is missing."""
        self._session.check_running()
        return await with_retries(self._session.request_timeout_s, lambda left_s: self._session.routes.refresh(topic))

    async def _masters(self, name: str | None = None) -> dict[str, str]:
        """Return the address of each master, which accepts writes, by broker name."""

        self._session.check_running()

        async def find(left_s: float) -> dict[str, str]:
            body = await self._session.routes.call_name_server(Request.GET_BROKER_CLUSTER_INFO, timeout_s=left_s)
            masters = {
                broker.brokerName: broker.brokerAddrs[MASTER]
                for broker in _sorted_brokers(decode_body(body, ClusterInfo))
                if MASTER in broker.brokerAddrs and name in (None, broker.brokerName)
            }
            if not masters:
                what = f"broker {name!r} is not registered" if name else "no broker is registered"
                raise NoBroker(what, hint="Check that it is running and registers with this name server")
            return masters

        return await with_retries(self._session.request_timeout_s, find)

    async def _topic_addresses(self, topic: str) -> list[str]:
        return sorted(set((await self._route(topic)).addresses.values()))


def _sorted_brokers(info: ClusterInfo) -> list[BrokerData]:
    return [info.brokerAddrTable[name] for name in sorted(info.brokerAddrTable)]
