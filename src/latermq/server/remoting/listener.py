"""A listening socket of the remoting protocol, with its connections and their counts."""

import asyncio
from collections import Counter
from collections.abc import Callable

from latermq.clock import Clock
from latermq.config import ServerConfig
from latermq.errors import error_codes
from latermq.protocol.remoting.frames import Command
from latermq.protocol.remoting.request_decoder import decode_request
from latermq.server.accepted import Accepted
from latermq.server.remoting.connection import CloseReason, Connection, Service
from latermq.server.remoting.first_byte import FirstByte
from latermq.server.remoting.held_bytes import HeldBytes
from latermq.server.remoting.tls_port import TlsPort
from latermq.server.remoting.turns import Turns

_MAX_SWEEP_INTERVAL_S = 15.0


class Listener:
    """Accepts connections for one service. Call `start` and `close` once each."""

    def __init__(
        self,
        service: Service,
        config: ServerConfig,
        clock: Clock,
        decode: Callable[[int, bytes, bytes], Command] = decode_request,
        tls: TlsPort | None = None,
    ) -> None:
        self.decode = decode
        self.config = config
        self.clock = clock
        self.turns = Turns()
        self.held = HeldBytes(config.max_held)
        self.received_frames = 0
        # By response code. All codes start at 0: monitoring does not count the first value of a series as an increase.
        self.refused_codes: Counter[int] = Counter(dict.fromkeys(sorted(error_codes()), 0))
        self.close_counts: Counter[CloseReason] = Counter()
        self._service = service
        self._tls = tls
        self._accepted: Accepted[Connection] = Accepted(
            clock, self.held, config.max_connections, config.max_connections_per_address
        )
        self.admit = self._accepted.admit
        self.forget = self._accepted.forget
        self.sweep = self._accepted.sweep

    @property
    def port(self) -> int:
        """The actual port, also if port 0 was requested."""
        return self._accepted.port

    @property
    def connections(self) -> int:
        """How many clients are connected."""
        return len(self._accepted)

    async def start(self, host: str, port: int) -> None:
        """Listen on the address. Raises OSError if it is unavailable."""
        self.turns.start(self.config.turn / 1000, asyncio.get_running_loop().call_soon)
        shortest_s = min(self.config.idle_timeout, self.config.stalled_timeout) / 1000
        await self._accepted.listen(
            self._new_connection,
            host,
            port,
            setting="server.max_connections",
            sweep_every_s=min(shortest_s / 4, _MAX_SWEEP_INTERVAL_S),
        )

    def _new_connection(self) -> asyncio.Protocol:
        connection = Connection(self._service, self)
        return connection if self._tls is None else FirstByte(connection, self._tls, self.turns, self.held)

    async def close(self, timeout_s: float = 5.0) -> None:
        """Stop accepting, let every connection write its pending replies, and abort those that exceed the timeout."""
        await self._accepted.close(Connection.close, timeout_s)

    def statistics(self) -> dict[str, int]:
        """Counts since the start, and current values."""
        return {
            **self._accepted.statistics(),
            **(self._tls.statistics() if self._tls is not None else {}),
            "paused": sum(connection.is_paused for connection in self._accepted),
            **self.turns.statistics(),
            "received_frames": self.received_frames,
            "refused_requests": self.refused_codes.total(),
            **{f"refused_requests_{code}": count for code, count in self.refused_codes.items()},
            **{f"closed_{reason.value}": self.close_counts[reason] for reason in CloseReason},
        }
