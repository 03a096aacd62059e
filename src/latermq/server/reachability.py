"""Reachability of a port: only from this machine, or also from the network."""

import ipaddress
import socket

import structlog

HINT = "Run it in a private network behind a firewall: this version has no authentication"
_log = structlog.get_logger(__name__)


def is_loopback(host: str) -> bool:
    """Whether a listening address is reachable only from this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        pass
    try:
        found = socket.getaddrinfo(host or None, 0, flags=socket.AI_PASSIVE)
    except OSError:  # listening on it fails and reports the error
        return True
    return all(ipaddress.ip_address(str(address[4][0])).is_loopback for address in found)


def warn_if_reachable(host: str, port: int) -> None:
    """Warn if untrusted clients can reach the port."""
    if not is_loopback(host):
        _log.warning("other machines can reach this port without authentication", host=host, port=port,
                     hint=HINT)  # fmt: skip
