"""The first byte of a connection tells TLS from plaintext. Afterwards, a plaintext connection is served as if there
were no TLS: its reads and writes pass through nothing else.
"""

import asyncio
from typing import cast

from latermq.server.remoting.connection import Connection
from latermq.server.remoting.held_bytes import HeldBytes
from latermq.server.remoting.tls_port import TlsPort
from latermq.server.remoting.tls_transport import TurnTakingTransport
from latermq.server.remoting.turns import Turns
from latermq.tls.stream import HANDSHAKE_RECORD


class FirstByte(asyncio.Protocol):
    """Takes the place of a connection until its first byte arrives."""

    __slots__ = ("_connection", "_held", "_port", "_transport", "_turns")

    def __init__(self, connection: Connection, port: TlsPort, turns: Turns, held: HeldBytes) -> None:
        self._connection = connection
        self._port = port
        self._turns = turns
        self._held = held
        self._transport = cast(asyncio.Transport, None)  # set by connection_made

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._connection.connection_made(transport)  # it is admitted and counted before it has sent anything

    def data_received(self, data: bytes) -> None:
        transport, connection, port = self._transport, self._connection, self._port
        if transport.is_closing():
            return
        if data[0] == HANDSHAKE_RECORD:
            context = port.context
            if context is None:
                port.failed(
                    connection.peer_name, "it uses TLS, which is off: tls.mode is disabled, or there is no certificate"
                )
                connection.abort()
                return
            encrypted = TurnTakingTransport(connection, context, port, self._turns, self._held)
            encrypted.begin(transport)
            encrypted.data_received(data)
        elif port.requires_tls:
            port.failed(connection.peer_name, "it does not use TLS, which tls.mode requires")
            connection.abort()
        else:
            transport.set_protocol(connection)
            connection.data_received(data)

    def pause_writing(self) -> None:
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        self._connection.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connection.connection_lost(exc)
