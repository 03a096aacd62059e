"""Broker registration: sends the topics to every name server, at intervals and when they change."""

import asyncio
from collections.abc import Callable

import structlog
from msgspec import Raw

from latermq.broker.tables.table_saver import Tables
from latermq.client.session.connection import Connections
from latermq.client.session.credentials import Credentials
from latermq.config import BrokerConfig
from latermq.errors import LaterMQError
from latermq.message.record_fields import body_crc32
from latermq.protocol.remoting.codes import Request
from latermq.protocol.remoting.json_body import encode_body
from latermq.protocol.remoting.routes import BrokerRegistration
from latermq.tls.client import ClientTls

CALL_TIMEOUT_S = 3.0

_log = structlog.get_logger(__name__)


class Registrar:
    """Registers one broker with several name servers. An unavailable name server does not delay the others."""

    def __init__(
        self,
        tables: Tables,
        settings: BrokerConfig,
        name_servers: list[str],
        address: str,
        tls: ClientTls | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        self._tables = tables
        self._settings = settings
        self._name_servers = name_servers
        self._address = address
        self._connections = Connections(on_request=lambda connection, command: None, tls=tls, credentials=credentials)
        self._failed_servers: set[str] = set()
        self._closed = False
        self._running: asyncio.Task[None] | None = None
        self._repeats = False
        self._callbacks: list[Callable[[], None]] = []

    @property
    def _identity(self) -> dict[str, str]:
        config = self._settings
        return {
            "brokerName": config.name,
            "brokerAddr": self._address,
            "clusterName": config.cluster,
            "brokerId": str(config.id),
        }

    def announce(self, on_done: Callable[[], None] | None = None) -> None:
        """Register soon. Changes during a running registration are sent with the next one.

        `on_done` is called when every name server has answered or timed out.
        """
        if self._closed:
            return  # a broker that unregisters must not register again
        if on_done is not None:
            self._callbacks.append(on_done)
        if self._running is None:
            self._running = asyncio.create_task(self._announce())
        else:
            self._repeats = True

    async def _announce(self) -> None:
        callbacks, self._callbacks = self._callbacks, []
        try:
            await self.register()
        finally:
            self._running = None
            for on_done in callbacks:
                on_done()
            if self._repeats:
                self._repeats = False
                self.announce()

    async def register(self) -> None:
        """Register with every name server once."""
        body = encode_body(BrokerRegistration(topicConfigSerializeWrapper=Raw(self._tables.topics_json())))
        fields = {
            **self._identity,
            "haServerAddr": "",
            "compressed": "false",
            "bodyCrc32": str(body_crc32(body)),
        }
        await asyncio.gather(*(self._register_at(server, fields, body) for server in self._name_servers))

    async def _register_at(self, server: str, fields: dict[str, str], body: bytes) -> None:
        try:
            await self._connections.call(server, Request.REGISTER_BROKER, fields, body, timeout_s=CALL_TIMEOUT_S)
        except LaterMQError as error:
            if server not in self._failed_servers:
                self._failed_servers.add(server)
                _log.warning("registration failed", name_server=server, reason=error.remark)
        else:
            if server in self._failed_servers:
                self._failed_servers.discard(server)
                _log.info("registration succeeded again", name_server=server)

    async def close(self) -> None:
        """Unregister from the name servers, so that clients no longer connect."""
        self._closed = True
        if self._running is not None:
            self._repeats = False
            await asyncio.wait([self._running])
        await asyncio.gather(*(self._unregister_at(server) for server in self._name_servers))
        await self._connections.close()

    async def _unregister_at(self, server: str) -> None:
        if self._connections.get(server) is None:
            return
        try:
            await self._connections.call(server, Request.UNREGISTER_BROKER, self._identity, timeout_s=1.0)
        except LaterMQError as error:
            _log.warning("unregistration failed", name_server=server, reason=error.remark)
