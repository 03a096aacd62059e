"""A file system with temporary read errors on demand."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
from pyarrow import fs

from latermq.pipeline.timeline.root import Root


class FlakyFiles:
    """Forwards all calls to another file system, except reads for which `fails` returns true."""

    def __init__(self, files: fs.FileSystem, fails: Callable[[str, int], bool]) -> None:
        """`fails` receives the path and the number of previous reads of all files."""
        self._files = files
        self._fails = fails
        self.reads = 0

    def open_input_stream(self, path: str) -> Any:
        return self._open(path)

    def open_input_file(self, path: str) -> Any:
        return self._open(path)

    def _open(self, path: str) -> Any:
        return pa.PythonFile(_FlakyFile(self, path), mode="r")

    def read(self, path: str) -> None:
        """Count a read, and raise if it must fail."""
        self.reads += 1
        if self._fails(path, self.reads - 1):
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)


class _FlakyFile:
    closed = False

    def __init__(self, files: FlakyFiles, path: str) -> None:
        self._files, self._path = files, path
        self._file = Path(path).open("rb")  # noqa: SIM115 -- Arrow closes it

    def read(self, size: int = -1) -> bytes:
        self._files.read(self._path)
        return self._file.read(size)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def close(self) -> None:
        self._file.close()


def flaky(root: Root, fails: Callable[[str, int], bool]) -> Root:
    """Return the same folder with failing reads."""
    return Root(root.uri, cast(fs.FileSystem, FlakyFiles(root.files, fails)), root.path)
