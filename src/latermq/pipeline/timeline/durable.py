"""Making files of a local root safe from a power cut: their bytes, and every folder that leads to them."""

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
        # Some file systems that are mounted over a network cannot: there names are safe when they are made.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise


def sync_folders(folder: str | Path, root: str | Path) -> None:
    """The same for a folder and all above it, up to the one that holds the root: any of them may be new."""
    at, top = Path(folder), Path(root)
    while at != top and top in at.parents:
        sync_folder(at)
        at = at.parent
    sync_folder(top)
    try:
        sync_folder(top.parent)
    except PermissionError:  # not ours to read, so the root was there before us
        return
