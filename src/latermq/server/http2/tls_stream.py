"""TLS of one connection in memory: the socket's bytes in, the peer's bytes out, and the reverse.

asyncio's own TLS takes over a socket before its first byte is read, but here the first byte decides whether the peer
speaks TLS at all.
"""

import contextlib
import ssl

HANDSHAKE_RECORD = 0x16  # the first byte of a TLS connection; no HTTP/2 preface begins with it
_READ_BYTES = 256 * 1024


class TlsStream:
    """The server side of a TLS session. Methods raise ssl.SSLError for what the peer does wrong."""

    __slots__ = ("_incoming", "_outgoing", "_session", "is_ready")

    def __init__(self, context: ssl.SSLContext) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._session = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self.is_ready = False  # the handshake is complete, `send` may be called

    def receive(self, data: bytes) -> bytes:
        """Return the decrypted bytes. All complete records are decrypted, so at most one record is held."""
        self._incoming.write(data)
        pieces = []
        try:
            if not self.is_ready:
                self._session.do_handshake()
                self.is_ready = True
            while piece := self._session.read(_READ_BYTES):
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


def server_context(certificate: str, key: str) -> ssl.SSLContext:
    """Return the context for a certificate chain and its key, as paths of PEM files."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    context.set_alpn_protocols(["h2"])
    context.load_cert_chain(certificate, key)
    return context
