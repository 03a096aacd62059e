"""Small files with a secret that several processes share: created once, readable only by their owner."""

import contextlib
import glob
import os
import secrets
from pathlib import Path

_RANDOM_BYTES = 32


def create_once(path: Path) -> None:
    """Create a file with a random secret, unless it exists. Raises OSError.

    Creation is atomic. If several processes start together, only one creates the file. The draft of a killed process is
    removed, as it may be a second name of the secret.
    """
    if not path.exists():
        _create(path)
    for draft in path.parent.glob(f"{glob.escape(path.name)}.*.draft"):
        with contextlib.suppress(OSError):
            draft.unlink()


def _create(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{secrets.token_hex(4)}.draft")
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(secrets.token_hex(_RANDOM_BYTES) + "\n")
        file.flush()
        os.fsync(file.fileno())
    try:
        _publish(draft, path)
    except (FileExistsError, FileNotFoundError):
        if not path.exists():  # otherwise another process has created it, and may have removed this draft
            raise
    _sync_folder(path.parent)


def _publish(draft: Path, path: Path) -> None:
    try:
        os.link(draft, path)
    except (FileExistsError, FileNotFoundError):
        raise
    except OSError:  # a file system without hard links
        draft.replace(path)


def _sync_folder(folder: Path) -> None:
    """Make the new name survive a crash of the machine: others may have a copy of the secret."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
