"""The folder of a bulk job below the root: what it was asked, and over which brokers its rows are spread."""

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
from latermq.pipeline.timeline.durable import sync_folder
from latermq.pipeline.timeline.root import Root, file_errors, open_root, write_file

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}").fullmatch
BROKERS = "brokers.json"
DEFAULT_NAMESRV = "127.0.0.1:9876"
ROOT_VARIABLE = "LATERMQ_PIPELINE_TIMELINE"


def find_root(root: Root | str | None) -> Root:
    """The pipeline's folder: as given, else as the environment names it."""
    if isinstance(root, Root):
        return root
    uri = root or os.environ.get(ROOT_VARIABLE, "")
    if not uri:
        raise ConfigError(
            "the folder of the timeline is not named",
            hint=f"Name it (pipeline.timeline of the brokers, by default DATA/pipeline), or set {ROOT_VARIABLE}",
        )
    return open_root(uri)


def find_namesrv(namesrv: str | None) -> str:
    """The name servers: as given, else as the environment names them, else on this machine."""
    return namesrv or os.environ.get("NAMESRV_ADDR") or DEFAULT_NAMESRV


def check_job(job: str) -> str:
    """Refuse a name that no folder should have."""
    if not _NAME(job):
        raise ConfigError(
            f"{job!r} is no name of a job" if job else "the job has no name",
            hint="Up to 100 letters, digits, '.', '_' and '-': rows that were sent under it are not scheduled again",
        )
    return job


def job_folder(root: Root, job: str) -> str:
    """Where a job keeps what it must remember."""
    return root.at("bulk", check_job(job))


def brokers_of_job(root: Root, job: str, running: Iterable[str]) -> list[str]:
    """The brokers that a job's rows are spread over: all that run when it is first asked, and ever after the same.

    So a row goes to the same broker again, however many there are by then; one that is away must come back first.
    """
    there = set(running)
    path = f"{job_folder(root, job)}/{BROKERS}"
    listed: list[str] | None = read_json(root, path)
    if listed is None:
        if not there:
            raise StoreError("no broker is running", hint="Start one")
        write_first(root, path, sorted(there))
        listed = read_json(root, path)
    if not isinstance(listed, list) or not listed or not all(isinstance(name, str) for name in listed):
        raise CorruptStore(f"{path} is no list of brokers", hint="Remove it only if the job never scheduled anything")
    missing = [name for name in listed if name not in there]
    if missing:
        raise StoreError(
            f"job {job} spreads its rows over broker {', '.join(missing)}, which is not there",
            hint="Start it again; its rows cannot go elsewhere without being scheduled twice",
        )
    return listed


def write_first(root: Root, path: str, value: Any) -> None:
    """Write a JSON file unless another run was faster. Object stores cannot tell: there the last one counts."""
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
    """What a JSON file holds; nothing if it is not there."""
    with file_errors(path):
        if root.files.get_file_info(path).type == fs.FileType.NotFound:
            return None
        with root.files.open_input_stream(path) as stream:
            data = stream.read()
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptStore(f"{path} is no JSON: {error}") from error


def write_json(root: Root, path: str, value: Any) -> None:
    """Write a JSON file that is there as a whole or not at all."""
    write_file(root, path, msgspec.json.encode(value))


def files_in(root: Root, folder: str, ending: str) -> list[str]:
    """The names of the complete files of a folder, in order."""
    with file_errors(folder):
        found = root.files.get_file_info(fs.FileSelector(folder, allow_not_found=True))
    return sorted(info.base_name for info in found if info.is_file and info.base_name.endswith(ending))


def same_order(found: Any, wanted: Any, job: str) -> None:
    """Refuse to go on with a job as if it were another."""
    if found != wanted:
        raise InvalidParameter(
            f"job {job} was begun as {msgspec.json.encode(found).decode()}",
            hint="Repeat it as it was, without --where, or give the new one another --job",
        )
