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
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from latermq.errors import LaterMQError
from latermq.pipeline.timeline.delta_reads import LOG, delta_reads
from latermq.pipeline.timeline.durable import sync_folder
from latermq.pipeline.timeline.root import Root, file_errors
from latermq.pipeline.timeline.table_sync import UNSYNCED_COMMITS

_log = logging.getLogger("latermq.pipeline")

_PARQUET = b"PAR1"
_POINTER = "_last_checkpoint"
_HADOOP_HEADER = b"crc\0"


def remove_torn_commits(root: Root, address: str) -> list[int]:
    """Move all commits from the first torn one on to `torn/` below the root. Returns their versions.

    Concurrent writers do not look like torn commits: data is written before the commit that names it. Checkpoints that
    no reader needs are moved too if they are damaged.
    """
    if not root.is_local:
        return []
    table = Path(address)
    aside = Path(root.path) / "torn" / f"{table.name}-{time.time_ns() // 1_000_000}"
    torn = _move_torn_commits(table, aside)
    with file_errors(f"reading {table}"):
        _move_unusable_checkpoint(root, table, aside)
    return torn


def _move_unusable_checkpoint(root: Root, table: Path, aside: Path) -> None:
    """Set the newest checkpoint aside if the table cannot be opened with it, but possibly without it.

    Arrow reads some damaged checkpoints that delta-rs does not.
    """
    versions = _versions(table)
    newest = next((version for version in reversed(versions) if _checkpoint(table, version).is_file()), None)
    if newest is None or not _is_covered(table, versions, newest):
        return
    try:
        with delta_reads(root, str(table)):
            DeltaTable(table).get_add_actions()
    except LaterMQError:
        _set_aside(_checkpoint(table, newest), aside)
        _drop_torn_pointers(table, [], aside)


def _set_aside(checkpoint: Path, aside: Path) -> None:
    aside.mkdir(parents=True, exist_ok=True)
    checkpoint.replace(aside / checkpoint.name)
    _log.warning("%s is damaged: moved to %s; the table is read without it", checkpoint, aside)


def _move_torn_commits(table: Path, aside: Path) -> list[int]:
    with file_errors(f"reading {table}"):
        versions = _versions(table)
        _drop_torn_pointers(table, versions, aside)
        for version in versions[-UNSYNCED_COMMITS:]:
            _drop_torn_checksums_of(table, version)
        first = _first_torn(table, versions[-UNSYNCED_COMMITS:])
        if first is None:
            return []
        torn = [version for version in versions if version >= first]
        aside.mkdir(parents=True, exist_ok=True)
        # Move the last commit first. A crash in between leaves a table that is shorter but intact, or as torn as
        # before.
        for version in [*reversed(torn), *([first] if first not in torn else [])]:
            for path in _files_of(table, version):
                path.replace(aside / path.name)
        _drop_torn_pointers(table, [], aside)
        sync_folder(table / LOG)
    _log.warning("%s was damaged by a power cut: commits from version %d on were moved to %s", table, first, aside)
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

    @cache
    def covered() -> int:  # read only if something is wrong
        return _newest_checkpoint(table, versions)

    for version in reversed(versions):
        if after != version + 1 and after - 1 > covered():
            first = max(version, covered()) + 1  # this commit's name was lost, but a later one's was not
        after = version
        actions = _actions(table / LOG / f"{version:020d}.json")
        # What a checkpoint contains is not read from its commit.
        is_unreadable = actions is None and version > covered()
        if is_unreadable or any(not _is_intact(table, one["add"], removed) for one in actions or () if "add" in one):
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


def _is_readable(file: Path) -> bool:
    """Whether every page of a Parquet file can be read."""
    try:
        pq.read_table(file, page_checksum_verification=True)
    except (pa.ArrowException, OSError, ValueError):
        return False
    return True


def _is_parquet(file: Path) -> bool:
    """Whether the file has Parquet's magic bytes at both ends. Unwritten blocks read as zeros."""
    with file.open("rb") as stream:
        if stream.read(4) != _PARQUET:
            return False
        stream.seek(-4, 2)
        return stream.read(4) == _PARQUET


def _drop_torn_pointers(table: Path, versions: list[int], aside: Path) -> None:
    """Set unreadable checkpoints aside, unless the table cannot be read without them."""
    log = table / LOG
    for version in versions[-UNSYNCED_COMMITS:]:
        checkpoint = _checkpoint(table, version)
        if checkpoint.is_file():
            _drop_torn_checksums(checkpoint)
            if not _is_readable(checkpoint) and _is_covered(table, versions, version):
                _set_aside(checkpoint, aside)
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


def _newest_checkpoint(table: Path, versions: list[int]) -> int:
    """The version of the newest readable checkpoint; -1 if there is none."""
    found = (version for version in reversed(versions) if _checkpoint(table, version).is_file())
    return next((version for version in found if _is_readable(_checkpoint(table, version))), -1)


def _checkpoint(table: Path, version: int) -> Path:
    return table / LOG / f"{version:020d}.checkpoint.parquet"


def _is_covered(table: Path, versions: list[int], version: int) -> bool:
    """Whether all commits from the previous checkpoint, or from the first, up to this version exist."""
    known = set(versions)
    while version in known:
        version -= 1
        if version < 0 or _checkpoint(table, version).is_file():
            return True
    return False


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
