"""Our own clients and processes over TLS: the SDK, commands, the registrar, the proxy, the console and the pipeline."""

import asyncio
import contextlib
import http.client
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from latermq.client import Admin, ClientTls, OutgoingMessage, blocking
from latermq.client.session.failures import ConnectFailed, ConnectionLost, NoNameServer
from latermq.errors import ConfigError, LaterMQError
from latermq.message.names import TIMER_TOPIC
from latermq.pipeline.driver.link import BrokerLink
from latermq.protocol.http2.frames import PREFACE
from latermq.protocol.messaging import messaging_pb2 as pb
from latermq.server.metrics_server import PATH
from latermq.tls.certificates import CertificateFiles
from tests.integration.command_line import Cli
from tests.interop.ports import free_port
from tests.support.grpc_client import grpc_client
from tests.support.serving import Server, serving
from tests.support.tls_scene import HOST, issued_certificate, own_certificate, running_tls, trusting


def address_of(part: str, server: Server) -> str:
    """The address in the ready line."""
    return server.ready_line().partition(f"{part} ")[2].split(",")[0]


@pytest.fixture(scope="module")
def metrics_port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tls")


@pytest.fixture(scope="module")
def server(data: Path, metrics_port: int) -> Iterator[Server]:
    """All parts but the pipeline, which accept nothing but TLS, with the self-signed certificate."""
    settings = ("tls.mode=enforcing", "http.tls=true", "metrics.tls=true", f"metrics.port={metrics_port}")
    options = [word for setting in settings for word in ("--set", setting)]
    with serving(data, *options, grpc=True, http=True) as running:
        yield running


@pytest.fixture(scope="module")
def files(server: Server, data: Path) -> CertificateFiles:
    folder = data / "tls"
    return CertificateFiles(folder / "certificate.pem", folder / "key.pem")


