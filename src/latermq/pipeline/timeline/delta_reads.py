"""Failures of delta-rs, as errors of this package that name the damaged file of a table.

A damaged file surfaces as an error of whichever layer reads it, and most of these errors name no file. Some damage even
makes delta-rs panic, with an exception that no `except Exception` catches. So when a read fails, the files are looked
at one by one.
"""

import io
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake.exceptions import DeltaError
from pyarrow import fs

from latermq.errors import CorruptStore, LaterMQError, StoreError
from latermq.pipeline.timeline.root import Root

LOG = "_delta_log"
_POINTER = "_last_checkpoint"
_COLOURS = re.compile("\x1b\\[[0-9;]*m")  # delta-rs colours its messages
_MAX_TEXT = 300
_MAX_READ_BYTES = 256 << 20  # of data files in one search; what is beyond is checked for presence and length only
_MAX_DAMAGED = 3  # files named in one error
_SIGNS = ("parquet", "corrupt", "invalid", "checksum", "json", "eof", "panic")
_HINT = (
    "Restore the file from a backup, or ingest again what the logs hold "
    '(docs/operations.md, "A moved, damaged or lost timeline"); near timers are unaffected'
)
_BY_DELTA_RS = (DeltaError, pa.ArrowException, OSError, ValueError)


@contextmanager
def delta_reads(root: Root, address: str) -> Iterator[None]:
    """Turn what delta-rs raises while it reads a table into errors of this package."""
    try:
        yield
    except LaterMQError:
        raise
    except BaseException as error:
        if not isinstance(error, _BY_DELTA_RS) and not _is_panic(error):
            raise
        raise read_error(root, address, error) from error


def read_error(root: Root, address: str, error: BaseException) -> LaterMQError:
    """The error for a failed read. It names the damaged files if any are found, otherwise the original error."""
    damaged = find_damage(root, address)
    if damaged:
        return CorruptStore(
            f"the timeline {address} is damaged: {'; '.join(damaged)}",
            hint=_HINT,
        )
    text = " ".join(_COLOURS.sub("", str(error)).split())[:_MAX_TEXT]
    if _is_panic(error) or any(sign in text.lower() for sign in _SIGNS):
        return CorruptStore(f"the timeline {address} is damaged: {text}", hint=_HINT)
    return StoreError(
        f"the timeline {address} cannot be read: {text}", hint="Check pipeline.timeline; the read is retried"
    )


def _is_panic(error: BaseException) -> bool:
    """Whether delta-rs failed an assertion. The class is its own and cannot be imported."""
    return type(error).__name__ == "PanicException"


def find_damage(root: Root, address: str) -> list[str]:
    """The first damaged or missing files of a table, each with what is wrong with it. Reads only."""
    search = _Search(root, root.path + address.removeprefix(root.uri))
    try:
        for damage in search.run():
            search.found.append(damage)
            if len(search.found) == _MAX_DAMAGED:
                break
    except (OSError, pa.ArrowException):  # the folder itself cannot be read now, which the first error says
        return []
    return search.found


class _Search:
    """One look at the files that the newest version of a table consists of."""

    def __init__(self, root: Root, path: str) -> None:
        self._files = root.files
        self._path = path
        self._read_bytes = 0
        self.found: list[str] = []

    def run(self) -> Iterator[str]:
        listed = self._files.get_file_info(fs.FileSelector(f"{self._path}/{LOG}", allow_not_found=True))
        names = {info.base_name for info in listed if info.type == fs.FileType.File}
        commits = sorted(int(name[:20]) for name in names if re.fullmatch(r"\d{20}\.json", name))
        checkpoints = sorted(int(name[:20]) for name in names if re.fullmatch(r"\d{20}\.checkpoint\.parquet", name))
        yield from self._check_pointer(names)
        start, live = 0, dict[str, int]()
        if checkpoints:
            start = checkpoints[-1] + 1
            damage, live = self._read_checkpoint(f"{LOG}/{checkpoints[-1]:020d}.checkpoint.parquet")
            yield from damage
        end = max([*commits, start - 1]) + 1
        for version in range(start, end):
            damage = self._apply(f"{LOG}/{version:020d}.json", live)
            yield from damage
        for path, size_bytes in live.items():
            yield from self._check_data(path, size_bytes)

    def _check_pointer(self, names: set[str]) -> Iterator[str]:
        if _POINTER not in names:
            return
        try:
            version = int(json.loads(self._content(f"{LOG}/{_POINTER}"))["version"])
        except (ValueError, KeyError, TypeError):
            yield f"{LOG}/{_POINTER} is not a valid pointer; it is not needed: remove it"
            return
        if not any(name.startswith(f"{version:020d}.checkpoint.") for name in names):
            yield (
                f"{LOG}/{version:020d}.checkpoint.parquet is missing, but {_POINTER} refers to it: "
                f"if the commits before it exist, remove {_POINTER}"
            )

    def _read_checkpoint(self, name: str) -> tuple[list[str], dict[str, int]]:
        try:
            added = pq.read_table(io.BytesIO(self._content(name)), page_checksum_verification=True).column("add")
            live = {one["path"]: one["size"] for one in added.to_pylist() if one is not None and one["path"]}
        except (*_UNREADABLE, KeyError) as error:
            return [f"{name}: {_first_line(error)}"], {}
        return [], live

    def _apply(self, name: str, live: dict[str, int]) -> list[str]:
        """Follow a commit. Returns what is wrong with it."""
        try:
            for line in self._content(name).splitlines():
                action = json.loads(line)
                if "add" in action:
                    live[action["add"]["path"]] = action["add"]["size"]
                elif "remove" in action:
                    live.pop(action["remove"]["path"], None)
        except FileNotFoundError:
            return [f"{name} is missing"]
        except (ValueError, KeyError, TypeError):
            return [f"{name} is not a valid commit"]
        return []

    def _check_data(self, path: str, size_bytes: int) -> Iterator[str]:
        if "://" in path:
            return
        name = unquote(path)
        info = self._files.get_file_info(f"{self._path}/{name}")
        if info.type != fs.FileType.File:
            yield f"{name} is missing"
        elif info.size != size_bytes:
            yield f"{name} has {info.size} bytes instead of {size_bytes}"
        elif self._read_bytes + size_bytes <= _MAX_READ_BYTES:
            self._read_bytes += size_bytes
            try:
                file = pq.ParquetFile(io.BytesIO(self._content(name)), page_checksum_verification=True)
                for _ in file.iter_batches():
                    pass
            except _UNREADABLE as error:
                yield f"{name}: {_first_line(error)}"

    def _content(self, name: str) -> bytes:
        with self._files.open_input_stream(f"{self._path}/{name}") as stream:
            return bytes(stream.read())


# Any error that Arrow may raise on a broken file.
_UNREADABLE = (pa.ArrowException, OSError, ValueError, MemoryError, OverflowError)


def _first_line(error: BaseException) -> str:
    return (str(error).partition("\n")[0] or type(error).__name__)[:_MAX_TEXT]
