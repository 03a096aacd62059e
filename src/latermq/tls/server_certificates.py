"""The certificate of a server: the operator's, or a self-signed one in the data directory."""

import socket
from collections.abc import Sequence
from pathlib import Path

import structlog

from latermq.addresses import own_address
from latermq.config import Config, TlsConfig
from latermq.errors import ConfigError
from latermq.tls.certificates import CertificateFiles, self_signed
from latermq.tls.contexts import reason_of, server_context
from latermq.tls.reloading import ReloadedContext

FOLDER = "tls"
_ANY_HOST = ("", "0.0.0.0", "::")
_log = structlog.get_logger(__name__)


def configured_certificate(tls: TlsConfig) -> CertificateFiles | None:
    """The certificate of the operator. None if there is none."""
    return CertificateFiles(Path(tls.cert), Path(tls.key)) if tls.cert else None


def self_signed_certificate(config: Config, data: Path, now_ms: int) -> CertificateFiles:
    """The certificate in a data directory, which is created at the first call. Raises ConfigError."""
    folder = data.absolute() / FOLDER
    is_new = not folder.exists()
    try:
        files = self_signed(folder, now_ms, _own_names(config))
    except OSError as error:
        raise ConfigError(
            f"cannot create a certificate in {folder}: {error.strerror or error}",
            hint="Set tls.cert and tls.key, or tls.mode to disabled",
        ) from None
    if is_new:
        _log.info(
            "self-signed certificate created",
            certificate=str(files.certificate),
            hint="Clients that verify servers need this file as their authority; `latermq cert new` makes a real one",
        )
    return files


def open_context(
    files: CertificateFiles, tls: TlsConfig, *, settings: str, protocols: Sequence[str], asks_clients: bool = True
) -> ReloadedContext:
    """The context for a certificate, which follows its files. Raises ConfigError, which names the `settings`."""
    client_ca = tls.client_ca if asks_clients else ""
    paths = [str(files.certificate), str(files.key), *([client_ca] if client_ca else [])]
    try:
        return ReloadedContext(
            paths,
            lambda: server_context(
                paths[0],
                paths[1],
                client_ca=client_ca,
                requires_client=tls.require_client_cert,
                protocols=protocols,
            ),
        )
    except OSError as error:
        authority = f" and the authority {client_ca}" if client_ca else ""
        raise ConfigError(
            f"cannot use the certificate {files.certificate} with the key {files.key}{authority}: {reason_of(error)}",
            hint=f"Check {settings}, which must be PEM files without a password"
            + (", and tls.client_ca" if client_ca else ""),
        ) from None


def open_web_context(files: CertificateFiles | None, tls: TlsConfig, *, setting: str) -> ReloadedContext:
    """The context of a port for HTTP, which asks for no certificates of clients. Raises ConfigError."""
    if files is None:
        raise ConfigError(
            f"{setting} is set, and there is no certificate",
            hint="Set tls.cert and tls.key; `latermq cert new` makes a certificate",
        )
    return open_context(files, tls, settings="tls.cert and tls.key", protocols=("http/1.1",), asks_clients=False)


def _own_names(config: Config) -> list[str]:
    """The names at which clients may reach this machine."""
    hosts = {config.server.host, config.broker.advertise_host, config.proxy.host, config.http.host}
    if not hosts.isdisjoint(set(_ANY_HOST) - {""}):
        hosts.add(own_address())
    return ["127.0.0.1", "::1", socket.gethostname(), *sorted(hosts - set(_ANY_HOST))]
