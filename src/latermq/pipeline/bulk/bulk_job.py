"""The folder of a bulk job below the root: its request, and the brokers that share its rows."""

import os
import re
import secrets
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
from pyarrow import fs

from latermq.errors import ConfigError, CorruptStore, InvalidParameter, StoreError
from latermq.pipeline.driver.reported_timeline import reported_timeline
from latermq.pipeline.timeline.durable import sync_folder
from latermq.pipeline.timeline.root import Root, file_errors, open_root, write_file

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}").fullmatch
BROKERS = "brokers.json"
DEFAULT_NAMESRV = "127.0.0.1:9876"
ROOT_VARIABLE = "LATERMQ_PIPELINE_TIMELINE"


def find_root(root: Root | str | None, namesrv: str | None = None) -> Root:
    """The pipeline's folder: as given, else from the environment, else the one that the brokers report."""
    if isinstance(root, Root):
        return root
    return open_root(root or os.environ.get(ROOT_VARIABLE, "") or reported_timeline(find_namesrv(namesrv)))


def find_namesrv(namesrv: str | None) -> str:
    """The name servers: as given, else from the environment, else on this machine."""
    return namesrv or os.environ.get("NAMESRV_ADDR") or DEFAULT_NAMESRV


def check_job(job: str) -> str:
    """Refuse a job name that is unsuitable for a folder."""
    if not _NAME(job):
        raise ConfigError(
            f"{job!r} is not a valid job name" if job else "the job has no name",
            hint="Use up to 100 letters, digits, '.', '_' and '-'. A job schedules each key only once",
        )
    return job


def job_folder(root: Root, job: str) -> str:
    """The folder that holds a job's state."""
    return root.at("bulk", check_job(job))


def brokers_of_job(root: Root, job: str, running: Iterable[str]) -> list[str]:
    """The brokers that share a job's rows: all that run at its first call, and the same ones from then on.

    A row thus always goes to the same broker, however many brokers there are later. If one of them is unreachable, it
    must come back first.
    """
    running_names = set(running)
    path = f"{job_folder(root, job)}/{BROKERS}"
    listed: list[str] | None = read_json(root, path)
    if listed is None:
        if not running_names:
            raise StoreError("no broker is running", hint="Start one")
        write_first(root, path, sorted(running_names))
        listed = read_json(root, path)
    if not isinstance(listed, list) or not listed or not all(isinstance(name, str) for name in listed):
        raise CorruptStore(
            f"{path} is not a list of brokers", hint="Remove it only if the job never scheduled anything"
        )
    missing = [name for name in listed if name not in running_names]
    if missing:
        raise StoreError(
            f"job {job} sends rows to broker {', '.join(missing)}, which is not running",
            hint="Start it again; sending its rows elsewhere could schedule them twice",
        )
    return listed


def write_first(root: Root, path: str, value: Any) -> None:
    """Write a JSON file unless another run was first. Object stores cannot check this, so there the last write wins."""
    if not root.is_local:
        write_json(root, path, value)
        return
    draft = f"{path}.{secrets.token_hex(4)}.draft"
    write_json(root, draft, value)
    with file_errors(path):
        try:
            with suppress(FileExistsError):
                os.link(draft, path)
        finally:
            Path(draft).unlink()
        sync_folder(Path(path).parent)


def read_json(root: Root, path: str) -> Any:
    """The contents of a JSON file; None if it does not exist."""
    with file_errors(path):
        if root.files.get_file_info(path).type == fs.FileType.NotFound:
            return None
        with root.files.open_input_stream(path) as stream:
            data = stream.read()
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptStore(f"{path} is not valid JSON: {error}") from error


def write_json(root: Root, path: str, value: Any) -> None:
    """Write a JSON file atomically."""
    write_file(root, path, msgspec.json.encode(value))


def files_in(root: Root, folder: str, ending: str) -> list[str]:
    """The names of the complete files in a folder, sorted."""
    with file_errors(folder):
        found = root.files.get_file_info(fs.FileSelector(folder, allow_not_found=True))
    return sorted(info.base_name for info in found if info.is_file and info.base_name.endswith(ending))


def check_same_order(found: Any, wanted: Any, job: str) -> None:
    """Refuse to continue a job with a different request."""
    if found != wanted:
        raise InvalidParameter(
            f"job {job} was started as {msgspec.json.encode(found).decode()}",
            hint="Resume it without --where, or choose another --job for the new request",
        )