@pytest.fixture
def environment(files: CertificateFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a shell on this machine would set."""
    monkeypatch.setenv("LATERMQ_TLS_CA", str(files.certificate))


def test_the_sdk_sends_and_reads_with_tls(server: Server, files: CertificateFiles) -> None:
    tls = ClientTls(str(files.certificate))
    with blocking.Admin(server.namesrv, tls=tls) as admin, blocking.Producer(server.namesrv, tls=tls) as producer:
        admin.create_topic("encrypted", queues=1)
        sent = [producer.send(OutgoingMessage("encrypted", b"%d" % number)).message_id for number in range(10)]
        assert len(set(sent)) == 10


@pytest.mark.usefixtures("environment")
def test_the_environment_is_enough_for_the_sdk_and_the_pipeline(server: Server) -> None:
    with blocking.Admin(server.namesrv) as admin:
        assert [broker.brokerName for broker in admin.brokers()] == ["broker-a"]
    with BrokerLink(server.broker) as link:
        assert link.state().store_id
        assert link.bounds(TIMER_TOPIC, 0)[0] == 0


def test_plaintext_is_refused_with_a_hint(server: Server) -> None:
    with (
        blocking.Admin(server.namesrv, tls=False, request_timeout_s=1.0) as admin,
        pytest.raises((ConnectionLost, NoNameServer)) as caught,
    ):
        admin.brokers()
    assert "--tls" in f"{caught.value.hint} {caught.value.message}"


def test_another_authority_is_refused(server: Server, tmp_path: Path) -> None:
    tls = ClientTls(str(own_certificate(tmp_path).certificate))
    with (
        blocking.Admin(server.namesrv, tls=tls, request_timeout_s=1.0) as admin,
        pytest.raises(LaterMQError, match="self-signed certificate"),
    ):
        admin.brokers()


@pytest.mark.usefixtures("environment")
def test_commands_use_the_environment(server: Server) -> None:
    Cli(server).run("topic", "create", "by-command")
    assert "by-command" in Cli(server).text("topic", "list")


def test_commands_have_options(server: Server, files: CertificateFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CONNECT", "CA"):
        monkeypatch.setenv(f"LATERMQ_TLS_{name}", "")  # what the options set is taken back after the test
    _, errors = Cli(server).run("topic", "list", code=1)
    assert "--tls" in errors
    Cli(server).run("--tls-ca", str(files.certificate), "topic", "list")


def test_the_proxy_takes_tls_alone_and_reaches_its_broker(server: Server) -> None:
    with grpc_client(address_of("gRPC proxy", server), tls=True) as client:
        assert client.route("any").status.code == pb.OK
    host, _, port = address_of("gRPC proxy", server).rpartition(":")
    with socket.create_connection((host, int(port)), 60) as plain, contextlib.suppress(ConnectionError):
        plain.sendall(PREFACE)
        assert plain.recv(1) == b"", "plaintext is not answered"


def test_the_console_and_the_metrics_speak_https(server: Server, files: CertificateFiles, metrics_port: int) -> None:
    http_port = int(address_of("HTTP", server).rpartition(":")[2])
    for port, path in ((http_port, "/api/v1/topics"), (metrics_port, PATH.decode())):
        connection = http.client.HTTPSConnection(HOST, port, timeout=60, context=trusting(files))
        connection.request("GET", path)
        response = connection.getresponse()
        body = response.read()
        assert (response.status, bool(body)) == (200, True)
        connection.close()


def test_a_certificate_for_another_host_is_refused(tmp_path: Path) -> None:
    """A stranger with a valid certificate of the same authority cannot pretend to be another machine."""
    authority = own_certificate(tmp_path)
    elsewhere = issued_certificate(tmp_path, "elsewhere", authority, hosts=("elsewhere.example",))

    async def ask(port: int) -> None:
        tls = ClientTls(str(authority.certificate))
        async with Admin(f"{HOST}:{port}", tls=tls, request_timeout_s=1.0) as admin:
            await admin.brokers()

    with running_tls(elsewhere) as running:
        with pytest.raises(LaterMQError, match=r"not valid for '127\.0\.0\.1'"):
            asyncio.run(ask(running.port))
        with BrokerLink(f"{HOST}:{running.port}", patience_s=0.0) as link:
            link_error = pytest.raises(ConnectFailed, match="not valid for")
            with pytest.MonkeyPatch.context() as patch, link_error as caught:
                patch.setenv("LATERMQ_TLS_CA", str(authority.certificate))
                link.state()
        assert "host that is dialled" in caught.value.hint


def test_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"missing\.pem: No such file"):
        ClientTls(str(tmp_path / "missing.pem")).context()
    with pytest.raises(ConfigError, match="needs both"):
        ClientTls(cert="certificate.pem")


def test_a_certificate_is_replaced_under_load_without_a_lost_message(tmp_path: Path) -> None:
    data = tmp_path / "data"
    old, new = own_certificate(tmp_path / "old"), own_certificate(tmp_path / "new")
    used = CertificateFiles(tmp_path / "used.pem", tmp_path / "used.key")
    for source, target in zip(old, used, strict=True):
        target.write_bytes(source.read_bytes())
    settings = (f"tls.cert={used.certificate}", f"tls.key={used.key}", "tls.reload_every=100ms")
    options = [word for setting in settings for word in ("--set", setting)]
    sent: list[str] = []
    stop = threading.Event()
    with serving(data, *options) as server:
        with blocking.Admin(server.namesrv) as admin:
            admin.create_topic("load", queues=1)

        def send(authority: CertificateFiles) -> None:
            """Each client keeps its connection; a send that fails would raise."""
            with blocking.Producer(server.namesrv, tls=ClientTls(str(authority.certificate)), retries=0) as producer:
                while not stop.is_set():
                    sent.append(producer.send(OutgoingMessage("load", b"x" * 200)).message_id)

        senders = [threading.Thread(target=send, args=(old,))]
        senders[0].start()
        while len(sent) < 50:
            time.sleep(0.01)
        for source, target in zip(new, used, strict=True):
            source.replace(target)
        deadline_s = time.monotonic() + 60
        while True:  # until new connections get the new certificate
            context = ssl.create_default_context(cafile=str(used.certificate))
            try:
                host, _, port = server.broker.rpartition(":")
                with (
                    socket.create_connection((host, int(port)), 30) as plain,
                    context.wrap_socket(plain, server_hostname=host),
                ):
                    break
            except ssl.SSLError:
                assert time.monotonic() < deadline_s
                time.sleep(0.1)
        senders.append(threading.Thread(target=send, args=(used,)))
        senders[1].start()
        count = len(sent)
        while len(sent) < count + 200:
            time.sleep(0.01)
        stop.set()
        for sender in senders:
            sender.join()
        with blocking.Admin(server.namesrv) as admin:
            [stored] = [row.maxOffset for row in admin.topic_stats("load").values()]
        assert stored == len(sent) == len(set(sent))
