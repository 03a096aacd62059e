"""Reachability of a port: only from this machine, or also from the network, where requests need users."""

import threading
from collections.abc import Callable

import structlog

from latermq.addresses import is_loopback
from latermq.config import AccessConfig
from latermq.errors import ConfigError

REMIND_EVERY_S = 3600.0
HINT = "Set access.enabled, or let only trusted machines reach it: it serves every request without a user"
_log = structlog.get_logger(__name__)


def is_exposed(access: AccessConfig, host: str) -> bool:
    """Whether other machines can reach a port whose requests need no user."""
    return not is_loopback(host) and not (access.enabled and access.mode == "enforce")


def require_users(access: AccessConfig, part: str, host: str, command: str, data: str = "DIR") -> None:
    """Raise ConfigError if a port would be exposed, unless the operator wants that. `command` starts the part."""
    if access.insecure or not is_exposed(access, host):
        return
    why = "users are not checked" if not access.enabled else "access.mode is log, so every request is served"
    raise ConfigError(
        f"other machines could use the {part} at {host or 'every address'}: {why}",
        hint=f"Create a user: `latermq user create admin --super --save admin.secret --data {data}`. Then check users: "
        f"`latermq {command} … --set access.enabled=true --set access.mode=enforce`. Or add --insecure if only trusted "
        "machines can reach it",
    )


def remind(part: str, host: str, is_over: Callable[[float], bool]) -> None:
    """Warn at once and then every hour, until `is_over`, which waits for some seconds, returns True."""
    while True:
        _log.warning("other machines can use this port without a user", port_of=part, host=host, hint=HINT)
        if is_over(REMIND_EVERY_S):
            return


def start_reminder(access: AccessConfig, part: str, host: str) -> None:
    """Warn while a process runs, if its port is exposed."""
    if is_exposed(access, host):
        never = threading.Event()
        threading.Thread(target=remind, args=(part, host, never.wait), name="latermq-reminder", daemon=True).start()
