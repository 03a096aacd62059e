"""TLS of a connection of the remoting protocol: handshakes take turns with the requests of all connections."""

import asyncio
import ssl
from time import monotonic

from latermq.server.remoting.connection import Connection
from latermq.server.remoting.held_bytes import HeldBytes
from latermq.server.remoting.tls_port import TlsPort
from latermq.server.remoting.turns import Turns
from latermq.tls.transport import TlsTransport


class TurnTakingTransport(TlsTransport):
    """A handshake takes 0.3 ms, so thousands that arrive together would stop all other clients for a second."""

    __slots__ = ("_connection", "_held", "_is_paused", "_is_waiting", "_turns", "_unread")

    def __init__(
        self, connection: Connection, context: ssl.SSLContext, port: TlsPort, turns: Turns, held: HeldBytes
    ) -> None:
        super().__init__(connection, context, port, port.handshake_timeout_s)
        self._connection = connection
        self._turns = turns
        self._held = held
        self._unread = b""  # of the handshake, until its turn
        self._is_waiting = False  # for a turn
        self._is_paused = False  # by the connection

    def begin(self, socket: asyncio.Transport) -> None:
        """Take over the socket of a connection that exists."""
        super().begin(socket)
        socket.set_protocol(self)
        self._connection.encrypt(self)

    @property
    def peer_name(self) -> str:
        return self._connection.peer_name

    def connection_lost(self, exc: Exception | None) -> None:
        if self._unread:
            self._unread = b""
            self.recount()
        super().connection_lost(exc)

    def run_turn(self, turn_s: float) -> None:
        """Take the next step of the handshake."""
        self._is_waiting = False
        if self._socket.is_closing():
            return
        if not self._is_paused:
            self._socket.resume_reading()
        self._take_turn()
        self.recount()

    def recount(self) -> None:
        """Report the bytes that wait for their turn."""
        self._held.change(self, len(self._unread), monotonic())

    def release(self) -> str:
        """Release everything, because all connections together hold too much and this one holds most."""
        self._unread = b""
        self.abort()
        self.recount()
        return "the server closed the connection"

    def pause_reading(self) -> None:
        self._is_paused = True
        if not self._is_waiting:
            super().pause_reading()

    def resume_reading(self) -> None:
        self._is_paused = False
        if not self._is_waiting:
            super().resume_reading()

    def _shake_hands(self, data: bytes) -> None:
        self._received_bytes += len(data)
        self._unread += data
        if not self._turns.is_used_up:
            self._take_turn()
            return
        self.recount()
        if not self._is_waiting and not self._socket.is_closing():
            self._is_waiting = True
            self._socket.pause_reading()
            self._turns.join_new(self)

    def _take_turn(self) -> None:
        turns = self._turns
        data, self._unread = self._unread, b""
        began_s = monotonic()
        plain = self._step(data)
        turns.spent_s += monotonic() - began_s
        if turns.spent_s >= turns.turn_s:
            turns.use_up()
        if self._stream.is_ready:
            self._connection.certificate_user = self._stream.common_name
            if plain:
                self._connection.data_received(plain)
