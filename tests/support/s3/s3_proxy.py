"""A proxy in front of an S3 server that delays requests, loses them or their replies, cuts replies, and answers 503."""

import contextlib
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from urllib.parse import unquote, urlsplit

from tests.interop.ports import HOST, free_port

_CHUNK_BYTES = 1 << 16
_MAX_HEADER_BYTES = 1 << 16
_TIMEOUT_S = 60.0
_ERROR = b"<?xml version='1.0'?><Error><Code>%s</Code><Message>by the proxy</Message></Error>"


@dataclass(frozen=True)
class S3Request:
    """The first lines of a request."""

    method: str
    key: str  # bucket and path, decoded
    headers: dict[str, str]


@dataclass
class Faults:
    """What the proxy does to requests. Tests change it while the proxy runs."""

    delay_s: float = 0.0
    share: float = 0.0  # of the requests that one of these happens to
    kinds: tuple[str, ...] = ("lost request", "lost reply", "cut reply", "500", "503")
    is_down: bool = False  # no connection gets an answer
    concerns: Callable[[S3Request], bool] = lambda _request: True
    before: Callable[[S3Request], None] = lambda _request: None  # called before a request is forwarded
    answer: Callable[[S3Request], bytes | None] = lambda _request: None  # a reply instead of the server's
    chance: Random = field(default_factory=lambda: Random(20_20))
    seen: Counter[str] = field(default_factory=Counter)

    def choose(self, request: S3Request) -> str:
        """What happens to a request: one of the kinds, or nothing."""
        self.seen["requests"] += 1
        if not self.share or not self.concerns(request) or self.chance.random() >= self.share:
            return ""
        kind = self.chance.choice(self.kinds)
        self.seen[kind] += 1
        return kind


class S3Proxy:
    """One thread per connection. The server behind it answers one request per connection, so each is one request."""

    def __init__(self, server_port: int) -> None:
        self._server_port = server_port
        self.port = free_port()
        self.faults = Faults()
        self._listener = socket.create_server((HOST, self.port), backlog=128)
        self._is_closed = False
        self._thread = threading.Thread(target=self._accept, name="s3-proxy", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._is_closed = True
        # A thread that waits in accept does not notice that its socket is closed.
        with contextlib.suppress(OSError), socket.create_connection((HOST, self.port), timeout=1):
            pass
        self._thread.join(5)
        self._listener.close()

    def _accept(self) -> None:
        while not self._is_closed:
            client, _ = self._listener.accept()
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            client.settimeout(_TIMEOUT_S)
            head = _read_head(client)
            if not head or self.faults.is_down:
                return
            request = _parse(head)
            kind = self.faults.choose(request)
            time.sleep(self.faults.delay_s)
            if kind == "lost request":
                return
            if kind in ("500", "503"):
                _refuse(client, request, head, kind)
                return
            answer = self.faults.answer(request)
            if answer is not None:
                client.sendall(answer)
                return
            self.faults.before(request)
            with socket.create_connection((HOST, self._server_port), timeout=_TIMEOUT_S) as server:
                server.sendall(head)
                sending = threading.Thread(target=_send_body, args=(client, server), daemon=True)
                sending.start()
                _send_reply(server, client, kind)
                # Wake the other thread, which waits for more of the request.
                for each in (server, client):
                    with contextlib.suppress(OSError):
                        each.shutdown(socket.SHUT_RDWR)
                sending.join(_TIMEOUT_S)


@contextlib.contextmanager
def s3_proxy(server_port: int) -> Iterator[S3Proxy]:
    """Run a proxy until the end of the block."""
    proxy = S3Proxy(server_port)
    try:
        yield proxy
    finally:
        proxy.close()


def _read_head(client: socket.socket) -> bytes:
    """The request up to the end of its headers, and what came with them."""
    head = b""
    while b"\r\n\r\n" not in head and len(head) < _MAX_HEADER_BYTES:
        chunk = client.recv(_CHUNK_BYTES)
        if not chunk:
            return b""
        head += chunk
    return head


def _parse(head: bytes) -> S3Request:
    first, *lines = head.partition(b"\r\n\r\n")[0].decode("latin-1").split("\r\n")
    method, target, _ = first.split(" ")
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return S3Request(method, unquote(urlsplit(target).path).lstrip("/"), headers)


def _refuse(client: socket.socket, request: S3Request, head: bytes, status: str) -> None:
    """Answer with an error. The body is read first: a client that still sends does not see the answer."""
    left = int(request.headers.get("content-length", "0")) - len(head.partition(b"\r\n\r\n")[2])
    if "expect" not in request.headers:
        while left > 0 and (chunk := client.recv(_CHUNK_BYTES)):
            left -= len(chunk)
    body = _ERROR % (b"InternalError" if status == "500" else b"SlowDown")
    name = b"Internal Server Error" if status == "500" else b"Slow Down"
    body = b"" if request.method == "HEAD" else body
    client.sendall(
        b"HTTP/1.1 %s %s\r\nContent-Type: application/xml\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s"
        % (status.encode(), name, len(body), body)
    )


def _send_body(client: socket.socket, server: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while chunk := client.recv(_CHUNK_BYTES):
            server.sendall(chunk)


def _send_reply(server: socket.socket, client: socket.socket, kind: str) -> None:
    """Pass the reply on. A lost one does not get through, and of a cut one only its first half."""
    reply = b""
    while chunk := server.recv(_CHUNK_BYTES):
        if not kind or (not reply and chunk.startswith(b"HTTP/1.1 100")):
            client.sendall(chunk)
        else:
            reply += chunk
    if kind == "cut reply":
        client.sendall(reply[: len(reply) // 2])
