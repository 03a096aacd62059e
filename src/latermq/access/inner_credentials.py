"""The secret with which LaterMQ's own processes sign: a small file that a broker creates at its first start.

Who can read it may do everything, so it is also the way back in after a lock-out.
"""

import os
from pathlib import Path

from latermq.config import AccessConfig
from latermq.errors import ConfigError
from latermq.secret_file import create_once

FILE_NAME = "latermq.inner"
MIN_CHARS = 32
_MAX_BYTES = 4096
_OTHER_USERS = 0o077


def inner_file(config: AccessConfig, data: Path | None) -> Path | None:
    """The file with the secret. None: this process has none, and signs as the user of its environment, if at all.

    A process that does not check users may have one nevertheless, to reach servers that do.
    """
    if config.inner_file:
        return Path(config.inner_file).absolute()
    return data.absolute() / FILE_NAME if config.enabled and data is not None else None


def load_inner_secret(path: Path) -> str:
    """Read the secret."""
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            data = file.read(_MAX_BYTES + 1).strip()
    except OSError as error:
        raise ConfigError(
            f"cannot read the inner secret {path}: {error.strerror}",
            hint="A broker creates it in its data directory; copy that file, and set access.inner_file to its path",
        ) from None
    if mode & _OTHER_USERS:
        raise ConfigError(f"other users of this machine may read the inner secret {path}", hint=f"chmod 600 {path}")
    text = data.decode("ascii", "replace")
    if not MIN_CHARS <= len(text) <= _MAX_BYTES or not text.isalnum():
        raise ConfigError(
            f"the inner secret {path} must have {MIN_CHARS}–{_MAX_BYTES} letters and digits",
            hint="Remove the file; a broker creates a new one at its next start",
        )
    return text


def load_or_create_inner_secret(path: Path) -> str:
    """Read the secret, and create the file if it is missing. Of several processes, only one creates it."""
    try:
        create_once(path)
    except OSError as error:
        raise ConfigError(
            f"cannot create the inner secret {path}: {error.strerror}",
            hint="Set access.inner_file to a path that this process can write",
        ) from None
    return load_inner_secret(path)
