"""The writer of window attempts: sorted rows in Parquet parts with bounded row groups, then the manifest."""

import os
import secrets
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from latermq.handover.manifest import MANIFEST, Manifest, WindowFile, encode_manifest
from latermq.handover.window import Window
from latermq.pipeline.timeline.durable import sync_folder, sync_folders
from latermq.pipeline.timeline.root import Root, file_errors
from latermq.pipeline.windows.attempts import KEY, SCHEMA, Attempt, attempt_folder, check_rows

# The broker loads this many rows at once.
GROUP_ROWS = 20_000
GROUP_BYTES = 8 << 20
PART_ROWS = 1_000_000
_ENCODINGS = dict.fromkeys(KEY, "DELTA_BINARY_PACKED")  # two bytes per row less than plain numbers


def attempt_name(made_by: str, now_ms: int) -> str:
    """A unique name for an attempt."""
    return f"{made_by}-{now_ms}-{secrets.token_hex(4)}"


def part_name(number: int) -> str:
    """The name of a part file; parts are ordered by number."""
    return f"part-{number:05d}.parquet"


def without_duplicates(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Sorted rows without consecutive duplicates: a timeline may hold a row twice.

    By now each timer has only one entry, so due time and timer id identify a row.
    """
    last: tuple[int, int] | None = None
    for batch in batches:
        if not len(batch):
            continue
        due_ms, timer_id = (batch.column(name).to_numpy() for name in KEY[:2])
        is_new = np.ones(len(batch), np.bool_)
        is_new[1:] = (due_ms[1:] != due_ms[:-1]) | (timer_id[1:] != timer_id[:-1])
        is_new[0] = (due_ms[0], timer_id[0]) != last
        last = due_ms[-1], timer_id[-1]
        yield batch if is_new.all() else batch.filter(pa.array(is_new))


def row_groups(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """The same rows in groups of at most GROUP_ROWS rows and GROUP_BYTES of records. A larger record is alone.

    The group boundaries depend only on the rows, not on the batches they arrive in.
    """
    held: list[pa.RecordBatch] = []
    rows = size_bytes = 0
    for batch in batches:
        ends = np.cumsum(pc.binary_length(batch.column("record")).to_numpy(zero_copy_only=False), dtype=np.int64)
        start = 0
        while start < len(batch):
            before = int(ends[start - 1]) if start else 0
            fit_rows = int(np.searchsorted(ends, before + GROUP_BYTES - size_bytes, side="right")) - start
            count = min(fit_rows, GROUP_ROWS - rows, len(batch) - start)
            if count <= 0 and held:
                yield pa.Table.from_batches(held)
                held, rows, size_bytes = [], 0, 0
                continue
            count = max(count, 1)
            held.append(batch.slice(start, count))
            rows += count
            start += count
            size_bytes += int(ends[start - 1]) - before
    if held:
        yield pa.Table.from_batches(held)


def write_part(root: Root, path: str, groups: Iterable[pa.Table]) -> WindowFile:
    """Write one part file, and return its manifest entry."""
    # Rename when complete: a retried task whose first run is still alive then replaces the file with equal bytes.
    draft = f"{path}.{secrets.token_hex(4)}.draft" if root.is_local else path
    rows = 0
    with _open_sink(root, draft) as stream:
        sink = _CountingSink(stream)
        writer = pq.ParquetWriter(
            sink,
            SCHEMA,
            compression="zstd",
            compression_level=1,
            use_dictionary=False,
            column_encoding=_ENCODINGS,
            write_page_index=False,
            write_page_checksum=True,
        )
        with writer:
            for group in groups:
                writer.write_table(group.select(SCHEMA.names).cast(SCHEMA), row_group_size=GROUP_ROWS)
                rows += group.num_rows
        _sync(root, stream)
    if root.is_local:
        Path(draft).replace(path)
    return WindowFile(path.rpartition("/")[2], rows, sink.size_bytes, sink.crc32)


def write_attempt(
    root: Root,
    window: Window,
    batches: Iterable[pa.RecordBatch],
    *,
    made_by: str,
    table_version: int,
    ingest_offset: int,
    now_ms: int,
    name: str = "",
    fence: Callable[[], None] = lambda: None,
    began_s: float | None = None,
) -> Attempt:
    """Write sorted rows as an attempt. A failure, also one of `fence`, leaves nothing that looks like an attempt.

    `began_s` is the monotonic time at which the build began, if that was before this call.
    """
    began_s = time.monotonic() if began_s is None else began_s
    name = name or attempt_name(made_by, now_ms)
    folder = begin_attempt(root, window, name)
    files: list[WindowFile] = []
    try:
        with file_errors(f"window {window.number} at {root.uri}"):
            for part in _parts(checked_groups(row_groups(batches), window)):
                files.append(write_part(root, f"{folder}/{part_name(len(files))}", part))
        fence()
        return publish_attempt(
            root,
            window,
            name,
            files,
            made_by=made_by,
            table_version=table_version,
            ingest_offset=ingest_offset,
            began_s=began_s,
        )
    except BaseException:
        discard_attempt(root, window, name)
        raise


def begin_attempt(root: Root, window: Window, name: str) -> str:
    """Create the folder of an attempt."""
    folder = attempt_folder(root, window, name)
    with file_errors(f"window {window.number} at {root.uri}"):
        root.files.create_dir(folder, recursive=True)
    return folder


def publish_attempt(
    root: Root,
    window: Window,
    name: str,
    files: list[WindowFile],
    *,
    made_by: str,
    table_version: int,
    ingest_offset: int,
    began_s: float,
) -> Attempt:
    """Write the manifest, which turns the existing files into a complete attempt."""
    manifest = Manifest(
        store_id=window.store_id,
        number=window.number,
        cut_entry=window.cut_entry,
        from_ms=window.from_ms,
        until_ms=window.until_ms,
        made_by=made_by,
        table_version=table_version,
        ingest_offset=ingest_offset,
        rows=sum(file.rows for file in files),
        files=files,
        page_checksums=True,
        took_ms=round((time.monotonic() - began_s) * 1_000),
    )
    folder = attempt_folder(root, window, name)
    path = f"{folder}/{MANIFEST}"
    draft = f"{path}.draft" if root.is_local else path
    with file_errors(f"the manifest of window {window.number} at {root.uri}"):
        if root.is_local:
            sync_folder(folder)
        with _open_sink(root, draft) as stream:
            stream.write(encode_manifest(manifest))
            _sync(root, stream)
        if root.is_local:
            Path(draft).replace(path)
        if root.is_local:
            sync_folders(folder, root.path)
    return Attempt(name, manifest)


def discard_attempt(root: Root, window: Window, name: str) -> None:
    """Remove the files of a failed attempt. Any file that cannot be removed now is removed with its window."""
    with suppress(OSError):
        root.files.delete_dir(attempt_folder(root, window, name))


class _CountingSink:
    """Counts and checksums bytes as they are written, so that the manifest needs no second read."""

    closed = False  # Arrow reads this attribute

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.size_bytes = 0
        self.crc32 = 0

    def write(self, data: bytes) -> int:
        self._stream.write(data)
        self.crc32 = zlib.crc32(data, self.crc32)
        self.size_bytes += len(data)
        return len(data)

    def tell(self) -> int:
        return self.size_bytes

    def flush(self) -> None:
        """Do nothing: the owner of the stream flushes it."""

    def close(self) -> None:
        """Do nothing: the owner of the stream closes it."""


def _open_sink(root: Root, path: str) -> BinaryIO:
    if root.is_local:
        return Path(path).open("wb")
    stream: BinaryIO = root.files.open_output_stream(path)
    return stream


def _sync(root: Root, stream: BinaryIO) -> None:
    if root.is_local:
        stream.flush()
        os.fsync(stream.fileno())


def _parts(groups: Iterator[pa.Table]) -> Iterator[Iterator[pa.Table]]:
    """Distribute groups over files of at most PART_ROWS rows. The caller must exhaust each part before the next."""
    queued = list(_next(groups))
    while queued:

        def part() -> Iterator[pa.Table]:
            rows = 0
            while queued and (not rows or rows + queued[0].num_rows <= PART_ROWS):
                group = queued.pop()
                rows += group.num_rows
                queued.extend(_next(groups))
                yield group

        yield part()


def _next(groups: Iterator[pa.Table]) -> Iterator[pa.Table]:
    group = next(groups, None)
    if group is not None:
        yield group


def checked_groups(groups: Iterable[pa.Table], window: Window) -> Iterator[pa.Table]:
    """The same groups, after checking that their rows are sorted and belong to the window."""
    last: tuple[int, ...] | None = None
    for group in groups:
        last = check_rows(group, last, window, "the rows to be written")
        yield group
