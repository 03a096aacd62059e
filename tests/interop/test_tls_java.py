"""RocketMQ's Java client with TLS, switched on by `setUseTLS(true)` or by `-Dtls.enable=true`."""

import contextlib
import json
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from latermq.protocol.remoting.codes import Request, Response
from latermq.tls.certificates import CertificateFiles
from tests.integration.brokers import send_fields
from tests.integration.test_access import ON
from tests.interop.mqadmin import MqAdmin
from tests.interop.programs import Json, Program, ProgramError, start_java
from tests.interop.waiting import wait_until
from tests.support.serving import Server, serving
from tests.support.tls_scene import HOST, issued_certificate, own_certificate

RIGHTS = {"resource": "Topic:orders", "actions": ["Pub"], "decision": "Allow"}


class Files:
    """The certificate of a server, which a test may replace."""

    def __init__(self, folder: Path) -> None:
        self.authority = own_certificate(folder / "authority")
        self.stranger = own_certificate(folder / "stranger")
        self.used = CertificateFiles(folder / "used.pem", folder / "used.key")
        self._folder = folder
        self.put(self.issued("server"))

    def put(self, files: CertificateFiles) -> None:
        for source, target in zip(files, self.used, strict=True):
            fresh = target.with_suffix(".new")
            fresh.write_bytes(source.read_bytes())
            fresh.replace(target)

    def issued(self, name: str, valid_days: int = 30) -> CertificateFiles:
        hosts = (HOST, "localhost")
        return issued_certificate(self._folder / name, name, self.authority, valid_days=valid_days, hosts=hosts)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tls")


@pytest.fixture(scope="module")
def files(folder: Path) -> Files:
    return Files(folder)


@contextlib.contextmanager
def serving_tls(folder: Path, files: Files, *settings: str) -> Iterator[Server]:
    both = (f"tls.cert={files.used.certificate}", f"tls.key={files.used.key}", "tls.reload_every=100ms", *settings)
    with serving(folder, *(word for setting in both for word in ("--set", setting))) as server:
        yield server


@pytest.fixture(scope="module")
def enforcing(folder: Path, files: Files) -> Iterator[Server]:
    """Its parts trust each other by the authority."""
    with serving_tls(folder / "enforcing", files, "tls.mode=enforcing", f"tls.ca={files.authority.certificate}") as one:
        yield one


@pytest.fixture(scope="module")
def java(folder: Path) -> Iterator[Program]:
    """Its own Java refuses TLS 1.1 by default, which would hide what the server does."""
    weak = folder / "weak.security"
    weak.write_text("jdk.tls.disabledAlgorithms=\n")
    with start_java(folder / "java.log", {}, options=(f"-Djava.security.properties={weak}",)) as program:
        yield program


@pytest.fixture
def trust(java: Program) -> Iterator[None]:
    """The client's settings for TLS, as they were at its start after the test."""
    yield
    java.call("configure_tls")


def request(java: Program, server: Server, connection: str, *, tls: bool = True, **credentials: str) -> Json:
    """Send one message on a connection of its own."""
    one = {"code": Request.SEND_MESSAGE_V2, "fields": send_fields("orders"), "body": "body"}
    answers: list[Json] = java.call(
        "request", address=server.broker, requests=[one], connection=connection, tls=tls, **credentials
    )["answers"]
    return answers[0]


def test_all_clients_work_with_tls_alone(java: Program, enforcing: Server) -> None:
    common = {"namesrv": enforcing.namesrv, "tls": True, "topic": "encrypted", "group": "readers"}
    java.call("make_topics", topics=["encrypted"], queues=2, **common)
    java.call("send", count=5, **common)
    java.call("consume", count=5, **common)
    java.call("send_in_transaction", **{**common, "group": "deciders"})
    pulled = java.call("lite_pull", count=6, **{**common, "group": "pullers"})
    assert len(pulled["messages"]) == 6


def test_plaintext_is_refused(java: Program, enforcing: Server) -> None:
    with pytest.raises(ProgramError) as caught:
        request(java, enforcing, "plain", tls=False)
    assert caught.value.code == -1
    with pytest.raises(ProgramError):
        java.call("send", topic="encrypted", group="plain", namesrv=enforcing.namesrv)


def test_the_system_property_switches_tls_on_for_mqadmin(folder: Path, enforcing: Server) -> None:
    options = ("-Dtls.enable=true",)
    with start_java(folder / "mqadmin.log", {}, log_level="OFF", options=options) as program:
        admin = MqAdmin(program, enforcing.namesrv)
        assert [row[1] for row in admin.rows("clusterList")] == ["broker-a"]
        admin.run("updateTopic", "-b", enforcing.broker, "-t", "by_mqadmin", "-r", "1", "-w", "1")


