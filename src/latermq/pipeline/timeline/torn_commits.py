"""Removal of Delta commits that a power cut left torn on a local disk, when a driver starts.

A commit names its data files, and Delta syncs neither. After a power cut a commit may exist without its files, or be
empty, and then no reader can open the table. Everything that a broker knows as ingested was synced (table_sync.py). A
torn commit is therefore one of the last few, and the broker's log still holds its entries.
"""

import json
import logging
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from latermq.pipeline.timeline.durable import sync_folder
from latermq.pipeline.timeline.root import Root, file_errors
from latermq.pipeline.timeline.table_sync import LOG, UNSYNCED_COMMITS

_log = logging.getLogger("latermq.pipeline")

_PARQUET = b"PAR1"
_POINTER = "_last_checkpoint"
_HADOOP_HEADER = b"crc\0"


def remove_torn_commits(root: Root, address: str) -> list[int]:
    """Move all commits from the first torn one on to `torn/` below the root. Returns their versions.

    Concurrent writers do not look like torn commits: data is written before the commit that names it.
    """
    if not root.is_local:
        return []
    table = Path(address)
    with file_errors(f"reading {table}"):
        versions = _versions(table)
        _drop_torn_pointers(table, versions)
        for version in versions[-UNSYNCED_COMMITS:]:
            _drop_torn_checksums_of(table, version)
        first = _first_torn(table, versions[-UNSYNCED_COMMITS:])
        if first is None:
            return []
        torn = [version for version in versions if version >= first]
        folder = Path(root.path) / "torn" / f"{table.name}-{time.time_ns() // 1_000_000}"
        folder.mkdir(parents=True)
        # Move the last commit first. A crash in between leaves a table that is shorter but intact, or as torn as
        # before.
        for version in [*reversed(torn), *([first] if first not in torn else [])]:
            for path in _files_of(table, version):
                path.replace(folder / path.name)
        _drop_torn_pointers(table, [])
        sync_folder(table / LOG)
    _log.warning("%s was damaged by a power cut: commits from version %d on were moved to %s", table, first, folder)
    return torn


def newest_intact_version(root: Root, address: str) -> int | None:
    """The last version before a torn commit, for readers; None if nothing is torn, or nothing is left."""
    if not root.is_local:
        return None
    table = Path(address)
    with file_errors(f"reading {table}"):
        first = _first_torn(table, _versions(table)[-UNSYNCED_COMMITS:])
    return first - 1 if first else None


def _versions(table: Path) -> list[int]:
    return sorted(int(path.stem) for path in (table / LOG).glob("*.json") if path.stem.isdigit())


def _first_torn(table: Path, versions: list[int]) -> int | None:
    first: int | None = None
    removed: set[str] = set()  # by later commits, so their files may be gone
    after = versions[-1] + 1 if versions else 0
    for version in reversed(versions):
        if after != version + 1:
            first = version + 1  # this commit's name was lost, but a later one's was not
        after = version
        actions = _actions(table / LOG / f"{version:020d}.json")
        if actions is None or any(not _is_intact(table, one["add"], removed) for one in actions if "add" in one):
            first = version
        removed.update(one["remove"]["path"] for one in actions or [] if "remove" in one)
    return first


def _actions(commit: Path) -> list[dict[str, Any]] | None:
    """The actions of a commit; None if it is unreadable."""
    try:
        actions = [json.loads(line) for line in commit.read_bytes().splitlines()]
    except ValueError:
        return None
    return actions if actions and all(isinstance(one, dict) for one in actions) else None


def _is_intact(table: Path, added: dict[str, Any], removed: set[str]) -> bool:
    path = unquote(added["path"])
    if added["path"] in removed or "://" in path:
        return True
    file = table / path
    return file.is_file() and file.stat().st_size == added["size"] and _is_parquet(file)


def _is_parquet(file: Path) -> bool:
    """Whether the file has Parquet's magic bytes at both ends. Unwritten blocks read as zeros."""
    with file.open("rb") as stream:
        if stream.read(4) != _PARQUET:
            return False
        stream.seek(-4, 2)
        return stream.read(4) == _PARQUET


def _drop_torn_pointers(table: Path, versions: list[int]) -> None:
    """Remove unreadable checkpoints. They are not needed while the commits that they cover exist."""
    log = table / LOG
    for version in versions[-UNSYNCED_COMMITS:]:
        checkpoint = log / f"{version:020d}.checkpoint.parquet"
        if checkpoint.is_file():
            _drop_torn_checksums(checkpoint)
            if not (checkpoint.stat().st_size > 8 and _is_parquet(checkpoint)):
                checkpoint.unlink()
    pointer = log / _POINTER
    if pointer.is_file():
        _drop_torn_checksums(pointer)
        try:
            version = int(json.loads(pointer.read_bytes())["version"])
        except (ValueError, KeyError, TypeError):  # it is torn; without it Delta lists the folder
            pointer.unlink()
            return
        if not any(log.glob(f"{version:020d}.checkpoint*")):
            pointer.unlink()


def _drop_torn_checksums_of(table: Path, version: int) -> None:
    """Remove the torn checksum files of a commit and of the files that it added."""
    commit = table / LOG / f"{version:020d}.json"
    _drop_torn_checksums(commit)
    for one in _actions(commit) or ():
        if "add" in one:
            _drop_torn_checksums(table / unquote(one["add"]["path"]))


def _drop_torn_checksums(file: Path) -> None:
    """Remove Hadoop's checksum file if it does not match the data. Hadoop then reads the data without it."""
    sums = file.with_name(f".{file.name}.crc")
    if not sums.is_file() or not file.is_file():
        return
    data = sums.read_bytes()
    step = int.from_bytes(data[4:8], "big")
    expected_bytes = 8 + 4 * -(-file.stat().st_size // step) if step else -1
    if data[:4] != _HADOOP_HEADER or len(data) != expected_bytes or not _first_sum_matches(file, data, step):
        sums.unlink()


def _first_sum_matches(file: Path, data: bytes, step: int) -> bool:
    with file.open("rb") as stream:
        first = stream.read(step)
    return not first or int.from_bytes(data[8:12], "big") == zlib.crc32(first)


def _files_of(table: Path, version: int) -> Iterator[Path]:
    """The files of a commit. The commit itself comes last, because the others are found through it."""
    log = table / LOG
    files = [path for pattern in (f"{version:020d}.*", f".{version:020d}.*") for path in log.glob(pattern)]
    commit = log / f"{version:020d}.json"
    yield from (path for path in files if path != commit)
    if commit.exists():
        yield commit
