"""What brokers learn about clients of the proxy: live consumers, consumers that have gone, and producers' topics."""

import asyncio
from collections.abc import Callable

import structlog

from latermq.errors import LaterMQError
from latermq.protocol.remoting.clients import HeartbeatData, ProducerData
from latermq.protocol.remoting.codes import Request
from latermq.protocol.remoting.frames import Command
from latermq.protocol.remoting.json_body import encode_body
from latermq.server.proxy.broker_link import BrokerLink
from latermq.server.proxy.clients import Client, Clients

REPORT_CLIENTS, END_LEASE = 7032, 7033
REPORT_EVERY_S = 5.0  # a broker forgets a consumer that is not reported for 15 s, and its lease after 60 s
HEARTBEAT_EVERY_S = 20.0
SOON_S = 0.02  # collects the new clients of a moment
CHUNK_BYTES = 256 * 1024  # of one report; brokers accept 1 MiB
MAX_TOPICS = 900  # of one heartbeat; brokers accept 1,000 groups per connection

_log = structlog.get_logger(__name__)


class ClientReports:
    """Reports to all brokers. Call `start` and `stop` once each."""

    def __init__(self, link: BrokerLink, clients: Clients, proxy_id: str) -> None:
        self._link = link
        self._clients = clients
        self._proxy_id = proxy_id
        self._loop = asyncio.get_running_loop()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._new: dict[Client, None] = {}
        self._failed = 0
        self._unreported_topics = 0
        clients.on_new_consumer = self._on_new_consumer
        clients.on_new_topic = self._on_new_topic
        clients.on_gone = self._on_gone
        link.on_connected.append(self._on_connected)

    def start(self) -> None:
        self._schedule("report", REPORT_EVERY_S, self._report_all)
        self._schedule("heartbeat", HEARTBEAT_EVERY_S, self._heartbeat_all)

    def stop(self) -> None:
        for timer in self._timers.values():
            timer.cancel()

    def statistics(self) -> dict[str, int]:
        return {"failed_reports": self._failed, "unreported_topics": self._unreported_topics}

    # Consumers

    def _on_new_consumer(self, client: Client) -> None:
        self._new[client] = None
        if "new" not in self._timers:
            self._timers["new"] = self._loop.call_later(SOON_S, self._report_new)

    def _report_new(self) -> None:
        del self._timers["new"]
        clients, self._new = list(self._new), {}
        for body in self._bodies(clients):
            self._to_all(REPORT_CLIENTS, {}, body)

    def _report_all(self) -> None:
        self._clients.expire()
        for body in self._bodies(list(self._clients.consumers())):
            self._to_all(REPORT_CLIENTS, {}, body)

    def _bodies(self, clients: list[Client]) -> list[bytes]:
        """Return the reports about these clients, in pieces that brokers accept."""
        bodies: list[bytes] = []
        piece: list[dict[str, object]] = []
        size_bytes = 0
        for client in clients:
            if piece and size_bytes + client.size_bytes > CHUNK_BYTES:
                bodies.append(encode_body({"proxy": self._proxy_id, "clients": piece}))
                piece, size_bytes = [], 0
            size_bytes += client.size_bytes
            piece.append(
                {
                    "clientId": client.client_id,
                    "group": client.group,
                    "topics": client.topics,
                    "language": client.language,
                }
            )
        if piece:
            bodies.append(encode_body({"proxy": self._proxy_id, "clients": piece}))
        return bodies

    def _on_gone(self, client: Client) -> None:
        self._new.pop(client, None)
        self._to_all(END_LEASE, {"group": client.group, "clientId": client.client_id})

    # Producers

    def _on_new_topic(self, topic: str) -> None:
        if "topics" not in self._timers:
            self._timers["topics"] = self._loop.call_later(SOON_S, self._heartbeat_soon)

    def _heartbeat_soon(self) -> None:
        del self._timers["topics"]
        self._heartbeat_all()

    def _heartbeat_all(self) -> None:
        body = self._heartbeat_body()
        if body:
            self._to_all(Request.HEART_BEAT, {}, body)

    def _heartbeat_body(self) -> bytes:
        """Return the heartbeat of the producer group of each topic, to which brokers send checks of transactions."""
        topics = self._clients.published_topics
        unreported = max(0, len(topics) - MAX_TOPICS)
        if unreported and not self._unreported_topics:
            _log.warning("too many topics are published for checks of transactions", topics=len(topics), max=MAX_TOPICS)
        self._unreported_topics = unreported
        if not topics:
            return b""
        groups = [ProducerData(groupName=topic) for topic in topics[-MAX_TOPICS:]]
        return encode_body(HeartbeatData(clientID=f"latermq-proxy@{self._proxy_id}", producerDataSet=groups))

    # Brokers

    def _on_connected(self, broker: str) -> None:
        """Tell a broker that has started, or was not reachable, about all clients."""
        for body in self._bodies(list(self._clients.consumers())):
            self._link.request(broker, REPORT_CLIENTS, {}, self._on_response, body=body)
        heartbeat = self._heartbeat_body()
        if heartbeat:
            self._link.request(broker, Request.HEART_BEAT, {}, self._on_response, body=heartbeat)

    def _to_all(self, code: int, fields: dict[str, str], body: bytes = b"") -> None:
        for broker in self._link.brokers:
            self._link.request(broker, code, fields, self._on_response, body=body)

    def _on_response(self, response: Command | LaterMQError) -> None:
        if isinstance(response, LaterMQError) or response.code:
            self._failed += 1
            _log.debug("a report to a broker failed", reason=str(getattr(response, "remark", "")))

    def _schedule(self, name: str, every_s: float, action: Callable[[], None]) -> None:
        def run() -> None:
            self._timers[name] = self._loop.call_later(every_s, run)
            action()

        self._timers[name] = self._loop.call_later(every_s, run)
