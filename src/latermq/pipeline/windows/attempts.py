"""Window attempts below the root: listed, read, checked against their manifests, and removed.

docs/formats/window.md describes the columns and fields. An attempt exists once its manifest exists. A failed or killed
build leaves files without a manifest, which are removed with their window. attempt_writer.py writes attempts.
"""

import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from latermq.arrays import Bools, Ints
from latermq.errors import CorruptStore, LaterMQError, StoreError
from latermq.handover.manifest import (
    MANIFEST,
    MAX_MANIFEST_BYTES,
    Manifest,
    WindowFile,
    decode_manifest,
    window_folder,
)
from latermq.handover.window import Window, is_finished
from latermq.model.pipeline_state import PipelineState
from latermq.pipeline.timeline.root import Root, file_errors

KEY = ("due_ms", "timer_id", "entry_offset")  # the sort order of the rows
SCHEMA = pa.schema(
    [
        pa.field("due_ms", pa.int64(), nullable=False),
        pa.field("entry_offset", pa.int64(), nullable=False),
        pa.field("timer_id", pa.int64(), nullable=False),
        pa.field("record", pa.binary(), nullable=False),
    ]
)
_CHUNK_BYTES = 1 << 20
_MAX_DIGITS = 18  # always fits into 64 bits
# For all columns, by the file's metadata. A group has 8 MiB of records, or one record. Groups of earlier releases were
# larger.
MAX_GROUP_BYTES = 256 << 20
_HINT = "The broker loads another attempt of the window, or builds one"


@dataclass(frozen=True, slots=True)
class Attempt:
    """A complete attempt: its name and its manifest."""

    name: str
    manifest: Manifest

    @property
    def window(self) -> Window:
        manifest = self.manifest
        return Window(manifest.store_id, manifest.number, manifest.cut_entry, manifest.from_ms, manifest.until_ms)


def attempt_folder(root: Root, window: Window, name: str) -> str:
    """The folder of an attempt."""
    return root.at(window_folder(window.store_id, window.number), name)


# Listing and reading


def stores_with_windows(root: Root) -> list[str]:
    """The stores that have windows below this root."""
    return _names(root, "windows")


def windows_of(root: Root, store_id: str) -> list[int]:
    """The numbers of a store's windows that have a folder, in ascending order."""
    return sorted(int(name) for name in _names(root, f"windows/{store_id}") if _is_number(name))


def attempts_of(root: Root, store_id: str, number: int) -> list[str]:
    """The names of a window's complete attempts, oldest first."""
    folder = window_folder(store_id, number)
    names = _names(root, folder)
    with file_errors(f"window {number} at {root.uri}"):
        manifests = root.files.get_file_info([root.at(folder, name, MANIFEST) for name in names])
    complete = [name for name, info in zip(names, manifests, strict=True) if info.type == fs.FileType.File]
    return sorted(complete, key=_age)


def _age(name: str) -> tuple[int, str]:
    made_ms = name.split("-")[1:2]
    return (int(made_ms[0]) if made_ms and _is_number(made_ms[0]) else 0, name)


def _is_number(text: str) -> bool:
    """Whether the text is a number as this package writes it. `str.isdigit` accepts characters that `int` rejects."""
    return text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS


def read_attempt(root: Root, store_id: str, number: int, name: str) -> Attempt:
    """An attempt with its manifest."""
    path = root.at(window_folder(store_id, number), name, MANIFEST)
    with file_errors(f"the manifest {path}"), root.files.open_input_stream(path) as stream:
        data = stream.read(MAX_MANIFEST_BYTES + 1)
    if len(data) > MAX_MANIFEST_BYTES:
        raise CorruptStore(f"the manifest {path} has more than {MAX_MANIFEST_BYTES} bytes", hint=_HINT)
    manifest = decode_manifest(data, path)
    if (manifest.store_id, manifest.number) != (store_id, number):
        raise CorruptStore(
            f"the manifest {path} belongs to window {manifest.number} of store {manifest.store_id}", hint=_HINT
        )
    if manifest.rows != sum(file.rows for file in manifest.files):
        raise CorruptStore(
            f"the manifest {path} says {manifest.rows} rows in total, but its files have another number", hint=_HINT
        )
    return Attempt(name, manifest)


