"""A listener of the remoting protocol with TLS in a thread of its own, and what a test needs to meet it."""

import asyncio
import contextlib
import datetime
import select
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import uvloop
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from latermq.clock import SystemClock
from latermq.config import ServerConfig, TlsConfig
from latermq.protocol.remoting.frames import Command, FrameReader, encode_frame, encode_response
from latermq.server.remoting.connection import Connection
from latermq.server.remoting.listener import Listener
from latermq.server.remoting.tls_port import Mode, TlsPort
from latermq.tls.certificates import CertificateFiles, alternative_names, self_signed, write_private
from latermq.tls.reloading import ReloadedContext
from latermq.tls.server_certificates import open_context

HOST = "127.0.0.1"
ECHO = 1
TIMEOUT_S = 60.0
_TLS_RECORD = 1 << 14
T = TypeVar("T")


class EchoService:
    """Answers each request with its body, and notes the connections."""

    def __init__(self) -> None:
        self.connections: list[Connection] = []

    def on_connect(self, connection: Connection) -> None:
        self.connections.append(connection)

    def serve(self, connection: Connection, command: Command) -> bytes | None:
        return encode_response(command, body=command.body)

    def on_turn_end(self) -> None:
        pass

    def on_drained(self, connection: Connection) -> None:
        pass

    def on_disconnect(self, connection: Connection) -> None:
        self.connections.remove(connection)


class RunningTls:
    """The listener. `on_loop` calls something on its thread."""

    def __init__(self, listener: Listener, service: EchoService, loop: asyncio.AbstractEventLoop) -> None:
        self.listener = listener
        self.service = service
        self._loop = loop

    @property
    def port(self) -> int:
        return self.listener.port

    def on_loop(self, work: Callable[[], T]) -> T:
        async def run() -> T:
            return work()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(60)

    def statistics(self) -> dict[str, int]:
        return self.on_loop(self.listener.statistics)


@contextlib.contextmanager
def running_tls(
    files: CertificateFiles,
    *,
    mode: Mode = "permissive",
    client_ca: str = "",
    requires_client: bool = False,
    handshake_timeout_s: float = 20.0,
    config: ServerConfig | None = None,
    contexts: ReloadedContext | None = None,
) -> Iterator[RunningTls]:
    """An echo server on uvloop."""
    tls = TlsConfig(client_ca=client_ca, require_client_cert=requires_client)
    contexts = contexts or open_context(files, tls, settings="the test's files", protocols=())
    service, loop = EchoService(), uvloop.new_event_loop()
    port = TlsPort(mode, contexts, handshake_timeout_s, SystemClock())
    listener = Listener(service, config or ServerConfig(), SystemClock(), tls=port)
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(listener.start(HOST, 0), loop).result(60)
        yield RunningTls(listener, service, loop)
    finally:
        asyncio.run_coroutine_threadsafe(listener.close(1.0), loop).result(60)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


class TlsClient:
    """A blocking client."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._reader = FrameReader()
        self._replies: list[Command] = []

    def receive(self) -> Command:
        while not self._replies:
            data = self.sock.recv(1 << 16)
            if not data:
                raise ConnectionResetError("closed by the server")
            self._replies = self._reader.feed(data)
        return self._replies.pop(0)

    # Send and receive on one thread: no two may use an SSLSocket at the same time.

    def send_some(self, data: memoryview) -> memoryview:
        """Send what the server takes without waiting, and return the rest."""
        self.sock.settimeout(0)
        with contextlib.suppress(ssl.SSLWantWriteError, ssl.SSLWantReadError):
            while data:
                data = data[self.sock.send(data[:_TLS_RECORD]) :]
        self.sock.settimeout(TIMEOUT_S)
        return data

    def receive_some(self) -> list[Command]:
        """The replies that are there."""
        self.sock.settimeout(0)
        replies = list[Command]()
        with contextlib.suppress(ssl.SSLWantReadError, ssl.SSLWantWriteError):
            while data := self.sock.recv(1 << 16):
                replies += self._reader.feed(data)
            raise ConnectionResetError("closed by the server")
        self.sock.settimeout(TIMEOUT_S)
        return replies

    def exchange(self, requests: memoryview, count: int) -> list[Command]:
        """Send the requests while receiving their replies."""
        replies = list[Command]()
        while len(replies) < count:
            requests = self.send_some(requests)
            received = self.receive_some()
            replies += received
            if not received:
                select.select([self.sock], [self.sock] if requests else [], [], TIMEOUT_S)
        return replies

    def echo(self, body: bytes = b"hello") -> bytes:
        self.sock.sendall(encode_frame(ECHO, 1, body=body))
        return self.receive().body


def trusting(files: CertificateFiles, client: CertificateFiles | None = None) -> ssl.SSLContext:
    """The context of a client that trusts one authority, and may have a certificate."""
    context = ssl.create_default_context(cafile=str(files.certificate))
    if client is not None:
        context.load_cert_chain(client.certificate, client.key)
    return context


@contextlib.contextmanager
def connected(port: int, context: ssl.SSLContext | None) -> Iterator[TlsClient]:
    """A client for `localhost`, with TLS if there is a context."""
    with socket.create_connection((HOST, port), timeout=TIMEOUT_S) as plain:
        if context is None:
            yield TlsClient(plain)
            return
        with context.wrap_socket(plain, server_hostname="localhost") as sock:
            yield TlsClient(sock)


def own_certificate(folder: Path) -> CertificateFiles:
    """A self-signed certificate for `localhost`."""
    return self_signed(folder, SystemClock().now_ms(), [HOST])


def issued_certificate(
    folder: Path, name: str, issuer: CertificateFiles, *, valid_days: int = 30, hosts: tuple[str, ...] = ("localhost",)
) -> CertificateFiles:
    """A certificate from the authority `issuer`. With negative days it has expired."""
    authority = x509.load_pem_x509_certificate(issuer.certificate.read_bytes())
    signer = serialization.load_pem_private_key(issuer.key.read_bytes(), None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP256R1())
    until = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=valid_days)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(authority.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(until - datetime.timedelta(days=60))
        .not_valid_after(until)
        .add_extension(alternative_names(hosts), critical=False)
        .sign(signer, hashes.SHA256())
    )
    folder.mkdir(parents=True, exist_ok=True)
    files = CertificateFiles(folder / f"{name}.pem", folder / f"{name}.key")
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    write_private(files.certificate, certificate.public_bytes(encoding))
    write_private(files.key, key.private_bytes(encoding, form, serialization.NoEncryption()))
    return files
