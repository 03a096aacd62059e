"""A client that asks brokers one by one: which there are, where they are, and which hold a topic."""

from latermq.client.failures import NoBroker
from latermq.client.session import Client
from latermq.protocol.remoting.bodies import BrokerData, ClusterInfo, decode_body
from latermq.protocol.remoting.codes import Request
from latermq.protocol.remoting.frames import Command

MASTER = 0


class ClusterClient(Client):
    """Knows the brokers of a cluster and calls each of them."""

    async def clusters(self) -> dict[str, list[str]]:
        """The names of the brokers in each cluster."""
        return {name: sorted(brokers) for name, brokers in (await self._cluster_info()).clusterAddrTable.items()}

    async def brokers(self) -> list[BrokerData]:
        """Every broker with its addresses."""
        table = (await self._cluster_info()).brokerAddrTable
        return [table[name] for name in sorted(table)]

    async def _call(self, address: str, code: int, fields: dict[str, str] | None = None, body: bytes = b"") -> Command:
        self._session.check_running()
        return await self._session.connections.call(
            address, code, fields, body, timeout_s=self._session.request_timeout_s
        )

    async def _cluster_info(self) -> ClusterInfo:
        self._session.check_running()
        body = await self._session.routes.ask_name_server(Request.GET_BROKER_CLUSTER_INFO)
        return decode_body(body, ClusterInfo)

    async def _masters(self, name: str | None = None) -> dict[str, str]:
        """Broker name → address of those that take writes."""
        masters = {
            broker.brokerName: broker.brokerAddrs[MASTER]
            for broker in await self.brokers()
            if MASTER in broker.brokerAddrs and name in (None, broker.brokerName)
        }
        if not masters:
            raise NoBroker(f"no broker {name!r}" if name else "the name server knows no broker", hint="Is one running?")
        return masters

    async def _brokers_of(self, topic: str) -> list[str]:
        self._session.check_running()
        return sorted(set((await self._session.routes.refresh(topic)).addresses.values()))
