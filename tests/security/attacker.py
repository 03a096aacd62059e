"""A stranger on a blocking socket: it sends any bytes, reads or does not, and what it costs the attacked process."""

import contextlib
import socket
from collections.abc import Iterator, Mapping

from latermq.cli.bench import process_usage
from latermq.protocol.remoting.frames import Command, FrameReader, encode_frame

TIMEOUT_S = 30.0


class Attacker:
    """One connection. `call` asks and waits as clients do; `push` only sends, as strangers do."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._reader = FrameReader()
        self._received: list[Command] = []
        self._opaque = 0

    @property
    def name(self) -> str:
        """How the server's log lines call this client."""
        host, port = self._sock.getsockname()[:2]
        return f"{host}:{port}"

    def settimeout(self, timeout_s: float) -> None:
        self._sock.settimeout(timeout_s)

    def push(self, data: bytes) -> None:
        self._sock.sendall(data)

    def request(self, code: int, fields: Mapping[str, str] | None = None, body: bytes = b"") -> bytes:
        """The bytes of one request with an opaque of its own."""
        self._opaque += 1
        return encode_frame(code, self._opaque, fields=fields, body=body)

    def receive(self) -> Command:
        """The next frame; ConnectionError when the server closes instead, TimeoutError when nothing comes."""
        while not self._received:
            data = self._sock.recv(1 << 16)
            if not data:
                raise ConnectionResetError("closed by the server")
            self._received = self._reader.feed(data)
        return self._received.pop(0)

    def call(self, code: int, fields: Mapping[str, str] | None = None, body: bytes = b"") -> Command:
        """Ask, and pass over what comes unasked before the answer."""
        self.push(self.request(code, fields, body))
        while True:
            reply = self.receive()
            if reply.is_response and reply.opaque == self._opaque:
                return reply

    def close(self) -> None:
        self._sock.close()


@contextlib.contextmanager
def attacking(port: int, *, receive_buffer_bytes: int | None = None) -> Iterator[Attacker]:
    with socket.socket() as sock:
        sock.settimeout(TIMEOUT_S)
        if receive_buffer_bytes is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        sock.connect(("127.0.0.1", port))
        yield Attacker(sock)


def resident_bytes(pid: int) -> int:
    """What a process holds in memory now that is its own: files of the store that it has mapped do not count."""
    found = process_usage.memory(pid)
    assert found is not None, f"process {pid} has ended"
    return found.anonymous_bytes


def cpu_s(pid: int) -> float:
    """The CPU time that a process has used."""
    found = process_usage.cpu_s(pid)
    assert found is not None, f"process {pid} has ended"
    return found
