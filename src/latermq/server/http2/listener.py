"""A listening socket for gRPC, with its connections, their limits, counts and periodic sweep."""

import asyncio
import ssl
from collections import Counter

import structlog

from latermq.clock import Clock
from latermq.protocol.http2.header_cache import HeaderCache
from latermq.server.http2.call_dispatcher import CallDispatcher
from latermq.server.http2.calls import Methods
from latermq.server.http2.connection import HandlerFactory, Http2Connection
from latermq.server.http2.transport_limits import TransportLimits
from latermq.server.remoting.held_bytes import HeldBytes
from latermq.server.remoting.listener import network_of

_BACKLOG = 4096  # the kernel caps it at net.core.somaxconn
_LONGEST_SWEEP_S = 5.0
_LOG_EVERY_S = 1.0  # a hostile client can fail thousands of times per second
_log = structlog.get_logger(__name__)


def grpc_handler(methods: Methods) -> HandlerFactory:
    """Return the handler of connections that serve these methods."""
    return lambda connection: CallDispatcher(connection, methods)


class Http2Listener:
    """Accepts connections on one port, with TLS (if there is a context) and plaintext. Call `start` and `stop` once."""

    def __init__(
        self, new_handler: HandlerFactory, limits: TransportLimits, clock: Clock, tls: ssl.SSLContext | None = None
    ) -> None:
        self.limits = limits
        self.clock = clock
        self.cache = HeaderCache()
        self.tls = tls
        self.held = HeldBytes(limits.max_held_bytes)
        self._new_handler = new_handler
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._connections: set[Http2Connection] = set()
        self._by_network: Counter[str] = Counter()
        self._failures: Counter[str] = Counter()  # by error code
        self._accepted = 0
        self._refused = 0
        self._logged_s = float("-inf")
        self._unlogged = 0
        self._finished_calls = 0  # of closed connections
        self._all_gone: asyncio.Event | None = None
        self.port = 0  # the actual port, also if port 0 was requested

    async def start(self, host: str, port: int) -> None:
        """Listen on the address. Raises OSError if it is unavailable."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: Http2Connection(self, self._new_handler), host, port, backlog=_BACKLOG, reuse_address=True
        )
        self.port = self._server.sockets[0].getsockname()[1]
        self._schedule_sweep(loop)

    async def stop(self, grace_s: float = 10.0) -> None:
        """Stop accepting, let calls in flight finish, and abort what is left after the grace."""
        if self._server is None:
            return
        self._server.close()
        if self._sweeper is not None:
            self._sweeper.cancel()
        self._all_gone = asyncio.Event()
        for connection in list(self._connections):
            connection.leave()
        try:
            if self._connections:
                await asyncio.wait_for(self._all_gone.wait(), grace_s)
        except TimeoutError:
            for connection in list(self._connections):
                connection.abort()
            await self._all_gone.wait()
        await self._server.wait_closed()
        self._server = None

    def admit(self, connection: Http2Connection) -> bool:
        """Accept a connection unless a limit is reached or the listener stops."""
        network = network_of(connection.peer[0])
        most_here = self.limits.max_connections_per_address
        if (
            len(self._connections) >= self.limits.max_connections
            or (most_here and self._by_network[network] >= most_here)
            or self._all_gone is not None
        ):
            self._refused += 1
            self._log(connection, "connection refused", "too many connections")
            return False
        self._accepted += 1
        self._connections.add(connection)
        self._by_network[network] += 1
        return True

    def forget(self, connection: Http2Connection) -> None:
        """Remove a lost connection."""
        self._connections.discard(connection)
        self._finished_calls += connection.http2.finished_calls
        network = network_of(connection.peer[0])
        self._by_network[network] -= 1
        if not self._by_network[network]:
            del self._by_network[network]
        if self._all_gone is not None and not self._connections:
            self._all_gone.set()

    def failed(self, connection: Http2Connection, error: str, reason: str) -> None:
        """Count and log a connection that ends with an error."""
        self._failures[error] += 1
        self._log(connection, "connection ended", reason, error=error)

    def sweep(self) -> None:
        """Close idle, stalled and silent connections."""
        now_s = self.clock.monotonic_s()
        for connection in list(self._connections):
            connection.sweep(now_s)
        self.held.recount()

    def statistics(self) -> dict[str, int]:
        """Counts since the start, and current values."""
        connections = [connection.http2 for connection in self._connections]
        return {
            "connections": len(connections),
            "max_connections": self.limits.max_connections,
            "accepted": self._accepted,
            "refused": self._refused,
            "calls": sum(len(http2.streams) for http2 in connections),
            "finished_calls": self._finished_calls + sum(http2.finished_calls for http2 in connections),
            "request_bytes": sum(http2.held_bytes for http2 in connections),
            "unsent_bytes": sum(http2.outbox.unsent_bytes for http2 in connections),
            **self.held.statistics(),
            **self.cache.statistics(),
            **{f"failed_{error.lower()}": count for error, count in self._failures.items()},
        }

    def _log(self, connection: Http2Connection, event: str, reason: str, **fields: object) -> None:
        now_s = self.clock.monotonic_s()
        if now_s - self._logged_s < _LOG_EVERY_S:
            self._unlogged += 1
            return
        self._logged_s = now_s
        _log.warning(event, peer=connection.peer_name, reason=reason, not_logged=self._unlogged, **fields)
        self._unlogged = 0

    def _schedule_sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        limits = self.limits
        shortest_s = min(
            limits.greeting_timeout_s, limits.request_timeout_s, limits.stall_timeout_s, limits.idle_timeout_s
        )
        every_s = min(shortest_s / 4, _LONGEST_SWEEP_S)

        def sweep() -> None:
            self._sweeper = loop.call_later(every_s, sweep)
            self.sweep()

        self._sweeper = loop.call_later(every_s, sweep)