@pytest.mark.usefixtures("trust")
def test_a_client_that_verifies_refuses_another_authority_and_an_expired_certificate(
    java: Program, enforcing: Server, files: Files
) -> None:
    java.call("configure_tls", test_mode=False, verify=True, trusted=str(files.authority.certificate))
    assert request(java, enforcing, "trusting")["code"] == Response.SUCCESS
    java.call("configure_tls", test_mode=False, verify=True, trusted=str(files.stranger.certificate))
    with pytest.raises(ProgramError):
        request(java, enforcing, "distrusting")
    java.call("configure_tls", test_mode=False, verify=True, trusted=str(files.authority.certificate))
    first = CertificateFiles(*(Path(f"{path}.first") for path in files.used))
    for source, target in zip(files.used, first, strict=True):
        target.write_bytes(source.read_bytes())
    expired = files.issued("expired", valid_days=-1)
    files.put(expired)
    try:
        wait_until(lambda: presented(enforcing) == der(expired), 60, "the expired certificate is in use")
        with pytest.raises(ProgramError):
            request(java, enforcing, "too late")
        assert request(java, enforcing, "trusting")["code"] == Response.SUCCESS, "open connections continue"
    finally:
        files.put(first)
        wait_until(lambda: presented(enforcing) == der(first), 60, "the first certificate is in use again")


@pytest.mark.usefixtures("trust")
def test_versions_before_tls_1_2_are_refused(java: Program, enforcing: Server) -> None:
    java.call("configure_tls", protocols="TLSv1.1")
    with pytest.raises(ProgramError):
        request(java, enforcing, "old")
    for version in ("TLSv1.2", "TLSv1.3"):
        java.call("configure_tls", protocols=version)
        assert request(java, enforcing, version)["code"] == Response.SUCCESS


def test_a_certificate_is_replaced_under_load_without_a_lost_message(
    java: Program, enforcing: Server, files: Files
) -> None:
    common = {"namesrv": enforcing.namesrv, "tls": True, "topic": "load"}
    java.call("make_topics", topics=["load"], queues=1, **common)
    java.call("send", **common)
    sent = java.begin("send", count=3_000, **common)
    renewed = files.issued("renewed")
    files.put(renewed)
    wait_until(lambda: presented(enforcing) == der(renewed), 60, "the new certificate is in use")
    java.finish(sent, timeout_s=120)
    java.call("send", count=10, group="later", **common)
    [queue] = java.call("queues", group="counters", **common)["queues"]
    assert queue["max"] == 3_011


@pytest.mark.usefixtures("trust")
def test_the_subject_of_a_client_certificate_is_its_user(java: Program, folder: Path, files: Files) -> None:
    settings = (*ON, f"tls.client_ca={files.authority.certificate}")
    with serving_tls(folder / "mutual", files, *settings) as server:
        root = {"user": "root", "secret": "r00t"}
        users = [
            {"code": Request.AUTH_CREATE_USER, "fields": {"username": name}, "body": '{"password":"x"}'}
            for name in ("alice", "bob")
        ]
        acl = json.dumps({"policies": [{"policyType": "Custom", "entries": [RIGHTS]}]})
        granted = {"code": Request.AUTH_CREATE_ACL, "fields": {"subject": "User:alice"}, "body": acl}
        made = java.call("request", address=server.broker, requests=[*users, granted], connection="mutual", **root)
        assert [one["code"] for one in made["answers"]] == [0, 0, 0]
        trusted = {"test_mode": False, "verify": True, "trusted": str(files.authority.certificate)}
        remarks = {}
        for name in ("bob", "ghost", "latermq-inner", "alice"):
            own = files.issued(name)
            java.call("configure_tls", **trusted, certificate=str(own.certificate), key=str(own.key))
            remarks[name] = request(java, server, f"certificate of {name}")
        # A signature takes precedence over the certificate of the connection.
        signed = request(java, server, "signed", user="alice", secret="guessed")
        assert signed["remark"] == "check signature failed."
        java.call("configure_tls", **trusted)
        remarks["nobody"] = request(java, server, "without a certificate")
        refused = {name: reply["remark"] for name, reply in remarks.items() if reply["code"] != Response.SUCCESS}
        assert refused == {
            "bob": "User:bob has no permission to access Topic:orders from 127.0.0.1, no matched policies.",
            "ghost": "User:ghost is not found.",
            "latermq-inner": "username cannot be null.",
            "nobody": "username cannot be null.",
        }


def presented(server: Server) -> bytes:
    """The certificate that a new connection gets."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with socket.create_connection((HOST, server.port), 30) as plain, context.wrap_socket(plain) as sock:
        return sock.getpeercert(binary_form=True) or b""


def der(files: CertificateFiles) -> bytes:
    return ssl.PEM_cert_to_DER_cert(files.certificate.read_text())
