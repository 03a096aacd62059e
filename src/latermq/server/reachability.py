"""Reachability of a port: only from this machine, or also from the network."""

import structlog

from latermq.addresses import is_loopback

HINT = "Run it in a private network behind a firewall: this version has no authentication"
_log = structlog.get_logger(__name__)


def warn_if_reachable(host: str, port: int) -> None:
    """Warn if untrusted clients can reach the port."""
    if not is_loopback(host):
        _log.warning("other machines can reach this port without authentication", host=host, port=port,
                     hint=HINT)  # fmt: skip
