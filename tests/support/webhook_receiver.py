"""A real HTTP server that receives webhook messages, and answers, hangs or redirects as a test wants."""

import contextlib
import json
import socket
import socketserver
import ssl
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from latermq.tls.certificates import CertificateFiles
from tests.interop.ports import HOST

Behaviour = Callable[[socket.socket], None]


class Received(NamedTuple):
    """A request, with header names in lower case."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def alert(self) -> tuple[str, str]:
        """The rule and the state of the alert."""
        alert = self.json["alert"]
        return alert["rule"], alert["state"]


def answer(status: int, *headers: str, body: bytes = b"ok") -> Behaviour:
    """Answer with a status and headers."""
    head = "\r\n".join([f"HTTP/1.1 {status} X", f"Content-Length: {len(body)}", *headers])
    return lambda connection: connection.sendall(head.encode() + b"\r\n\r\n" + body)


def send(data: bytes) -> Behaviour:
    """Send some bytes, and close the connection."""
    return lambda connection: connection.sendall(data)


class Receiver:
    """The requests that arrived, and the behaviours for the next ones; without one the answer is 200."""

    def __init__(self) -> None:
        self.requests: list[Received] = []
        self.script: list[Behaviour] = []
        self.may_end = threading.Event()
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}/hooks/secret-path?key=secret-query"

    def hang(self, connection: socket.socket) -> None:
        """Answer nothing until the test ends."""
        self.may_end.wait(30)

    def serve(self, connection: socket.socket) -> None:
        """Read one request and answer it."""
        with connection.makefile("rb") as stream:
            method, path, _ = stream.readline().decode().split()
            headers = {}
            while line := stream.readline().decode().strip():
                name, _, value = line.partition(":")
                headers[name.lower()] = value.strip()
            body = stream.read(int(headers["content-length"]))
        self.requests.append(Received(method, path, headers, body))
        behaviour = self.script.pop(0) if self.script else answer(200)
        behaviour(connection)


@contextlib.contextmanager
def receiving(certificate: CertificateFiles | None = None) -> Iterator[Receiver]:
    """Run a receiver on a free port, with TLS if it has a certificate."""
    receiver = Receiver()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    if certificate is not None:
        context.load_cert_chain(*certificate)

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with contextlib.suppress(OSError, ValueError):
                if certificate is None:
                    receiver.serve(self.request)
                    return
                with context.wrap_socket(self.request, server_side=True) as connection:
                    receiver.serve(connection)

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        allow_reuse_address = True

    with Server((HOST, 0), Handler) as server:
        receiver.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield receiver
        finally:
            receiver.may_end.set()
            server.shutdown()
            thread.join()
