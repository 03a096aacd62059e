"""Durability of files below a local root: syncs their bytes and every folder on their path."""

import errno
import os
from pathlib import Path


def sync_file(path: str | Path) -> None:
    """Wait until a file's bytes are on disk, whichever process wrote them."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_folder(path: str | Path) -> None:
    """Wait until the names in a folder are on disk."""
    try:
        sync_file(path)
    except OSError as error:
        # Some network file systems do not support this. Their names are durable on creation.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise


def sync_folders(folder: str | Path, root: str | Path) -> None:
    """Sync a folder and all its parents, up to the one that holds the root: any of them may be new."""
    at, top = Path(folder), Path(root)
    while at != top and top in at.parents:
        sync_folder(at)
        at = at.parent
    sync_folder(top)
    try:
        sync_folder(top.parent)
    except PermissionError:  # unreadable to this user, so the root existed before
        return
