"""Commits of a Delta table on a local disk that a power cut left torn: found when a driver starts, and taken out.

A commit names its data files, and neither is synced by Delta, so after a power cut a commit may be there whose files
are not, or be empty itself, and then nobody can open the table. What is known to a broker as ingested was synced
(table_sync.py), so a torn commit is one of the last few and the broker's log still holds what was in it.
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


def take_out_torn_commits(root: Root, address: str) -> list[int]:
    """Move the commits from the first torn one on to `torn/` below the root; which versions they were.

    Of a table that others write to at the same time nothing is torn: data is written before the commit that names it.
    """
    if not root.is_local:
        return []
    table = Path(address)
    with file_errors(f"looking at {table}"):
        versions = _versions(table)
        _drop_torn_pointers(table, versions)
        for version in versions[-UNSYNCED_COMMITS:]:
            _drop_torn_checksums_of(table, version)
        first = _first_torn(table, versions[-UNSYNCED_COMMITS:])
        if first is None:
            return []
        torn = [version for version in versions if version >= first]
        aside = Path(root.path) / "torn" / f"{table.name}-{time.time_ns() // 1_000_000}"
        aside.mkdir(parents=True)
        # The last one first: a death in between leaves a table that is whole as far as it goes, or as torn as it was.
        for version in [*reversed(torn), *([first] if first not in torn else [])]:
            for path in _files_of(table, version):
                path.replace(aside / path.name)
        _drop_torn_pointers(table, [])
        sync_folder(table / LOG)
    _log.warning("%s was torn by a power cut: its commits from version %d on were moved to %s", table, first, aside)
    return torn


def newest_whole_version(root: Root, address: str) -> int | None:
    """The last version before a torn commit, for who only reads; None where nothing is torn, or nothing is left."""
    if not root.is_local:
        return None
    table = Path(address)
    with file_errors(f"looking at {table}"):
        first = _first_torn(table, _versions(table)[-UNSYNCED_COMMITS:])
    return first - 1 if first else None


def _versions(table: Path) -> list[int]:
    return sorted(int(path.stem) for path in (table / LOG).glob("*.json") if path.stem.isdigit())


def _first_torn(table: Path, versions: list[int]) -> int | None:
    first: int | None = None
    removed: set[str] = set()  # by commits that came later: their files may be gone
    after = versions[-1] + 1 if versions else 0
    for version in reversed(versions):
        if after != version + 1:
            first = version + 1  # the name of a commit was lost, and that of a later one was not
        after = version
        actions = _actions(table / LOG / f"{version:020d}.json")
        if actions is None or any(not _is_whole(table, one["add"], removed) for one in actions if "add" in one):
            first = version
        removed.update(one["remove"]["path"] for one in actions or [] if "remove" in one)
    return first


def _actions(commit: Path) -> list[dict[str, Any]] | None:
    """What a commit does; None where it does not read."""
    try:
        actions = [json.loads(line) for line in commit.read_bytes().splitlines()]
    except ValueError:
        return None
    return actions if actions and all(isinstance(one, dict) for one in actions) else None


def _is_whole(table: Path, added: dict[str, Any], removed: set[str]) -> bool:
    path = unquote(added["path"])
    if added["path"] in removed or "://" in path:
        return True
    file = table / path
    return file.is_file() and file.stat().st_size == added["size"] and _is_parquet(file)


def _is_parquet(file: Path) -> bool:
    """Whether it begins and ends as it should: what was not written reads as zeros."""
    with file.open("rb") as stream:
        if stream.read(4) != _PARQUET:
            return False
        stream.seek(-4, 2)
        return stream.read(4) == _PARQUET


def _drop_torn_pointers(table: Path, versions: list[int]) -> None:
    """Remove checkpoints that do not read. While the commits that they stand for are there, nothing needs them."""
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
        except (ValueError, KeyError, TypeError):  # torn: without it the folder is listed
            pointer.unlink()
            return
        if not any(log.glob(f"{version:020d}.checkpoint*")):
            pointer.unlink()


def _drop_torn_checksums_of(table: Path, version: int) -> None:
    """Those of a commit and of the files that it added."""
    commit = table / LOG / f"{version:020d}.json"
    _drop_torn_checksums(commit)
    for one in _actions(commit) or ():
        if "add" in one:
            _drop_torn_checksums(table / unquote(one["add"]["path"]))


def _drop_torn_checksums(file: Path) -> None:
    """Remove Hadoop's checksums of a file where they are not of its bytes: Hadoop then reads it without."""
    sums = file.with_name(f".{file.name}.crc")
    if not sums.is_file() or not file.is_file():
        return
    told = sums.read_bytes()
    step = int.from_bytes(told[4:8], "big")
    wanted = 8 + 4 * -(-file.stat().st_size // step) if step else -1
    if told[:4] != _HADOOP_HEADER or len(told) != wanted or not _first_sum_is_right(file, told, step):
        sums.unlink()


def _first_sum_is_right(file: Path, told: bytes, step: int) -> bool:
    with file.open("rb") as stream:
        first = stream.read(step)
    return not first or int.from_bytes(told[8:12], "big") == zlib.crc32(first)


def _files_of(table: Path, version: int) -> Iterator[Path]:
    """A commit, and what is kept beside it; the commit last, by which the others are found again."""
    log = table / LOG
    beside = [path for pattern in (f"{version:020d}.*", f".{version:020d}.*") for path in log.glob(pattern)]
    commit = log / f"{version:020d}.json"
    yield from (path for path in beside if path != commit)
    if commit.exists():
        yield commit
