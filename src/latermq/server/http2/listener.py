"""A listening socket for gRPC, with its connections and their counts."""

import ssl
from collections import Counter
from ipaddress import ip_address

import structlog

from latermq.clock import Clock
from latermq.protocol.http2.header_cache import HeaderCache
from latermq.server.accepted import Accepted
from latermq.server.http2.call_dispatcher import CallDispatcher
from latermq.server.http2.calls import Methods
from latermq.server.http2.connection import HandlerFactory, Http2Connection
from latermq.server.http2.deadlines import Deadlines
from latermq.server.http2.transport_limits import TransportLimits
from latermq.server.remoting.held_bytes import HeldBytes
from latermq.tls.reloading import ReloadedContext

_LONGEST_SWEEP_S = 5.0
_LOG_EVERY_S = 1.0  # a hostile client can fail thousands of times per second
_log = structlog.get_logger(__name__)


def grpc_handler(methods: Methods) -> HandlerFactory:
    """Return the handler of connections that serve these methods."""
    return lambda connection: CallDispatcher(connection, methods)


class Http2Listener:
    """Accepts connections on one port, with TLS (if there is a context) and plaintext. Call `start` and `stop` once."""

    def __init__(
        self,
        new_handler: HandlerFactory,
        limits: TransportLimits,
        clock: Clock,
        tls: ssl.SSLContext | ReloadedContext | None = None,
        *,
        requires_tls: bool = False,
    ) -> None:
        self.limits = limits
        self.clock = clock
        self.cache = HeaderCache()
        self.requires_tls = requires_tls
        self._tls = tls
        self.held = HeldBytes(limits.max_held_bytes)
        self.deadlines = Deadlines(clock.monotonic_s)
        self._new_handler = new_handler
        self._accepted: Accepted[Http2Connection] = Accepted(
            clock, self.held, limits.max_connections, limits.max_connections_per_address
        )
        self.sweep = self._accepted.sweep
        self._failures: Counter[str] = Counter()  # by error code
        self._logged_s = float("-inf")
        self._unlogged = 0
        self._finished_calls = 0  # of closed connections

    @property
    def port(self) -> int:
        """The actual port, also if port 0 was requested."""
        return self._accepted.port

    @property
    def tls(self) -> ssl.SSLContext | None:
        """The context for a new connection."""
        return self._tls.current if isinstance(self._tls, ReloadedContext) else self._tls

    async def start(self, host: str, port: int) -> None:
        """Listen on the address. Raises OSError if it is unavailable."""
        limits = self.limits
        shortest_s = min(
            limits.greeting_timeout_s, limits.request_timeout_s, limits.stall_timeout_s, limits.idle_timeout_s
        )
        await self._accepted.listen(
            lambda: Http2Connection(self, self._new_handler),
            host,
            port,
            setting="proxy.max_connections",
            sweep_every_s=min(shortest_s / 4, _LONGEST_SWEEP_S),
        )

    async def stop(self, grace_s: float = 10.0) -> None:
        """Stop accepting, let calls in flight finish, and abort what is left after the grace."""
        await self._accepted.close(Http2Connection.leave, grace_s)

    def is_balancer(self, ip: str) -> bool:
        """Whether the connections from an address begin with a header of the PROXY protocol."""
        balancers = self.limits.balancers
        return bool(balancers) and any(ip_address(ip) in network for network in balancers)

    def admit(self, connection: Http2Connection) -> bool:
        """Accept a connection unless a limit is reached or the listener stops."""
        return self._accepted.admit(connection, connection.awaits_proxy_header)

    def readdress(self, connection: Http2Connection, peer: tuple[str, int]) -> bool:
        """Count a connection under the address of a balancer's client, unless the limit of that address is reached."""
        return self._accepted.readdress(connection, peer)

    def forget(self, connection: Http2Connection) -> None:
        """Remove a lost connection."""
        self._finished_calls += connection.http2.finished_calls
        self._accepted.forget(connection)

    def failed(self, connection: Http2Connection, error: str, reason: str) -> None:
        """Count and log a connection that ends with an error."""
        self._failures[error] += 1
        now_s = self.clock.monotonic_s()
        if now_s - self._logged_s < _LOG_EVERY_S:
            self._unlogged += 1
            return
        self._logged_s = now_s
        _log.warning(
            "connection ended", peer=connection.peer_name, reason=reason, not_logged=self._unlogged, error=error
        )
        self._unlogged = 0

    def statistics(self) -> dict[str, int]:
        """Counts since the start, and current values."""
        connections = [connection.http2 for connection in self._accepted]
        return {
            **self._accepted.statistics(),
            "calls": sum(len(http2.streams) for http2 in connections),
            "finished_calls": self._finished_calls + sum(http2.finished_calls for http2 in connections),
            "request_bytes": sum(http2.held_bytes for http2 in connections),
            "unsent_bytes": sum(http2.outbox.unsent_bytes for http2 in connections),
            **self.cache.statistics(),
            **self.deadlines.statistics(),
            "tls_failures": self._failures["TLS"],
            **{f"failed_{error.lower()}": count for error, count in self._failures.items()},
        }
