"""What can still be read of a window that cannot be played: row groups of damaged attempts, and files of the timeline.

Nothing here is checked but the checksums of pages: whoever takes these rows compares each with its own record.
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
# Whatever a broken file makes its readers raise.
_UNREADABLE = (LaterMQError, pa.ArrowException, OSError, ValueError, KeyError, MemoryError)


def salvaged_rows(root: Root, window: Window, troubles: list[str]) -> Iterator[pa.Table]:
    """Due time, entry and record of rows that may be the window's, from whatever can be read, in no order.

    `troubles` gets a line for each place that could not be read, now at least. After each file comes a table, if only
    an empty one: of many files that hold nothing of the window none is waited for longer than it takes itself.
    """
    for folder in (window_folder(window.store_id, window.number), "timeline"):
        for path in _parquet_files(root, folder, troubles):
            yield from _readable(root, path, window, troubles)
            yield _SCHEMA.empty_table()


@contextlib.contextmanager
def _noting(what: str, troubles: list[str]) -> Iterator[None]:
    try:
        yield
    except _UNREADABLE as error:
        troubles.append(f"{what}: {str(error).partition(chr(10))[0] or type(error).__name__}")


def _parquet_files(root: Root, folder: str, troubles: list[str]) -> list[str]:
    found: list[fs.FileInfo] = []
    with _noting(f"{root.uri}/{folder}", troubles), file_errors(folder):
        found = root.files.get_file_info(fs.FileSelector(root.at(folder), recursive=True, allow_not_found=True))
    return sorted(info.path for info in found if info.type == fs.FileType.File and info.path.endswith(".parquet"))


def _readable(root: Root, path: str, window: Window, troubles: list[str]) -> Iterator[pa.Table]:
    """The window's rows of one file, without the row groups that cannot be read."""
    with _noting(path, troubles), root.files.open_input_file(path) as stream:
        parquet = pq.ParquetFile(stream, page_checksum_verification=True)
        of_timeline = "store_id" in parquet.schema_arrow.names
        columns = [*_COLUMNS, *(["store_id"] if of_timeline else [])]
        for number in range(parquet.num_row_groups):
            if not _may_hold(parquet.metadata.row_group(number), window):
                continue
            rows = None
            with _noting(f"{path}, row group {number}", troubles):
                rows = _of_window(parquet.read_row_group(number, columns=columns), window)
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


def _of_window(rows: pa.Table, window: Window) -> pa.Table:
    due_ms, record = rows.column("due_ms"), rows.column("record")
    mine = pc.and_(pc.greater_equal(due_ms, window.from_ms), pc.less(due_ms, window.until_ms))
    mine = pc.and_(mine, pc.and_(pc.less(rows.column("entry_offset"), window.cut_entry), pc.is_valid(record)))
    if "store_id" in rows.column_names:
        mine = pc.and_(mine, pc.equal(rows.column("store_id"), window.store_id))
    return rows.filter(mine)
