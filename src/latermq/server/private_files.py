"""File permissions: keeps new files private, and closes data directories that other users can read."""

import os
import stat
from pathlib import Path

import structlog

from latermq.config import Config

OTHERS = 0o077
SHARED_FOLDER = "pipeline"  # a link of this name leads to a timeline that other users may share
_log = structlog.get_logger(__name__)


def keep_private(config: Config) -> None:
    """Make all files that this process, its children and its libraries create private to its user.

    A timeline outside the data directory may be shared with other users, so the operator's umask then applies. The
    store's own files are still private, since they are created with private permissions.
    """
    if not config.pipeline.timeline:
        os.umask(OTHERS)


def is_open(folder: Path) -> bool:
    """Whether other users have access to a folder."""
    return folder.is_dir() and bool(stat.S_IMODE(folder.stat().st_mode) & OTHERS)


def close_to_others(data: Path) -> None:
    """Remove other users' access to a data directory, which protects everything below it.

    An earlier version or an operator may have created it with access for all. Targets of links, for example on another
    disk, are closed separately.
    """
    linked = [path for path in data.iterdir() if path.is_symlink() and path.name != SHARED_FOLDER]
    for folder in (data, *linked):
        if not is_open(folder):
            continue
        mode = stat.S_IMODE(folder.stat().st_mode)
        try:
            folder.chmod(mode & ~OTHERS)
        except OSError as error:
            _log.warning(
                "other users can read the data directory",
                folder=str(folder),
                mode=f"{mode:o}",
                reason=error.strerror,
                hint=f"Make uid {os.getuid()} its owner, or run chmod 700 on it",
            )
        else:
            _log.warning("removed other users' access to the data directory", folder=str(folder), mode=f"{mode:o}")