def read_rows(root: Root, attempt: Attempt, columns: Iterable[str] = SCHEMA.names) -> Iterator[pa.Table]:
    """The rows of an attempt in order, one row group at a time."""
    for file in attempt.manifest.files:
        yield from _read_part(root, f"{attempt_folder(root, attempt.window, attempt.name)}/{file.name}", list(columns))


def _read_part(root: Root, path: str, columns: list[str]) -> Iterator[pa.Table]:
    with file_errors(path), root.files.open_input_file(path) as stream, _decode_errors(root, path):
        parquet = pq.ParquetFile(stream, page_checksum_verification=True)
        if parquet.schema_arrow.remove_metadata() != SCHEMA:
            raise CorruptStore(f"{path} does not have the columns of a window", hint=_HINT)
        for group in range(parquet.num_row_groups):
            size_bytes = parquet.metadata.row_group(group).total_byte_size
            if size_bytes > MAX_GROUP_BYTES:
                raise CorruptStore(
                    f"{path} has a row group of {size_bytes} bytes; the limit is {MAX_GROUP_BYTES}", hint=_HINT
                )
        for group in range(parquet.num_row_groups):
            yield parquet.read_row_group(group, columns=columns)


def read_checked(
    root: Root, attempt: Attempt, columns: Iterable[str] = SCHEMA.names, *, whole_files: bool = True
) -> Iterator[pa.Table]:
    """The rows of an attempt, all validated. Each file is compared with the manifest before its first row is yielded.

    Without `whole_files` only the page checksums are checked, for callers that cannot wait for a full read of the file.
    CorruptStore means that the contents of the attempt are wrong. Any other error means that it could not be read.
    """
    folder = attempt_folder(root, attempt.window, attempt.name)
    last: tuple[int, ...] | None = None
    for file in attempt.manifest.files:
        path = f"{folder}/{file.name}"
        if whole_files:
            _check_bytes(root, path, file)
        rows = 0
        for group in _read_part(root, path, list(columns)):
            last = check_rows(group, last, attempt.window, f"the rows of {folder}")
            rows += group.num_rows
            yield group
        if rows != file.rows:
            raise CorruptStore(f"{path} holds {rows} rows, not {file.rows}", hint=_HINT)


def check_attempt(root: Root, attempt: Attempt) -> None:
    """Compare every byte and every row of an attempt with its manifest."""
    for _ in read_checked(root, attempt, KEY):
        pass


def find_attempt(root: Root, window: Window) -> Attempt | None:
    """A complete attempt whose manifest describes exactly this window, or None."""
    for name in attempts_of(root, window.store_id, window.number):
        with suppress(LaterMQError):
            attempt = read_attempt(root, window.store_id, window.number, name)
            if attempt.window == window:
                return attempt
    return None


def _check_bytes(root: Root, path: str, file: WindowFile) -> None:
    with file_errors(path):
        if root.files.get_file_info(path).type != fs.FileType.File:
            raise StoreError(f"{path} is missing", hint="The broker retries, then loads or builds another attempt")
        size_bytes, crc32 = _measure(root, path)
    if size_bytes != file.size_bytes:
        raise CorruptStore(f"{path} has {size_bytes} bytes, not {file.size_bytes}", hint=_HINT)
    if crc32 != file.crc32:
        raise CorruptStore(f"the checksum of {path} is {crc32:08x}, not {file.crc32:08x}", hint=_HINT)


def _measure(root: Root, path: str) -> tuple[int, int]:
    size_bytes = crc32 = 0
    with root.files.open_input_stream(path) as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            crc32 = zlib.crc32(chunk, crc32)
            size_bytes += len(chunk)
    return size_bytes, crc32


