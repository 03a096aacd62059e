"""TLS between a socket and the protocol of its connection, which exists from the first byte of the handshake.

With asyncio's own TLS, a connection is not known, and so counts towards no limit, until its handshake is finished.
"""

import asyncio
import ssl
from typing import Any, Protocol, cast

from latermq.tls.contexts import reason_of
from latermq.tls.stream import TlsStream

# Of a peer whose handshake is not finished. A ClientHello has about 500 bytes, a chain of certificates up to 10 KiB.
MAX_HANDSHAKE_BYTES = 64 * 1024


class TlsEvents(Protocol):
    """What becomes of handshakes and sessions."""

    def finished(self) -> None:
        """A handshake has succeeded."""
        ...

    def failed(self, peer: str, reason: str) -> None:
        """A connection is closed because of TLS."""
        ...


class TlsTransport(asyncio.Transport, asyncio.Protocol):
    """The protocol of a socket, and the transport of a connection's protocol."""

    __slots__ = ("_deadline", "_events", "_protocol", "_received_bytes", "_socket", "_stream", "_timeout_s")

    def __init__(
        self, protocol: asyncio.Protocol, context: ssl.SSLContext, events: TlsEvents, handshake_timeout_s: float
    ) -> None:
        super().__init__()
        self._protocol = protocol
        self._events = events
        self._timeout_s = handshake_timeout_s
        self._socket = cast(asyncio.Transport, None)  # set by connection_made or `begin`
        self._stream = TlsStream(context)
        self._received_bytes = 0  # of the handshake
        self._deadline: asyncio.TimerHandle | None = None

    def begin(self, socket: asyncio.Transport) -> None:
        """Start the clock of the handshake."""
        self._socket = socket
        self._deadline = asyncio.get_running_loop().call_later(self._timeout_s, self._time_out)

    # The protocol of the socket

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.begin(cast(asyncio.Transport, transport))
        self._protocol.connection_made(self)

    def data_received(self, data: bytes) -> None:
        stream = self._stream
        if not stream.is_ready:
            self._shake_hands(data)
            return
        try:
            plain = stream.receive(data)
        except ssl.SSLError as error:
            self._fail(error)
            return
        if stream.has_output:  # the answer to a change of keys
            self._socket.write(stream.take())
        if plain:
            self._protocol.data_received(plain)

    def eof_received(self) -> bool:
        self._protocol.eof_received()
        return False  # close

    def pause_writing(self) -> None:
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        self._protocol.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_handshake()
        self._protocol.connection_lost(exc)

    # The handshake

    @property
    def peer_name(self) -> str:
        host, port = (self._socket.get_extra_info("peername") or ("?", 0))[:2]
        return f"{host}:{port}"

    def _shake_hands(self, data: bytes) -> None:
        self._received_bytes += len(data)
        plain = self._step(data)
        if plain:
            self._protocol.data_received(plain)

    def _step(self, data: bytes) -> bytes:
        """Return the decrypted bytes after the end of the handshake."""
        stream = self._stream
        try:
            plain = stream.receive(data)
        except ssl.SSLError as error:
            self._fail(error)
            return b""
        if stream.has_output:
            self._socket.write(stream.take())
        if stream.is_ready:
            self._end_handshake()
            self._events.finished()
        elif self._received_bytes > MAX_HANDSHAKE_BYTES:
            self._refuse(f"its TLS handshake has more than {MAX_HANDSHAKE_BYTES} bytes")
        return plain

    def _time_out(self) -> None:
        self._deadline = None
        self._refuse(f"its TLS handshake took more than {self._timeout_s:g} s")

    def _fail(self, error: ssl.SSLError) -> None:
        if self._stream.has_output and not self._socket.is_closing():
            self._socket.write(self._stream.take())  # the alert
        self._events.failed(self.peer_name, f"TLS failed: {reason_of(error)}")
        self._end_handshake()
        self.close()

    def _refuse(self, reason: str) -> None:
        self._events.failed(self.peer_name, reason)
        self.abort()

    def _end_handshake(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    # The transport of the connection

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Encrypt and send. What comes before the end of the handshake is dropped: it answers no request."""
        stream = self._stream
        if data and stream.is_ready and not self._socket.is_closing():
            stream.send(bytes(data))
            self._socket.write(stream.take())

    def can_write_eof(self) -> bool:
        return False

    def close(self) -> None:
        """Close after all that was written is sent."""
        if not self._socket.is_closing():
            if self._stream.is_ready:
                self._stream.close()
                if self._stream.has_output:
                    self._socket.write(self._stream.take())
            self._socket.close()

    def abort(self) -> None:
        self._end_handshake()
        self._socket.abort()

    def is_closing(self) -> bool:
        return self._socket.is_closing()

    def get_write_buffer_size(self) -> int:
        return self._socket.get_write_buffer_size()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._socket.set_write_buffer_limits(high, low)

    def pause_reading(self) -> None:
        self._socket.pause_reading()

    def resume_reading(self) -> None:
        self._socket.resume_reading()

    def is_reading(self) -> bool:
        return self._socket.is_reading()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = cast(asyncio.Protocol, protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "sslcontext":
            return self._stream.context
        return self._socket.get_extra_info(name, default)
