"""A self-signed certificate, for clients that use TLS but do not verify the server, as RocketMQ's do by default."""

import datetime
import fcntl
import ipaddress
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

# Imported only when a certificate is created: it takes 110 ms, and most starts find the certificate in place.
if TYPE_CHECKING:
    from cryptography import x509

VALID_DAYS = 3650
_COMMON_NAME = "latermq"
CLOCK_SKEW = datetime.timedelta(days=1)


class CertificateFiles(NamedTuple):
    """PEM files of a certificate and its private key."""

    certificate: Path
    key: Path


def self_signed(folder: Path, now_ms: int, hosts: Iterable[str] = ()) -> CertificateFiles:
    """Return the certificate in a folder, which is created at the first call, for `localhost` and these hosts."""
    files = CertificateFiles(folder / "certificate.pem", folder / "key.pem")
    if not (files.certificate.exists() and files.key.exists()):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with locked(folder):  # processes that start together must not mix their files
            if not (files.certificate.exists() and files.key.exists()):
                now = datetime.datetime.fromtimestamp(now_ms / 1000, datetime.UTC)
                certificate, key = _create(now, [_COMMON_NAME, "localhost", *hosts])
                write_private(files.key, key)
                write_private(files.certificate, certificate)
    return files


def alternative_names(hosts: Iterable[str]) -> "x509.SubjectAlternativeName":
    """The names and addresses that a certificate is for, each once."""
    from cryptography import x509

    names: list[x509.GeneralName] = []
    for host in dict.fromkeys(hosts):
        try:
            names.append(x509.IPAddress(ipaddress.ip_address(host)))
        except ValueError:
            names.append(x509.DNSName(host if host.isascii() else host.encode("idna").decode()))
    return x509.SubjectAlternativeName(names)


def write_private(path: Path, content: bytes) -> None:
    """Write a file that only its owner can read, whole or not at all."""
    draft = path.with_name(f"{path.name}.new")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


def _create(now: datetime.datetime, hosts: Iterable[str]) -> tuple[bytes, bytes]:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())  # a signature takes 58 µs, with RSA 560 µs
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, _COMMON_NAME)])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + datetime.timedelta(days=VALID_DAYS))
        .add_extension(alternative_names(hosts), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    return (
        certificate.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
    )


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Wait until no other process works in a folder like this one."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
