"""TLS of one port of the remoting protocol: which connections may use it, and what became of them."""

import ssl
from typing import Literal

from latermq.clock import Clock
from latermq.tls.front import Handshakes
from latermq.tls.reloading import ReloadedContext

Mode = Literal["disabled", "permissive", "enforcing"]


class TlsPort(Handshakes):
    """Without contexts, connections with TLS are refused. With the mode `enforcing`, all others are."""

    def __init__(self, mode: Mode, contexts: ReloadedContext | None, handshake_timeout_s: float, clock: Clock) -> None:
        assert contexts is not None or mode != "enforcing"
        super().__init__(clock)
        self.requires_tls = mode == "enforcing"
        self.handshake_timeout_s = handshake_timeout_s
        self._contexts = contexts if mode != "disabled" else None

    @property
    def context(self) -> ssl.SSLContext | None:
        """The context for a new connection."""
        return self._contexts.current if self._contexts is not None else None
