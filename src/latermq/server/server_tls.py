"""TLS of one server process: its certificate, which follows its files, and what its ports accept."""

from pathlib import Path

from latermq.clock import Clock
from latermq.config import Config
from latermq.errors import ConfigError
from latermq.server.remoting.tls_port import TlsPort
from latermq.tls.certificates import CertificateFiles
from latermq.tls.contexts import HTTP2
from latermq.tls.front import TlsFront
from latermq.tls.reloading import ReloadedContext
from latermq.tls.server_certificates import (
    configured_certificate,
    open_context,
    open_web_context,
    self_signed_certificate,
)


class ServerTls:
    """Call `watch` and `close` once each."""

    def __init__(self, config: Config, data: Path | None, clock: Clock, *, of_proxy: bool = False) -> None:
        """Without a certificate and a data directory for one, a permissive port has no TLS. Raises ConfigError."""
        self._tls = tls = config.tls
        self._clock = clock
        self.contexts: ReloadedContext | None = None
        self._web_contexts: ReloadedContext | None = None
        is_on = tls.mode != "disabled" and (config.proxy.tls or not of_proxy)
        files = configured_certificate(tls)
        if files is None and data is not None and (is_on or config.metrics.tls):
            files = self_signed_certificate(config, data, clock.now_ms())
        if config.metrics.tls:
            self._web_contexts = open_web_context(files, tls, setting="metrics.tls")
        if not is_on:
            return
        settings = "tls.cert and tls.key"
        if of_proxy and config.proxy.certificate:
            settings = "proxy.certificate and proxy.key"
            files = CertificateFiles(Path(config.proxy.certificate), Path(config.proxy.key))
        if files is not None:
            self.contexts = open_context(files, tls, settings=settings, protocols=HTTP2 if of_proxy else ())
        elif of_proxy or tls.mode == "enforcing":
            raise ConfigError(
                f"the {'proxy' if of_proxy else 'server'} has no certificate",
                hint="Choose a directory for it with --data, or set tls.cert and tls.key",
            )

    def port(self) -> TlsPort:
        """What a port of the remoting protocol accepts."""
        return TlsPort(self._tls.mode, self.contexts, self._tls.handshake_timeout / 1000, self._clock)

    def metrics_front(self) -> TlsFront | None:
        """What the metrics port puts before its connections."""
        if self._web_contexts is None:
            return None
        return TlsFront(self._web_contexts, self._tls.handshake_timeout / 1000, self._clock)

    def watch(self) -> None:
        """Begin to follow the files of the certificate."""
        for contexts in self._all:
            contexts.watch(self._tls.reload_every / 1000)

    async def close(self) -> None:
        """Stop following them."""
        for contexts in self._all:
            await contexts.close()

    def statistics(self) -> dict[str, int]:
        """Counts since the start."""
        return {
            "certificate_reloads": sum(contexts.reloads for contexts in self._all),
            "failed_certificate_reloads": sum(contexts.failed_reloads for contexts in self._all),
        }

    @property
    def _all(self) -> list[ReloadedContext]:
        return [contexts for contexts in (self.contexts, self._web_contexts) if contexts is not None]
