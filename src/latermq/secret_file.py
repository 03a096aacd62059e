"""Small files with a secret that several processes share: created once, readable only by their owner."""

import contextlib
import os
import secrets
from pathlib import Path

_RANDOM_BYTES = 32


def create_once(path: Path) -> None:
    """Create a file with a random secret, unless it exists. Raises OSError.

    Creation is atomic. If several processes start together, only one creates the file.
    """
    draft = path.with_name(f"{path.name}.{secrets.token_hex(4)}.draft")
    path.parent.mkdir(parents=True, exist_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(secrets.token_hex(_RANDOM_BYTES) + "\n")
        file.flush()
        os.fsync(file.fileno())
    try:
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)
        draft.unlink()
    except OSError:  # a file system without hard links
        draft.replace(path)
