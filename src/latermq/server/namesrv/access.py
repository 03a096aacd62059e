"""The users of a name server: copied from the brokers that are registered, which must know the inner secret."""

from pathlib import Path

from latermq.client.access.copied_access import CopiedAccess
from latermq.client.session.connection import Connections
from latermq.client.session.routes import MASTER
from latermq.clock import Clock
from latermq.config import Config
from latermq.server.access.guard import AccessGuard
from latermq.server.namesrv.routes import Routes
from latermq.tls.client import own_tls


class NameServerAccess:
    """The check of every request. Call `start` and `close` once each."""

    def __init__(self, config: Config, data: Path | None, clock: Clock, routes: Routes) -> None:
        self._routes = routes
        self._access = access = CopiedAccess(config, data, "namesrv", clock)
        self._connections = Connections(
            on_request=lambda connection, command: None, tls=own_tls(config.tls), credentials=access.credentials
        )
        users = access.open(self._connections, self._addresses)
        self.guard = AccessGuard(
            users,
            access.inner,
            config.broker.cluster,
            clock,
            is_enforced=access.is_enforced,
            admin_plaintext=config.access.admin_plaintext,
            audit=access.audit,
        )

    def start(self) -> None:
        """Begin to copy the users from the brokers."""
        self._access.start()

    async def close(self) -> None:
        await self._access.close()
        await self._connections.close()

    def statistics(self) -> dict[str, int]:
        return self._access.statistics() | self.guard.statistics()

    def _addresses(self) -> list[str]:
        brokers = self._routes.cluster_info().brokerAddrTable.values()
        return [broker.brokerAddrs[MASTER] for broker in brokers if MASTER in broker.brokerAddrs]
