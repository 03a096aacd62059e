"""A small authority for the certificates of one cluster: of its servers, and of users who connect with mutual TLS."""

import contextlib
import datetime
import ipaddress
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from latermq.errors import ConfigError
from latermq.tls.certificates import CLOCK_SKEW, CertificateFiles, alternative_names, locked

AUTHORITY_DAYS = 3650
MAX_DAYS = 3650
MAX_USER_CHARS = 64  # of a common name (RFC 5280, ub-common-name)
LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")  # the parts of one `serve` connect to each other there
_IS_HOST_NAME = re.compile(r"(?=.{1,253}$)(\*\.)?[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?").fullmatch
# File names are printed and typed: letters and digits of any script, and characters that no shell interprets.
_UNSAFE = re.compile(r"[^\w.@+=,-]")


class Issued(NamedTuple):
    """A certificate that was made, or the authority that is in use."""

    files: CertificateFiles
    subject: str  # what it is for, in words
    until: datetime.datetime
    is_new: bool


class CertificateRequest(NamedTuple):
    """What a certificate is to be made for: a server with its hosts, or a user."""

    hosts: tuple[str, ...] = ()
    user: str = ""

    @property
    def name(self) -> str:
        """The name of its files, without the suffix."""
        kind, subject = ("user", self.user) if self.user else ("server", self.hosts[0])
        return f"{kind}-{_UNSAFE.sub('-', subject)}"

    @property
    def subject(self) -> str:
        """What it is for, in words."""
        return f"user {self.user}" if self.user else f"server {', '.join(self.hosts)}"


def server_request(hosts: Sequence[str]) -> CertificateRequest:
    """A request for a server at these names and addresses. Raises ConfigError."""
    for host in hosts:
        if not _is_host(host):
            raise ConfigError(
                f"{host!r} is neither a host name nor an address",
                hint="Write --server HOST or --server HOST,ADDRESS, without ports",
            )
    if not hosts:
        raise ConfigError("a server needs at least one host name or address")
    return CertificateRequest(hosts=tuple(dict.fromkeys(hosts)))


def user_request(name: str) -> CertificateRequest:
    """A request for a user. Raises ConfigError."""
    if not 0 < len(name) <= MAX_USER_CHARS:
        raise ConfigError(f"the name of a user in a certificate must have 1–{MAX_USER_CHARS} characters")
    return CertificateRequest(user=name)


def issue(folder: Path, requests: Sequence[CertificateRequest], now_ms: int, days: int) -> list[Issued]:
    """Make certificates in a folder, whose authority is created at the first call, and comes first in the result.

    Nothing is overwritten: if a file exists, none is created. Raises ConfigError and OSError.
    """
    now = datetime.datetime.fromtimestamp(now_ms / 1000, datetime.UTC).replace(microsecond=0)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with locked(folder):
        authority_files = _files(folder, "ca")
        planned = [_files(folder, request.name) for request in requests]
        _require_absent([file for files in planned for file in files])
        is_new = not any(file.exists() for file in authority_files)
        if is_new:
            _create_authority(authority_files, now)
        certificate, key = _read_authority(authority_files, now)
        issued = [Issued(authority_files, "authority", certificate.not_valid_after_utc, is_new)]
        until = min(now + datetime.timedelta(days=days), certificate.not_valid_after_utc)
        for request, files in zip(requests, planned, strict=True):
            _sign(files, request, certificate, key, now, until)
            issued.append(Issued(files, request.subject, until, is_new=True))
    return issued


def _files(folder: Path, name: str) -> CertificateFiles:
    return CertificateFiles(folder / f"{name}.pem", folder / f"{name}.key")


def _is_host(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        pass
    else:
        return True
    try:
        return _IS_HOST_NAME(host if host.isascii() else host.encode("idna").decode()) is not None
    except UnicodeError:
        return False


def _require_absent(files: Sequence[Path]) -> None:
    seen: set[Path] = set()
    for file in files:
        if file in seen:
            raise ConfigError(f"two certificates would be written to {file}", hint="Make them in different folders")
        seen.add(file)
        if file.exists() or file.is_symlink():
            raise ConfigError(
                f"{file} exists, and is not overwritten",
                hint="To renew a certificate, move the old files away, or make the new ones in another folder with a "
                "copy of ca.pem and ca.key",
            )


def _create_authority(files: CertificateFiles, now: datetime.datetime) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    # Distinct names: clients that trust several authorities look them up by name.
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"LaterMQ CA {os.urandom(4).hex()}")])
    usage = _key_usage(signs_certificates=True)
    certificate = (
        _builder(name, name, key, now, now + datetime.timedelta(days=AUTHORITY_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .sign(key, hashes.SHA256())
    )
    _write(files, certificate, key)


def _read_authority(
    files: CertificateFiles, now: datetime.datetime
) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    try:
        certificate = x509.load_pem_x509_certificate(files.certificate.read_bytes())
        key = serialization.load_pem_private_key(files.key.read_bytes(), None)
    except FileNotFoundError as error:
        raise ConfigError(
            f"{error.filename} does not exist", hint="An authority needs ca.pem and ca.key; put both there, or neither"
        ) from None
    except (ValueError, TypeError) as error:
        raise ConfigError(
            f"cannot read the authority in {files.certificate.parent}: {error}",
            hint="ca.pem and ca.key must be PEM files without a password",
        ) from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise ConfigError(
            f"{files.key} is not the key of {files.certificate}", hint="Use files that `latermq cert new` has made"
        )
    if certificate.not_valid_after_utc <= now:
        raise ConfigError(
            f"the authority {files.certificate} has expired",
            hint="Make a new one in another folder. While both are in use, tls.ca and tls.client_ca may name a file "
            "with both certificates, one after the other",
        )
    return certificate, key


def _sign(
    files: CertificateFiles,
    request: CertificateRequest,
    authority: x509.Certificate,
    signer: ec.EllipticCurvePrivateKey,
    now: datetime.datetime,
    until: datetime.datetime,
) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    if request.user:
        subject = x509.NameAttribute(NameOID.COMMON_NAME, request.user)
        purposes = [ExtendedKeyUsageOID.CLIENT_AUTH]
    else:
        # A common name would make the server a user of that name. It is a client, too: of name servers and brokers.
        subject = x509.NameAttribute(NameOID.ORGANIZATION_NAME, "LaterMQ server")
        purposes = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    builder = (
        _builder(x509.Name([subject]), authority.subject, key, now, until)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
    )
    if request.hosts:
        builder = builder.add_extension(alternative_names([*request.hosts, *LOCAL_HOSTS]), critical=False)
    _write(files, builder.sign(signer, hashes.SHA256()), key)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    now: datetime.datetime,
    until: datetime.datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(until)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _write(files: CertificateFiles, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    _write_new(files.key, key.private_bytes(encoding, form, serialization.NoEncryption()))
    try:
        _write_new(files.certificate, certificate.public_bytes(encoding))
    except OSError:
        with contextlib.suppress(OSError):
            files.key.unlink()  # half a pair would stand in the way of the next attempt
        raise


def _write_new(path: Path, content: bytes) -> None:
    """Create a file that only its owner can read. An existing one is an error, also one that appears just now."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    except FileExistsError:
        raise ConfigError(f"{path} was created by another program meanwhile", hint="Try again") from None
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
