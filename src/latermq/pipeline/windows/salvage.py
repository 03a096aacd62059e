"""Recovery of rows of an unloadable window, from intact row groups of damaged attempts and from timeline files.

Only page checksums are checked here. The caller must compare each row with its record.
"""

import contextlib
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

from latermq.errors import LaterMQError
from latermq.handover.manifest import window_folder
from latermq.handover.window import Window
from latermq.pipeline.timeline.root import Root, file_errors

_COLUMNS = ["due_ms", "entry_offset", "record"]
# Any error that a reader may raise on a broken file.
_UNREADABLE = (LaterMQError, pa.ArrowException, OSError, ValueError, KeyError, MemoryError)


def salvaged_rows(root: Root, window: Window, failures: list[str]) -> Iterator[pa.Table]:
    """Due time, entry and record of rows that may belong to the window, from every readable source, in any order.

    Each source that cannot be read, at least for now, adds a line to `failures`. Every file yields a table, even an
    empty one. The caller thus never waits for longer than one file takes, even if many files hold nothing of the
    window.
    """
    for folder in (window_folder(window.store_id, window.number), "timeline"):
        for path in _parquet_files(root, folder, failures):
            yield from _read_file(root, path, window, failures)
            yield _SCHEMA.empty_table()


@contextlib.contextmanager
def _note_errors(what: str, failures: list[str]) -> Iterator[None]:
    try:
        yield
    except _UNREADABLE as error:
        failures.append(f"{what}: {str(error).partition(chr(10))[0] or type(error).__name__}")


def _parquet_files(root: Root, folder: str, failures: list[str]) -> list[str]:
    found: list[fs.FileInfo] = []
    with _note_errors(f"{root.uri}/{folder}", failures), file_errors(folder):
        found = root.files.get_file_info(fs.FileSelector(root.at(folder), recursive=True, allow_not_found=True))
    return sorted(info.path for info in found if info.type == fs.FileType.File and info.path.endswith(".parquet"))


def _read_file(root: Root, path: str, window: Window, failures: list[str]) -> Iterator[pa.Table]:
    """The window's rows of one file, without the unreadable row groups."""
    with _note_errors(path, failures), root.files.open_input_file(path) as stream:
        parquet = pq.ParquetFile(stream, page_checksum_verification=True)
        of_timeline = "store_id" in parquet.schema_arrow.names
        columns = [*_COLUMNS, *(["store_id"] if of_timeline else [])]
        for number in range(parquet.num_row_groups):
            if not _may_hold(parquet.metadata.row_group(number), window):
                continue
            rows = None
            with _note_errors(f"{path}, row group {number}", failures):
                rows = _rows_in_window(parquet.read_row_group(number, columns=columns), window)
                rows = rows.select(_COLUMNS).cast(_SCHEMA)
            if rows is not None and rows.num_rows:
                yield rows


_SCHEMA = pa.schema([("due_ms", pa.int64()), ("entry_offset", pa.int64()), ("record", pa.binary())])


def _may_hold(group: pq.RowGroupMetaData, window: Window) -> bool:
    for number in range(group.num_columns):
        column = group.column(number)
        statistics = column.statistics
        if column.path_in_schema == "due_ms" and statistics is not None and statistics.has_min_max:
            return bool(statistics.min < window.until_ms and statistics.max >= window.from_ms)
    return True


def _rows_in_window(rows: pa.Table, window: Window) -> pa.Table:
    due_ms, record = rows.column("due_ms"), rows.column("record")
    mask = pc.and_(pc.greater_equal(due_ms, window.from_ms), pc.less(due_ms, window.until_ms))
    mask = pc.and_(mask, pc.and_(pc.less(rows.column("entry_offset"), window.cut_entry), pc.is_valid(record)))
    if "store_id" in rows.column_names:
        mask = pc.and_(mask, pc.equal(rows.column("store_id"), window.store_id))
    return rows.filter(mask)
