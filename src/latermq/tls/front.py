"""What becomes of the handshakes of a port, and TLS of a port that accepts nothing else."""

import asyncio
from collections import Counter

import structlog

from latermq.clock import Clock
from latermq.tls.reloading import ReloadedContext
from latermq.tls.transport import TlsTransport

_LOG_EVERY_S = 1.0  # a hostile client can fail thousands of times per second
_log = structlog.get_logger(__name__)


class Handshakes:
    """Counts them, and logs those that fail."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._counts: Counter[str] = Counter()
        self._logged_s = float("-inf")
        self._unlogged = 0

    def finished(self) -> None:
        """Count a handshake that succeeded."""
        self._counts["finished"] += 1

    def failed(self, peer: str, reason: str) -> None:
        """Count and log a connection that is closed because of TLS."""
        self._counts["failed"] += 1
        now_s = self._clock.monotonic_s()
        if now_s - self._logged_s < _LOG_EVERY_S:
            self._unlogged += 1
            return
        self._logged_s = now_s
        _log.warning("connection closed", peer=peer, reason=reason, not_logged=self._unlogged)
        self._unlogged = 0

    def statistics(self) -> dict[str, int]:
        """Counts since the start."""
        return {"tls_handshakes": self._counts["finished"], "tls_failures": self._counts["failed"]}


class TlsFront(Handshakes):
    """Puts TLS before the connections of a port."""

    def __init__(self, contexts: ReloadedContext, handshake_timeout_s: float, clock: Clock) -> None:
        super().__init__(clock)
        self._contexts = contexts
        self._handshake_timeout_s = handshake_timeout_s

    def wrap(self, protocol: asyncio.Protocol) -> asyncio.Protocol:
        """The protocol of a new socket, for the protocol of its connection."""
        return TlsTransport(protocol, self._contexts.current, self, self._handshake_timeout_s)
