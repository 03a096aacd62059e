"""Builds the parts of a proxy from its configuration. Each part gets only the parts that it uses."""

import asyncio
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from latermq.client.access.copied_access import NO_COPY, CopiedAccess
from latermq.client.session.credentials import own_credentials
from latermq.clock import Clock
from latermq.config import Config
from latermq.protocol.remoting.codes import Request
from latermq.server.access.users import NO_REFUSALS
from latermq.server.proxy.access.call_guard import CallGuard
from latermq.server.proxy.brokers.broker_link import BrokerLink
from latermq.server.proxy.brokers.groups import Groups
from latermq.server.proxy.brokers.topics import Topics
from latermq.server.proxy.calls.ack_calls import AckBatches, AckCalls
from latermq.server.proxy.calls.call_table import CallEndpoint, CallTable
from latermq.server.proxy.calls.client_calls import ClientCalls
from latermq.server.proxy.calls.held_message_calls import HeldMessageCalls
from latermq.server.proxy.calls.receive_calls import ReceiveCalls
from latermq.server.proxy.calls.returned_messages import ReturnedMessages
from latermq.server.proxy.calls.route_calls import RouteCalls
from latermq.server.proxy.calls.send_calls import SendCalls
from latermq.server.proxy.calls.transaction_calls import TransactionCalls
from latermq.server.proxy.clients.client_reports import ClientReports
from latermq.server.proxy.clients.client_settings import SettingsAnswers
from latermq.server.proxy.clients.clients import Clients
from latermq.server.proxy.clients.telemetry import Telemetry
from latermq.server.proxy.clients.transaction_checks import TransactionChecks
from latermq.tls.client import own_tls


class Calls(Protocol):
    """The calls of one subject."""

    @property
    def endpoints(self) -> list[CallEndpoint]: ...


class WaitingCalls(Protocol):
    """Calls that may wait for long, and must end when the proxy stops."""

    def release(self) -> None:
        """Let all waiting clients go."""
        ...


class ProxyParts:
    """The parts of a proxy without its sockets for clients."""

    def __init__(self, config: Config, namesrv: str, clock: Clock, data: Path | None = None) -> None:
        loop = asyncio.get_running_loop()
        now_s = loop.time
        self._access = CopiedAccess(config, data, "proxy", clock) if config.access.enabled else None
        credentials = own_credentials(config.access, data) if self._access is None else self._access.credentials
        self.link = BrokerLink(namesrv, config.proxy, own_tls(config.tls), credentials)
        self.topics = Topics(self.link, config, now_s)
        self.groups = Groups(self.link, config.proxy, now_s)
        self.table = CallTable()
        self.clients = Clients(config.proxy, now_s)
        self._reports = ClientReports(self.link, self.clients, uuid.uuid4().hex)
        self._telemetry = Telemetry(
            self.table, self.clients, self.groups, SettingsAnswers(config), config.proxy.max_settings
        )
        self.table.add_bidirectional("Telemetry", self._telemetry.begin)
        self._checks = TransactionChecks(self.clients)
        self.link.handlers[Request.CHECK_TRANSACTION_STATE] = self._checks.check
        self._returned = ReturnedMessages(self.link, config.proxy, now_s, loop.call_later)
        self._sends = SendCalls(self.link, self.topics, config, clock)
        self._receives = ReceiveCalls(self.link, self.clients.see, self._returned, config, clock, loop.call_later)
        self.waiting: list[WaitingCalls] = [self._telemetry, self._receives]
        subjects: Iterable[Calls] = (
            RouteCalls(self.topics, self.groups),
            ClientCalls(self.clients),
            self._sends,
            self._receives,
            AckCalls(AckBatches(self.link, loop.call_soon), config.proxy.max_ack_entries),
            HeldMessageCalls(self.link, config.proxy.max_invisible),
            TransactionCalls(self.link, self.topics),
        )
        for subject in subjects:
            self.table.add(subject.endpoints)
        self._guard = self._new_guard(config, self._access, clock) if self._access is not None else None

    def _new_guard(self, config: Config, access: CopiedAccess, clock: Clock) -> CallGuard:
        users = access.open(self.link.connections, lambda: self.link.addresses)
        guard = CallGuard(
            users,
            access.inner,
            config.broker.cluster,
            clock,
            is_enforced=access.is_enforced,
            max_age_ms=int(config.access.call_age),
            audit=access.audit,
        )
        self.table.authenticate = guard.authenticate
        self.table.authorize = guard.authorize
        users.on_change.append(lambda: self._telemetry.recheck(guard.permits_still))
        return guard

    def statistics(self) -> dict[str, int]:
        parts = (
            *(self.link, self.topics, self.groups, self.table),
            *(self.clients, self._reports, self._telemetry, self._checks),
            *(self._returned, self._sends, self._receives),
        )
        access = self._access.statistics() if self._access is not None else NO_COPY
        refused = self._guard.statistics() if self._guard is not None else NO_REFUSALS
        return access | refused | {name: count for part in parts for name, count in part.statistics().items()}

    async def start(self, timeout_s: float) -> None:
        """Connect to the brokers. Returns at the latest after the timeout; further attempts follow."""
        await self.link.start(timeout_s)
        if self._access is not None:
            await self._access.users.refresh()  # so that the first calls are not refused
            self._access.start()
        self._reports.start()

    def release(self) -> None:
        """Let clients go that wait for messages or commands."""
        for calls in self.waiting:
            calls.release()

    async def close(self) -> None:
        self._reports.stop()
        if self._access is not None:
            await self._access.close()
        await self.topics.close()
        await self.groups.close()
        await self.link.close()
