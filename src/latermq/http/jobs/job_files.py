"""The files of jobs: one folder for each, with its state, its plan, and what was not possible.

`job.json` is replaced as a whole and says how much of the other files counts, so a process may end between any two
system calls. All methods block, and are called on a thread.
"""

import fcntl
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import structlog

from latermq.http.jobs.job import Impossible, Job

LOCK, STATE, PLAN, IMPOSSIBLE, AGAIN = "lock", "job.json", "plan", "impossible", "again"
_ID = re.compile(r"[0-9a-f]{16}").fullmatch
_MAX_LINE_BYTES = 1 << 20

_log = structlog.get_logger(__name__)


class Kept(msgspec.Struct):
    """A job as its folder has it, with how much of its files counts. `digest` is that of the request.

    Jobs of users who may not change the cluster are limited, so that they leave room for those of its operators.
    """

    job: Job
    digest: str = ""
    source: str = ""  # the address from which its user began it
    is_limited: bool = False
    is_planned: bool = False
    is_abort_wanted: bool = False
    plan_bytes: int = 0  # of the plan, up to where it is done
    impossible_bytes: int = 0
    again_bytes: int = 0


class JobFiles:
    """A folder of jobs, which one process uses at a time."""

    def __init__(self, folder: str) -> None:
        """Without a folder, a temporary one is used, which ends with this process."""
        self._folder = Path(folder)
        self.is_durable = bool(folder)
        self._lock: int | None = None

    def open(self) -> bool:
        """Lock the folder. Returns whether this process has it."""
        if self._lock is None:
            if not self.is_durable:
                self._folder = Path(tempfile.mkdtemp(prefix="latermq-jobs-"))
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(self._folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                return False
            self._lock = descriptor
        return True

    def close(self) -> None:
        """Leave the folder to others."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
            if not self.is_durable:
                shutil.rmtree(self._folder, ignore_errors=True)

    def load(self) -> list[Kept]:
        """Return all jobs, in the order of their creation. A damaged one is left where it is, and logged."""
        found = []
        for folder in sorted(self._folder.iterdir()):
            if not _ID(folder.name):
                continue
            try:
                kept = msgspec.json.decode((folder / STATE).read_bytes(), type=Kept)
            except FileNotFoundError:  # the process died while it created the job
                shutil.rmtree(folder, ignore_errors=True)
                continue
            except (OSError, ValueError) as error:
                _log.warning("a job cannot be read", file=str(folder / STATE), reason=str(error))
                continue
            if kept.job.id == folder.name:
                found.append(kept)
        return sorted(found, key=lambda one: (one.job.created_ms, one.job.id))

    def save(self, kept: Kept) -> None:
        """Replace the state of a job. What it refers to is on disk before."""
        folder = self._folder / kept.job.id
        folder.mkdir(mode=0o700, exist_ok=True)
        for name in (PLAN, IMPOSSIBLE, AGAIN):
            _sync(folder / name)
        new = folder / (STATE + ".new")
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(msgspec.json.encode(kept))
            file.flush()
            os.fsync(descriptor)
        new.replace(folder / STATE)
        _sync(folder)

    def forget(self, job: str) -> None:
        """Remove a job."""
        shutil.rmtree(self._folder / job, ignore_errors=True)

    def drop_plan(self, job: str) -> None:
        """Remove what a finished job does not need."""
        for name in (PLAN, AGAIN):
            (self._folder / job / name).unlink(missing_ok=True)

    def append(self, job: str, name: str, at_bytes: int, rows: Iterable[Any]) -> int:
        """Write rows to a file of a job, in place of what follows this size: it never counted. Returns the new size."""
        descriptor = os.open(self._folder / job / name, os.O_RDWR | os.O_CREAT, 0o600)
        with os.fdopen(descriptor, "r+b") as file:
            file.truncate(at_bytes)
            file.seek(at_bytes)
            file.writelines(msgspec.json.encode(row) + b"\n" for row in rows)
            return file.tell()

    def rows(self, job: str, name: str, at_bytes: int, limit: int) -> tuple[list[Any], int]:
        """Return rows from a place on, and the place after them."""
        rows: list[Any] = []
        try:
            with (self._folder / job / name).open("rb") as file:
                file.seek(at_bytes)
                while len(rows) < limit and (line := file.readline(_MAX_LINE_BYTES)).endswith(b"\n"):
                    rows.append(json.loads(line))
                    at_bytes += len(line)
        except FileNotFoundError:
            pass
        return rows, at_bytes

    def impossible(self, kept: Kept, at_bytes: int, limit: int) -> tuple[list[Impossible], int]:
        """Return what was not possible, from a place on, and the place after it; -1 at the end."""
        if at_bytes >= kept.impossible_bytes:
            return [], -1
        if at_bytes:
            with (self._folder / kept.job.id / IMPOSSIBLE).open("rb") as file:
                file.seek(at_bytes - 1)
                if file.read(1) != b"\n":  # a place that no answer named
                    return [], -1
        rows, after = self.rows(kept.job.id, IMPOSSIBLE, at_bytes, limit)
        return msgspec.convert(rows, list[Impossible]), after if rows and after < kept.impossible_bytes else -1


def _sync(path: Path) -> None:
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
