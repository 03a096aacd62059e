"""Creates the data directory, or refuses to start if it is not writable."""

import os
from pathlib import Path

from latermq.errors import ConfigError


def require_writable(data: Path) -> None:
    """Create the directory if it does not exist. Raise ConfigError if it is not usable."""
    try:
        data.mkdir(0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"cannot create the data directory {data}: {error.strerror}", hint="Choose a writable one with --data"
        ) from None
    if not os.access(data, os.W_OK | os.X_OK):
        raise ConfigError(
            f"the data directory {data} is not writable",
            hint=f"Grant uid {os.getuid()} write access, or choose another one with --data",
        )
