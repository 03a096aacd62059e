"""Access to the files of window attempts for the broker. All functions block and run off the loop."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from latermq.errors import ConfigError, CorruptStore
from latermq.timer.far.windows import Window, WindowRows

if TYPE_CHECKING:
    import pyarrow as pa

    from latermq.handover import window as pipeline_window
    from latermq.pipeline.timeline.root import Root
    from latermq.pipeline.windows.attempts import Attempt


def open_pipeline_root(uri: str) -> "Root":
    """The timeline's folder. Raises ConfigError if the packages that read it are not installed."""
    try:
        from latermq.pipeline.timeline.root import open_root
    except ImportError as error:
        raise ConfigError(
            f"the package {error.name} is required to read windows",
            hint="Install latermq[pipeline]",
        ) from None
    return open_root(uri)


class AttemptFiles:
    """Lists, checks and reads the attempts of one store's windows.

    CorruptStore means that an attempt has wrong content. Any other error means that it could not be read.
    """

    def __init__(self, root_uri: str, store_id: Callable[[], str]) -> None:
        self.root_uri = root_uri
        self._store_id = store_id

    def names(self, window: Window) -> list[str]:
        """The names of the window's complete attempts, oldest first."""
        root = open_pipeline_root(self.root_uri)
        from latermq.pipeline.windows.attempts import attempts_of

        return attempts_of(root, self._store_id(), window.number)

    def check(self, window: Window, name: str) -> tuple[int, int | None]:
        """Verify every byte of an attempt; the number of its rows, and how long it took to build them."""
        root = open_pipeline_root(self.root_uri)
        from latermq.pipeline.windows.attempts import check_attempt

        attempt = self._open(root, window, name)
        check_attempt(root, attempt)
        return attempt.manifest.rows, attempt.manifest.took_ms

    def pieces(self, window: Window, name: str, *, was_checked: bool) -> tuple[int, Iterator[WindowRows]]:
        """The number of rows of an attempt, and the rows in pieces. Each piece is verified before it is yielded.

        A file without page checksums is first read completely, unless the attempt has just been checked.
        """
        root = open_pipeline_root(self.root_uri)
        attempt = self._open(root, window, name)
        whole_files = not (was_checked or attempt.manifest.page_checksums)
        return attempt.manifest.rows, _pieces(root, attempt, whole_files=whole_files)

    def proven(self, window: Window, name: str) -> Iterator[WindowRows]:
        """The rows of the attempt's files that match the manifest, up to the first file that does not."""
        root = open_pipeline_root(self.root_uri)
        yield from _pieces(root, self._open(root, window, name), whole_files=True)

    def salvaged(self, window: Window, troubles: list[str]) -> Iterator[WindowRows]:
        """Rows that may belong to the window, from damaged attempts and from the timeline."""
        root = open_pipeline_root(self.root_uri)
        from latermq.pipeline.windows.salvage import salvaged_rows

        for table in salvaged_rows(root, self.described(window), troubles):
            yield window_rows(table)

    def described(self, window: Window) -> "pipeline_window.Window":
        """The window in the pipeline's representation."""
        from latermq.handover import window as pipeline_window

        return pipeline_window.Window(
            self._store_id(), window.number, window.cut_entry, window.from_ms, window.until_ms
        )

    def _open(self, root: "Root", window: Window, name: str) -> "Attempt":
        """Open an attempt. Raises CorruptStore if it belongs to another window."""
        from latermq.pipeline.windows.attempts import read_attempt

        attempt = read_attempt(root, self._store_id(), window.number, name)
        own = self.described(window)
        if attempt.window != own:
            raise CorruptStore(f"the attempt does not belong to {own}", hint="LaterMQ builds another attempt")
        return attempt


def _pieces(root: "Root", attempt: "Attempt", *, whole_files: bool) -> Iterator[WindowRows]:
    from latermq.pipeline.windows.attempt_records import check_records
    from latermq.pipeline.windows.attempts import read_checked

    for table in read_checked(root, attempt, whole_files=whole_files):
        check_records(table, f"attempt {attempt.name}")
        yield window_rows(table)


def window_rows(table: "pa.Table") -> WindowRows:
    """A row group in the stage's format. The records of a column are already contiguous."""
    if not table.num_rows:
        none = np.empty(0, np.int64)
        return WindowRows(none, none, none, b"")
    record = table.column("record").combine_chunks()
    _, offsets, data = record.buffers()
    ends = np.frombuffer(offsets, np.int32)[record.offset : record.offset + len(record) + 1].astype(np.int64)
    raw = bytes(memoryview(data)[int(ends[0]) : int(ends[-1])])
    entries, dues = (table.column(name).to_numpy().astype(np.int64) for name in ("entry_offset", "due_ms"))
    return WindowRows(entries, dues, np.diff(ends), raw)
