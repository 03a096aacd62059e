"""Certificates that are replaced while a server runs."""

import ssl
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from latermq.config import TlsConfig
from latermq.errors import ConfigError
from latermq.tls.certificates import CertificateFiles
from latermq.tls.reloading import ReloadedContext
from latermq.tls.server_certificates import open_context
from tests.support.tls_scene import connected, own_certificate, running_tls, trusting


@pytest.fixture
def files(tmp_path: Path) -> CertificateFiles:
    return own_certificate(tmp_path / "old")


def opened(files: CertificateFiles) -> ReloadedContext:
    return open_context(files, TlsConfig(), settings="tls.cert and tls.key", protocols=())


def replace(files: CertificateFiles, new: CertificateFiles) -> None:
    new.certificate.replace(files.certificate)
    new.key.replace(files.key)


def test_a_new_certificate_is_used_when_its_files_have_settled(files: CertificateFiles, tmp_path: Path) -> None:
    contexts = opened(files)
    first = contexts.current
    replace(files, own_certificate(tmp_path / "new"))
    assert not contexts.check(), "it may still be written"
    assert contexts.check()
    assert contexts.current is not first
    assert not contexts.check()
    assert contexts.reloads == 1


def test_a_certificate_without_its_key_waits_for_it(files: CertificateFiles, tmp_path: Path) -> None:
    """Two files cannot be replaced in one step."""
    contexts, new = opened(files), own_certificate(tmp_path / "new")
    new.certificate.replace(files.certificate)
    assert not contexts.check()
    new.key.replace(files.key)
    assert not contexts.check()
    assert contexts.check()
    assert contexts.failed_reloads == 0


@pytest.mark.parametrize(
    ("content", "reason"),
    [(b"", "pem lib"), (b"not a certificate", "pem lib"), (None, "No such file or directory")],
    ids=["empty", "no certificate", "missing"],
)
def test_a_broken_file_keeps_the_old_certificate_and_is_reported_once(
    files: CertificateFiles, tmp_path: Path, content: bytes | None, reason: str
) -> None:
    contexts, first = opened(files), files.certificate.read_bytes()
    current = contexts.current
    if content is None:
        files.certificate.unlink()
    else:
        files.certificate.write_bytes(content)
    with capture_logs() as lines:
        assert not any(contexts.check() for _ in range(5))
    assert contexts.current is current
    assert [(line["event"], reason in line["reason"]) for line in lines] == [("the new certificate is not used", True)]
    files.certificate.write_bytes(first)
    contexts.check()
    assert contexts.check(), "what is valid again is used again"


def test_a_key_of_another_certificate_keeps_the_old_one(files: CertificateFiles, tmp_path: Path) -> None:
    contexts = opened(files)
    current = contexts.current
    own_certificate(tmp_path / "other").key.replace(files.key)
    with capture_logs() as lines:
        assert not any(contexts.check() for _ in range(3))
    assert contexts.current is current
    assert ["key values mismatch" in line["reason"] for line in lines] == [True]


def test_connections_keep_their_certificate_and_new_ones_get_the_new(files: CertificateFiles, tmp_path: Path) -> None:
    old, new = trusting(files), own_certificate(tmp_path / "new")
    trusted = trusting(new)
    contexts = opened(files)
    with running_tls(files, contexts=contexts) as server, connected(server.port, old) as client:
        assert client.echo() == b"hello"
        replace(files, new)
        assert [contexts.check(), contexts.check()] == [False, True]
        assert client.echo() == b"hello"
        with pytest.raises(ssl.SSLCertVerificationError), connected(server.port, old):
            pass
        with connected(server.port, trusted) as other:
            assert other.echo() == b"hello"


def test_a_key_with_a_password_is_refused_and_not_asked_for(files: CertificateFiles) -> None:
    from cryptography.hazmat.primitives import serialization

    key = serialization.load_pem_private_key(files.key.read_bytes(), None)
    files.key.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    with pytest.raises(ConfigError, match="the key needs a password"):
        opened(files)


def test_a_broken_authority_of_clients_is_named(files: CertificateFiles, tmp_path: Path) -> None:
    empty = tmp_path / "empty.pem"
    empty.touch()
    with pytest.raises(ConfigError, match=r"and the authority .*empty\.pem: ") as caught:
        open_context(files, TlsConfig(client_ca=str(empty)), settings="tls.cert and tls.key", protocols=())
    assert "tls.client_ca" in (caught.value.hint or "")
