"""Durability of a Delta table's commits on a local disk.

Neither Spark nor Delta syncs the files that it writes. Before a driver reports to a broker that entries are in the
table, so that the broker may delete its log, it waits for `TableSync.sync`. Files in an object store are durable once
written.
"""

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

from latermq.pipeline.timeline.delta_reads import LOG
from latermq.pipeline.timeline.durable import sync_file, sync_folder, sync_folders
from latermq.pipeline.timeline.root import Root, file_errors

# More commits than a driver ever has in flight: one batch per broker, and those of a compaction between two syncs.
UNSYNCED_COMMITS = 100


class TableSync:
    """Tracks how far one table is on disk. Reads only the commits since the last call. Any thread may call it."""

    def __init__(self, root: Root, address: str) -> None:
        self._root = root
        self._table = Path(address) if root.is_local else None
        self._next: int | None = None  # the first version not known to be on disk
        self._lock = threading.Lock()

    def sync(self) -> None:
        """Return when every existing commit is on disk, together with the files it added."""
        if self._table is None or not (self._table / LOG).is_dir():
            return
        with self._lock, file_errors(f"syncing {self._table}"):
            if self._next is None:
                # The previous driver may not have synced its last commits.
                self._next = max(0, newest_version(self._table) + 1 - UNSYNCED_COMMITS)
            self._next = _sync_from(self._table, self._next)
            sync_folders(self._table, self._root.path)


class TableSyncs:
    """The syncs of all tables of a root."""

    def __init__(self, root: Root) -> None:
        self.timeline = TableSync(root, root.timeline)
        self.archive = TableSync(root, root.archive)


def _sync_from(table: Path, version: int) -> int:
    """Sync the commits from this version on, data before its commit. Returns the first version that does not exist."""
    log = table / LOG
    first = version = _first_existing(table, version)
    while (commit := log / f"{version:020d}.json").exists():
        folders = set()
        for path in added_files(commit, table):
            _sync_with_checksum(path)
            folders.add(path.parent)
        for folder in folders:
            sync_folder(folder)
        # A checkpoint replaces all commits before it, which may be removed once it exists.
        for name in (f"{version:020d}.checkpoint.parquet", f"{version:020d}.crc", commit.name):
            _sync_with_checksum(log / name)
        version += 1
    if version > first:
        _sync_with_checksum(log / "_last_checkpoint")
        sync_folder(log)
    return version


def _first_existing(table: Path, version: int) -> int:
    """This version, or the first existing one after it. Delta removes old commits that a checkpoint covers."""
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
    """The version of the last commit; -1 if there is none."""
    return max(_versions(table), default=-1)


def _versions(table: Path) -> Iterator[int]:
    return (int(path.stem) for path in (table / LOG).glob("*.json") if path.stem.isdigit())


def _sync_with_checksum(path: Path) -> None:
    """Sync a file and Hadoop's checksum file next to it. With a torn checksum file Hadoop cannot read the data."""
    for one in (path, path.with_name(f".{path.name}.crc")):
        try:
            sync_file(one)
        except FileNotFoundError:  # the file is optional, or a later commit has removed it
            continue
