"""A data directory that cannot be written to, told before anything is started."""

import os
from pathlib import Path

from latermq.errors import ConfigError


def require_writable(data: Path) -> None:
    """Make the directory where it is missing; raise with what to do where it cannot be used."""
    try:
        data.mkdir(0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"cannot create the data directory {data}: {error.strerror}", hint="Choose a writable one with --data"
        ) from None
    if not os.access(data, os.W_OK | os.X_OK):
        raise ConfigError(
            f"the data directory {data} is not writable", hint=f"Give uid {os.getuid()} access to it, or name another"
        )
