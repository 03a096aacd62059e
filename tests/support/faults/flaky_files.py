"""A file system that fails when it is told to: reads that end in an I/O error, and come right later."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
from pyarrow import fs

from latermq.pipeline.timeline.root import Root


class FlakyFiles:
    """Passes everything on to another file system, but for reads that `fails` says yes to."""

    def __init__(self, files: fs.FileSystem, fails: Callable[[str, int], bool]) -> None:
        """`fails` is asked with the path and how many reads there were before, of all files."""
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
        """A read is about to happen."""
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
    """The same folder with reads that fail."""
    return Root(root.uri, cast(fs.FileSystem, FlakyFiles(root.files, fails)), root.path)
