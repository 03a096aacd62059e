"""`latermq cert new`: servers and clients with its certificates accept each other, and nobody else."""

import asyncio
import ssl
import time
from pathlib import Path

import pytest

from latermq.cli import main
from latermq.client import Admin, ClientTls
from latermq.errors import LaterMQError
from latermq.tls.authority import issue, server_request, user_request
from latermq.tls.certificates import CertificateFiles
from tests.support.serving import serving
from tests.support.tls_scene import HOST, connected, running_tls, trusting

DAY_MS = 86_400_000


def files_of(folder: Path, name: str) -> CertificateFiles:
    return CertificateFiles(folder / f"{name}.pem", folder / f"{name}.key")


@pytest.fixture(scope="module")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("parent") / "certs"
    assert main(["cert", "new", str(folder), "--server", "broker.example,10.0.0.5", "--user", "alice"]) == 0
    return folder


def strict(context: ssl.SSLContext) -> ssl.SSLContext:
    """Follow RFC 5280 to the letter, as Python does by default from 3.13 on."""
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    return context


def test_a_client_verifies_the_server_and_the_server_learns_the_user(certs: Path) -> None:
    ca, server, alice = (files_of(certs, name) for name in ("ca", "server-broker.example", "user-alice"))
    with running_tls(server, mode="enforcing", client_ca=str(ca.certificate), requires_client=True) as running:
        with connected(running.port, strict(trusting(ca, alice))) as client:
            assert client.echo(b"hello") == b"hello"
            assert [one.certificate_user for one in running.service.connections] == ["alice"]
        with connected(running.port, strict(trusting(ca, server))) as client:  # servers are clients of each other
            assert client.echo() == b"hello"
            assert running.service.connections[-1].certificate_user == ""


def test_names_and_addresses_of_the_server_are_in_its_certificate(certs: Path) -> None:
    ca, server = files_of(certs, "ca"), files_of(certs, "server-broker.example")
    with running_tls(server) as running:
        for host in ("broker.example", "10.0.0.5", "localhost", HOST):
            context = strict(trusting(ca))
            with connected(running.port, None) as client, context.wrap_socket(client.sock, server_hostname=host):
                pass
        with (
            connected(running.port, None) as client,
            pytest.raises(ssl.SSLCertVerificationError, match="not valid for"),
        ):
            trusting(ca).wrap_socket(client.sock, server_hostname="other.example")


def test_a_user_cannot_pretend_to_be_a_server(certs: Path) -> None:
    ca, alice = files_of(certs, "ca"), files_of(certs, "user-alice")
    context = trusting(ca)
    context.check_hostname = False
    with running_tls(alice) as running, pytest.raises(ssl.SSLCertVerificationError, match="purpose"):
        connected(running.port, context).__enter__()


def test_an_expired_certificate_and_one_of_another_authority_are_refused_on_both_sides(
    certs: Path, tmp_path: Path
) -> None:
    ca, server, alice = (files_of(certs, name) for name in ("ca", "server-broker.example", "user-alice"))
    long_ago_ms = time.time_ns() // 1_000_000 - 40 * DAY_MS
    old_ca, old_server, old_user = (
        one.files for one in issue(tmp_path, [server_request(["localhost"]), user_request("alice")], long_ago_ms, 30)
    )
    with running_tls(old_server) as running:
        with pytest.raises(ssl.SSLCertVerificationError, match="expired"):
            connected(running.port, trusting(old_ca)).__enter__()
        with pytest.raises(ssl.SSLCertVerificationError, match="unable to get local issuer"):
            connected(running.port, trusting(ca)).__enter__()
    for user, issuer in ((old_user, ca), (old_user, old_ca), (alice, old_ca)):
        with running_tls(server, client_ca=str(issuer.certificate), requires_client=True) as running:
            with connected(running.port, trusting(ca, user)) as client, pytest.raises((ssl.SSLError, ConnectionError)):
                client.echo()
            assert running.statistics()["tls_failures"] == 1


def test_a_cluster_accepts_its_own_certificates_and_no_plaintext(certs: Path, tmp_path: Path) -> None:
    ca, server, alice = (files_of(certs, name) for name in ("ca", "server-broker.example", "user-alice"))
    settings = {
        "tls.mode": "enforcing", "tls.cert": server.certificate, "tls.key": server.key,
        "tls.ca": ca.certificate, "tls.client_ca": ca.certificate, "tls.require_client_cert": "true",
    }  # fmt: skip
    options = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]

    async def names(namesrv: str, tls: ClientTls | bool) -> list[str]:
        async with Admin(namesrv, tls=tls, request_timeout_s=5.0) as admin:
            return [broker.brokerName for broker in await admin.brokers()]

    with serving(tmp_path / "data", *options) as running:
        tls = ClientTls(str(ca.certificate), str(alice.certificate), str(alice.key))
        assert asyncio.run(names(running.namesrv, tls)) == ["broker-a"]
        for refused in (False, ClientTls(str(ca.certificate))):
            with pytest.raises(LaterMQError):
                asyncio.run(names(running.namesrv, refused))


def test_files_are_private_and_never_overwritten(certs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert certs.stat().st_mode & 0o777 == 0o700
    before = {file.name: file.read_bytes() for file in certs.iterdir()}
    assert all(file.stat().st_mode & 0o777 == 0o600 for file in certs.iterdir())
    assert main(["cert", "new", str(certs), "--user", "bob", "--user", "alice"]) == 2
    assert "user-alice.pem exists, and is not overwritten" in capsys.readouterr().err
    assert {file.name: file.read_bytes() for file in certs.iterdir()} == before
    assert main(["cert", "new", str(certs), "--user", "carol"]) == 0  # the authority is used again
    assert {file.name for file in certs.iterdir()} - set(before) == {"user-carol.pem", "user-carol.key"}
    assert (certs / "ca.key").read_bytes() == before["ca.key"]
    printed = capsys.readouterr()
    assert "in use before" in printed.out
    assert "tls.client_ca = ca.pem" in printed.err


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ((), "specify --server or --user"),
        (("--server", "broker:10911"), "neither a host name nor an address"),
        (("--server", ","), "at least one host"),
        (("--user", "a/b"), "The username must have"),
        (("--user", "u" * 65), "1–64 characters"),
        (("--user", ""), "1–64 characters"),
        (("--user", "latermq-inner"), "reserved"),
        (("--user", "a b", "--user", "a*b"), "two certificates would be written"),
    ],
)
def test_what_cannot_be_certified_is_refused_before_anything_is_written(
    tmp_path: Path, arguments: tuple[str, ...], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cert", "new", str(tmp_path / "certs"), *arguments]) == 2
    assert problem in capsys.readouterr().err
    assert not list(tmp_path.rglob("*.pem"))


@pytest.mark.parametrize("damage", ["no key", "another key", "no PEM"])
def test_an_authority_that_cannot_sign_is_named(
    tmp_path: Path, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder in ("one", "two"):
        assert main(["cert", "new", str(tmp_path / folder), "--user", "alice"]) == 0
    key = tmp_path / "one" / "ca.key"
    if damage == "no key":
        key.unlink()
    else:
        key.write_bytes((tmp_path / "two" / "ca.key").read_bytes() if damage == "another key" else b"?")
    assert main(["cert", "new", str(tmp_path / "one"), "--user", "bob"]) == 2
    assert "ca." in capsys.readouterr().err
    assert not (tmp_path / "one" / "user-bob.pem").exists()
