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

REPORT_EVERY_S = 5.0  # a broker forgets a consumer that is not reported for 15 s, and its lease after 60 s
HEARTBEAT_EVERY_S = 20.0
SOON_S = 0.02  # collects the new clients of a moment
CHUNK_BYTES = 256 * 1024  # of one report, and one client more; brokers accept 1 MiB
PIECE_PAUSE_S = 0.01
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
        self._due: dict[Client, None] = {}  # consumers to report
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
        self._due[client] = None
        self._report_soon(SOON_S)

    def _report_all(self) -> None:
        self._clients.expire()
        self._due.update(dict.fromkeys(self._clients.consumers()))
        self._report_soon(0.0)

    def _report_soon(self, pause_s: float) -> None:
        if self._due and "due" not in self._timers:
            self._timers["due"] = self._loop.call_later(pause_s, self._report_due)

    def _report_due(self) -> None:
        """Send one report, and the next after a pause in which other calls are served."""
        del self._timers["due"]
        reported: list[dict[str, object]] = []
        size_bytes = 0
        while self._due and size_bytes < CHUNK_BYTES:
            client = next(iter(self._due))
            del self._due[client]
            if not self._clients.is_current(client):
                continue
            size_bytes += client.size_bytes
            reported.append(
                {
                    "clientId": client.client_id,
                    "group": client.group,
                    "topics": client.topics,
                    "language": client.language,
                }
            )
        if reported:
            self._to_all(Request.REPORT_CLIENTS, {}, encode_body({"proxy": self._proxy_id, "clients": reported}))
        self._report_soon(PIECE_PAUSE_S)

    def _on_gone(self, client: Client) -> None:
        self._due.pop(client, None)
        self._to_all(Request.END_LEASE, {"group": client.group, "clientId": client.client_id})

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
        """Report all clients to a broker that has started, or was not reachable."""
        self._report_all()
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
