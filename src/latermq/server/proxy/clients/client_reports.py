"""What brokers learn about clients of the proxy: live consumers, consumers that have gone, and published topics."""

import asyncio
from collections.abc import Callable

import structlog

from latermq.errors import LaterMQError
from latermq.protocol.remoting.codes import Request
from latermq.protocol.remoting.frames import Command
from latermq.protocol.remoting.json_body import encode_body
from latermq.server.proxy.brokers.broker_link import BrokerLink
from latermq.server.proxy.clients.clients import Client, Clients

REPORT_EVERY_S = 5.0  # a broker forgets a consumer that is not reported for 15 s, and its lease after 60 s
SOON_S = 0.02  # collects the new clients of a moment
CHUNK_BYTES = 256 * 1024  # of one report, and one client more; brokers accept 1 MiB
PIECE_PAUSE_S = 0.01

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
        self._due_topics: dict[str, None] = {}
        self._failed = 0
        clients.on_new_consumer = self._on_new_consumer
        clients.on_new_topic = self._on_new_topic
        clients.on_goodbye = self._on_goodbye
        clients.on_lost = self._on_lost
        link.on_connected.append(self._on_connected)

    def start(self) -> None:
        self._schedule("report", REPORT_EVERY_S, self._report_all)

    def stop(self) -> None:
        for timer in self._timers.values():
            timer.cancel()

    def statistics(self) -> dict[str, int]:
        return {"failed_reports": self._failed}

    def _on_new_consumer(self, client: Client) -> None:
        self._due[client] = None
        self._report_soon(SOON_S)

    def _on_new_topic(self, topic: str) -> None:
        self._due_topics[topic] = None
        self._report_soon(SOON_S)

    def _report_all(self) -> None:
        self._clients.expire()
        self._due.update(dict.fromkeys(self._clients.consumers()))
        self._due_topics.update(dict.fromkeys(self._clients.published_topics))
        self._report_soon(0.0)

    def _report_soon(self, pause_s: float) -> None:
        if (self._due or self._due_topics) and "due" not in self._timers:
            self._timers["due"] = self._loop.call_later(pause_s, self._report_due)

    def _report_due(self) -> None:
        """Send one report, and the next after a pause in which other calls are served."""
        del self._timers["due"]
        reported: list[dict[str, object]] = []
        size_bytes = 0
        now_s = self._loop.time()
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
                    "idleMs": round((now_s - client.heard_s) * 1000),
                }
            )
        topics: list[str] = []
        while self._due_topics and size_bytes < CHUNK_BYTES:
            topic, _ = self._due_topics.popitem()
            if self._clients.is_published(topic):
                size_bytes += len(topic)
                topics.append(topic)
        if reported or topics:
            body = encode_body({"proxy": self._proxy_id, "clients": reported, "topics": topics})
            self._to_all(Request.REPORT_CLIENTS, {}, body)
        self._report_soon(PIECE_PAUSE_S)

    def _on_goodbye(self, client: Client) -> None:
        self._end_lease(client, {})

    def _on_lost(self, client: Client) -> None:
        # With the proxy's id: the client may be alive at another proxy, and keeps its messages then.
        self._end_lease(client, {"proxy": self._proxy_id})

    def _end_lease(self, client: Client, fields: dict[str, str]) -> None:
        self._due.pop(client, None)
        self._to_all(Request.END_LEASE, {"group": client.group, "clientId": client.client_id, **fields})

    def _on_connected(self, broker: str) -> None:
        """Report all clients to a broker that has started, or was not reachable."""
        self._report_all()

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
