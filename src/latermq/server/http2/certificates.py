"""A self-signed certificate, for clients that use TLS but do not verify the server, as RocketMQ's do by default."""

import datetime
import os
from pathlib import Path
from typing import NamedTuple

VALID_DAYS = 3650
_COMMON_NAME = "latermq"
_CLOCK_SKEW = datetime.timedelta(days=1)


class CertificateFiles(NamedTuple):
    """PEM files of a certificate and its private key."""

    certificate: Path
    key: Path


def self_signed(folder: Path, now_ms: int) -> CertificateFiles:
    """Return the certificate in a folder, which is created at the first call."""
    files = CertificateFiles(folder / "certificate.pem", folder / "key.pem")
    if not (files.certificate.exists() and files.key.exists()):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        certificate, key = _create(datetime.datetime.fromtimestamp(now_ms / 1000, datetime.UTC))
        _write(files.key, key)
        _write(files.certificate, certificate)
    return files


def _create(now: datetime.datetime) -> tuple[bytes, bytes]:
    # Imported here: it takes 110 ms, and most starts find the certificate in place.
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
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now + datetime.timedelta(days=VALID_DAYS))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(_COMMON_NAME), x509.DNSName("localhost")]), False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    return (
        certificate.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
    )


def _write(path: Path, content: bytes) -> None:
    """Write a file that only its owner can read, whole or not at all."""
    draft = path.with_suffix(".new")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
