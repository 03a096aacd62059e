"""TLS of one connection in memory: the socket's bytes in, the peer's bytes out, and the reverse.

asyncio's own TLS takes over a socket before its first byte is read, but here the first byte decides whether the peer
speaks TLS at all. It also reserves 256 KiB for each connection.
"""

import contextlib
import ssl
from typing import cast

HANDSHAKE_RECORD = 0x16  # the first byte of a TLS connection; no HTTP/2 preface and no remoting frame begins with it
_READ_BYTES = 16 * 1024  # the plaintext of one record, which is all that one read returns


class TlsStream:
    """The server side of a TLS session. Methods raise ssl.SSLError for what the peer does wrong."""

    __slots__ = ("_incoming", "_outgoing", "_session", "context", "is_ready")

    def __init__(self, context: ssl.SSLContext) -> None:
        self.context = context
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._session = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self.is_ready = False  # the handshake is complete, `send` may be called

    @property
    def has_output(self) -> bool:
        """Whether `take` returns something: what was sent, a part of the handshake, or an alert."""
        return self._outgoing.pending > 0

    @property
    def common_name(self) -> str:
        """The common name of the peer's verified certificate. Empty if there is none, or more than one."""
        certificate = self._session.getpeercert() or {}
        subject = cast(tuple[tuple[tuple[str, str], ...], ...], certificate.get("subject", ()))
        names = [value for part in subject for key, value in part if key == "commonName"]
        return names[0] if len(names) == 1 else ""

    def receive(self, data: bytes) -> bytes:
        """Return the decrypted bytes. All complete records are decrypted, so at most one record is held."""
        incoming, session = self._incoming, self._session
        incoming.write(data)
        pieces = []
        try:
            if not self.is_ready:
                session.do_handshake()
                self.is_ready = True
            # Reading until there is nothing would raise an exception each time, which costs 1 µs.
            while incoming.pending or session.pending():
                piece = session.read(_READ_BYTES)
                if not piece:
                    break
                pieces.append(piece)
        except (ssl.SSLWantReadError, ssl.SSLZeroReturnError):
            pass  # the next record is incomplete, or the peer closes
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def send(self, data: bytes) -> None:
        """Encrypt bytes for `take`."""
        rest = memoryview(data)
        while rest:
            rest = rest[self._session.write(rest) :]

    def take(self) -> bytes:
        """Return what must be written to the socket."""
        return self._outgoing.read()

    def close(self) -> None:
        """Announce the end to the peer."""
        # It raises if the peer's answer is not here yet, or if the handshake never finished.
        with contextlib.suppress(ssl.SSLError):
            self._session.unwrap()
