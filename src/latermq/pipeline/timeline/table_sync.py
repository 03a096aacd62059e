"""The commits of a Delta table on a local disk, made safe from a power cut.

Neither Spark nor Delta syncs what it writes. Whoever tells a broker that something is in the table, and that its log
may go, waits for `TableSync.sync` first. Files of an object store are safe when they are written.
"""

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

from latermq.pipeline.timeline.durable import sync_file, sync_folder, sync_folders
from latermq.pipeline.timeline.root import Root, file_errors

LOG = "_delta_log"
# More than a driver has ever under way: a batch of each broker, and what a compaction makes of them.
UNSYNCED_COMMITS = 100


class TableSync:
    """How far one table is on disk. It reads only the commits that came since the last time. For any thread."""

    def __init__(self, root: Root, address: str) -> None:
        self._root = root
        self._table = Path(address) if root.is_local else None
        self._next: int | None = None  # the first version that is not known to be on disk
        self._lock = threading.Lock()

    def sync(self) -> None:
        """Return when every commit that is there now is on disk, with the files it added."""
        if self._table is None or not (self._table / LOG).is_dir():
            return
        with self._lock, file_errors(f"syncing {self._table}"):
            if self._next is None:
                # What a driver before this one wrote last it may not have synced.
                self._next = max(0, newest_version(self._table) + 1 - UNSYNCED_COMMITS)
            self._next = _sync_from(self._table, self._next)
            sync_folders(self._table, self._root.path)


class TableSyncs:
    """Those of all tables of a root."""

    def __init__(self, root: Root) -> None:
        self.timeline = TableSync(root, root.timeline)
        self.archive = TableSync(root, root.archive)


def _sync_from(table: Path, version: int) -> int:
    """Sync the commits from this version on, data before what names it; the first version that is not there."""
    log = table / LOG
    first = version = _first_there(table, version)
    while (commit := log / f"{version:020d}.json").exists():
        folders = set()
        for path in added_files(commit, table):
            _sync_with_checksum(path)
            folders.add(path.parent)
        for folder in folders:
            sync_folder(folder)
        # A checkpoint stands for all commits before it, which may be removed once it is there.
        for name in (f"{version:020d}.checkpoint.parquet", f"{version:020d}.crc", commit.name):
            _sync_with_checksum(log / name)
        version += 1
    if version > first:
        _sync_with_checksum(log / "_last_checkpoint")
        sync_folder(log)
    return version


def _first_there(table: Path, version: int) -> int:
    """This version, or the first behind it that is there: Delta removes commits that are old and in a checkpoint."""
    if (table / LOG / f"{version:020d}.json").exists():
        return version
    return min((one for one in _versions(table) if one > version), default=version)


def added_files(commit: Path, table: Path) -> Iterator[Path]:
    """The data files that a commit added."""
    for line in commit.read_bytes().splitlines():
        added = json.loads(line).get("add") if line else None
        if added is not None:
            path = unquote(added["path"])
            if "://" not in path:
                yield table / path


def newest_version(table: Path) -> int:
    """The last commit that is there; -1 where there is none."""
    return max(_versions(table), default=-1)


def _versions(table: Path) -> Iterator[int]:
    return (int(path.stem) for path in (table / LOG).glob("*.json") if path.stem.isdigit())


def _sync_with_checksum(path: Path) -> None:
    """With the checksums that Hadoop keeps beside every file: where they are torn it does not read the file."""
    for one in (path, path.with_name(f".{path.name}.crc")):
        try:
            sync_file(one)
        except FileNotFoundError:  # optional, or removed by a later commit meanwhile
            continue
