"""A stranger on a blocking socket: it sends any bytes, reads or does not, and what it costs the attacked process."""

import contextlib
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

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
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise ProcessLookupError(f"process {pid} has no memory")


def cpu_s(pid: int) -> float:
    """The CPU time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def slowest_of(ask: Iterator[object]) -> float:
    """The longest that one step of `ask` took, in seconds: what another client feels while an attack runs."""
    slowest_s = 0.0
    began_s = time.monotonic()
    for _ in ask:
        now_s = time.monotonic()
        slowest_s, began_s = max(slowest_s, now_s - began_s), now_s
    return slowest_s
