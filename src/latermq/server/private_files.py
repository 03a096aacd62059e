"""Files that are nobody else's business: what the processes make, and the data directory of an earlier version."""

import os
import stat
from pathlib import Path

import structlog

from latermq.config import Config

OTHERS = 0o077
SHARED_FOLDER = "pipeline"  # a link of this name leads to a timeline that others may work with
_log = structlog.get_logger(__name__)


def keep_private(config: Config) -> None:
    """Let what this process makes, and what its children and libraries make, be its user's alone.

    Where the timeline lies elsewhere it may be shared with other users, as the operator's umask says. The store's own
    files are private all the same: they are made so.
    """
    if not config.pipeline.timeline:
        os.umask(OTHERS)


def is_open(folder: Path) -> bool:
    """Whether other users may look into a folder."""
    return folder.is_dir() and bool(stat.S_IMODE(folder.stat().st_mode) & OTHERS)


def close_to_others(data: Path) -> None:
    """Close a directory that an earlier version, or an operator, made for all: that protects all that lies below.

    What lies behind a link, as on another disk, is protected by its own folder.
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
                "others can read the data directory",
                folder=str(folder),
                mode=f"{mode:o}",
                reason=error.strerror,
                hint=f"Let uid {os.getuid()} own it, or chmod 700",
            )
        else:
            _log.warning("the data directory was open to others and is closed", folder=str(folder), mode=f"{mode:o}")