@contextmanager
def _decode_errors(root: Root, path: str) -> Iterator[None]:
    """Classify errors while reading a Parquet file: undecodable data is damaged, unreadable data may be intact.

    Parquet reports broken pages as I/O errors without an error number. Errors of a local disk have one. For other file
    systems the two cases cannot be told apart.
    """
    try:
        yield
    except OSError as error:
        if error.errno is not None or not root.is_local:
            raise
        raise _decode_error(path, error) from error
    except MemoryError as error:  # includes Arrow's own memory error
        raise StoreError(f"not enough memory to read {path}", hint="The broker retries") from error
    except pa.ArrowException as error:
        raise _decode_error(path, error) from error


def _decode_error(path: str, error: Exception) -> CorruptStore:
    return CorruptStore(f"{path} is not valid Parquet: {error}", hint=_HINT)


def _names(root: Root, folder: str) -> list[str]:
    with file_errors(f"{root.uri}/{folder}"):
        found = root.files.get_file_info(fs.FileSelector(root.at(folder), allow_not_found=True))
    return sorted(info.base_name for info in found if info.type == fs.FileType.Directory)


# Checking rows


def check_rows(rows: pa.Table, last: tuple[int, ...] | None, window: Window, where: str) -> tuple[int, ...] | None:
    """The key of the last row, after checking that all rows are sorted, come after `last` and belong to the window."""
    if not rows.num_rows:
        return last
    due, timer_id, entry = (rows.column(name).to_numpy() for name in KEY)
    if last is not None:
        due, timer_id, entry = (
            np.concatenate(([of_last], column)) for of_last, column in zip(last, (due, timer_id, entry), strict=True)
        )
    later = _is_ascending(due, timer_id, entry)
    if not later.all():
        at = int(np.argmin(later)) + 1
        raise CorruptStore(f"{where} are out of order at entry {entry[at]}, due {due[at]}", hint=_HINT)
    inside = due.min() >= window.from_ms and due.max() < window.until_ms
    if not inside or entry.min() < 0 or entry.max() >= window.cut_entry:
        raise CorruptStore(
            f"{where} are not all in window {window.number}: due {due.min()} to {due.max()}, "
            f"entries {entry.min()} to {entry.max()}",
            hint=_HINT,
        )
    return int(due[-1]), int(timer_id[-1]), int(entry[-1])


def _is_ascending(due: Ints, timer_id: Ints, entry: Ints) -> Bools:
    """For each row except the first, whether its key is greater than the previous one."""
    same_due, same_timer = due[1:] == due[:-1], timer_id[1:] == timer_id[:-1]
    later: Bools = (due[1:] > due[:-1]) | (
        same_due & ((timer_id[1:] > timer_id[:-1]) | (same_timer & (entry[1:] > entry[:-1])))
    )
    return later


# Removing


def remove_finished_windows(root: Root, state: PipelineState) -> list[int]:
    """Remove the windows whose rows are all delivered, cancelled or moved, and return their numbers.

    Windows follow one another in due time. The remains of a killed build in an earlier window, which have no manifest
    to tell their range, are therefore removed too.
    """
    numbers = windows_of(root, state.store_id)
    finished = [number for number in numbers if _is_finished(root, state, number)]
    pending = {window.number for window in state.windows}
    removed = [number for number in numbers if finished and number <= finished[-1] and number not in pending]
    for number in removed:
        with file_errors(f"removing window {number} at {root.uri}"):
            root.files.delete_dir(root.at(window_folder(state.store_id, number)))
    return removed


def _is_finished(root: Root, state: PipelineState, number: int) -> bool:
    for name in attempts_of(root, state.store_id, number):
        with suppress(CorruptStore):  # another attempt or a later window then gives the range
            return is_finished(read_attempt(root, state.store_id, number, name).window, state)
    return False
