"""TLS of a client: which servers it trusts, and what certificate it has."""

import logging
import os
import ssl
import threading
from collections.abc import Mapping
from pathlib import Path

from latermq.config import TlsConfig
from latermq.errors import ConfigError
from latermq.setting_sources import variable_of
from latermq.tls.contexts import reason_of
from latermq.tls.reloading import Stamps, stamps_of

CONNECT, CA, CERT, KEY, MODE = (variable_of("tls", key) for key in ("connect", "ca", "cert", "key", "mode"))
VARIABLES = (CONNECT, CA, CERT, KEY)
_log = logging.getLogger("latermq.client")


class ClientTls:
    """Verifies the chain and the host name of servers. All connections of a client may share one.

    `ca` is a PEM file with the authorities of servers; empty: those of the system. `cert` and `key` are PEM files with
    the certificate that the client presents; empty: none.
    """

    def __init__(self, ca: str = "", cert: str = "", key: str = "") -> None:
        if bool(cert) != bool(key):
            raise ConfigError("a client certificate needs both the certificate and its key")
        self.ca = ca
        self.cert = cert
        self.key = key
        self._files = [file for file in (ca, cert, key) if file]
        self._lock = threading.Lock()
        self._context: ssl.SSLContext | None = None
        self._stamps: Stamps = ()

    def context(self) -> ssl.SSLContext:
        """The context for a new connection, rebuilt if a file has changed. Reads the disk. Raises ConfigError.

        If a changed file cannot be used, the context remains as it is.
        """
        with self._lock:
            stamps = stamps_of(self._files)
            if self._context is None or stamps != self._stamps:
                try:
                    self._context = self._build()
                except OSError as error:
                    reason = f"cannot use the TLS files {', '.join(self._files)}: {reason_of(error)}"
                    if self._context is None:
                        raise ConfigError(reason, hint="They must be PEM files without a password") from None
                    _log.error("%s; the old ones remain in use", reason)
                self._stamps = stamps
            return self._context

    def _build(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.ca or None)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if self.cert:
            context.load_cert_chain(self.cert, self.key, password="")
        return context


def tls_from_environment(environment: Mapping[str, str] = os.environ) -> ClientTls | None:
    """The TLS that the variables ask for: LATERMQ_TLS_CONNECT, _CA, _CERT and _KEY. None: plaintext."""
    connect = environment.get(CONNECT) or "auto"
    if connect not in ("auto", "on", "off"):
        raise ConfigError(f"{CONNECT} must be auto, on or off, not {connect!r}")
    ca = environment.get(CA, "")
    if connect == "off" or (connect == "auto" and not ca and environment.get(MODE) != "enforcing"):
        return None
    return ClientTls(ca, environment.get(CERT, ""), environment.get(KEY, ""))


def chosen_tls(choice: "ClientTls | bool | None") -> ClientTls | None:
    """The TLS of a client: the one that it was given, or with True or without a choice that of the environment."""
    if isinstance(choice, ClientTls):
        return choice
    if choice is None:
        return tls_from_environment()
    return tls_from_environment({**os.environ, CONNECT: "on"}) if choice else None


def own_tls(tls: TlsConfig) -> ClientTls | None:
    """The TLS of connections that a server process opens to name servers and brokers. None: plaintext."""
    return tls_from_environment(as_variables(tls))


def as_variables(tls: TlsConfig) -> dict[str, str]:
    """What makes processes that a server starts, such as Spark's executors, connect as the server does."""
    is_on = tls.connect == "on" or (tls.connect == "auto" and bool(tls.ca or tls.mode == "enforcing"))
    files = {CA: tls.ca, CERT: tls.cert, KEY: tls.key}
    return {
        CONNECT: "on" if is_on else "off",
        **{name: str(Path(file).absolute()) for name, file in files.items() if file},
    }
