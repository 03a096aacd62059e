"""A file of lines that is replaced by a new one when it is full. A given number of old files is kept."""

import contextlib
import os
import stat
from pathlib import Path

_MODE = 0o600


class RotatedFile:
    """Appends lines to `NAME`. Full files become `NAME.1`, `NAME.2` and so on; the highest number is the oldest."""

    def __init__(self, path: Path, max_bytes: int, max_files: int) -> None:
        """`max_files` counts the current file, too."""
        self._path = path
        self._max_bytes = max_bytes
        self._max_files = max_files
        self._fd = -1
        self._size = 0

    def append(self, lines: bytes, *, sync: bool) -> None:
        """Append whole lines. After an OSError none of them is in the file, and the call may be repeated."""
        self._reopen_if_replaced()
        if self._size and self._size + len(lines) > self._max_bytes:
            self._rotate()
        try:
            self._write(lines)
            if sync:
                os.fsync(self._fd)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, self._size)
            self.close()
            raise
        self._size += len(lines)

    def close(self) -> None:
        """Close the file. The next call opens it again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _write(self, lines: bytes) -> None:
        rest = memoryview(lines)
        while rest:
            rest = rest[os.write(self._fd, rest) :]

    def _reopen_if_replaced(self) -> None:
        """Open the file, also after an operator has moved or removed it."""
        if self._fd >= 0:
            try:
                found = self._path.lstat()
                own = os.fstat(self._fd)
                if (found.st_dev, found.st_ino) == (own.st_dev, own.st_ino):
                    return
            except FileNotFoundError:
                pass
            self.close()
        self._open()

    def _open(self) -> None:
        self._path.parent.mkdir(0o700, parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        fd = os.open(self._path, flags, _MODE)
        try:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode):
                raise FileExistsError(f"{self._path} is not a file")
            os.fchmod(fd, _MODE)
            size = found.st_size
            if size and os.pread(fd, 1, size - 1) != b"\n":  # the process was killed in the middle of a line
                size += os.write(fd, b"\n")
        except OSError:
            os.close(fd)
            raise
        self._fd, self._size = fd, size
        self._remove_surplus()

    def _rotate(self) -> None:
        """Rename from the oldest to the newest. A crash in between leaves a gap, which the next rotation fills."""
        self.close()
        for number in range(self._max_files - 2, -1, -1):
            with contextlib.suppress(FileNotFoundError):
                self._numbered(number).replace(self._numbered(number + 1))
        if self._max_files == 1:
            self._path.unlink(missing_ok=True)
        self._open()

    def _numbered(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}") if number else self._path

    def _remove_surplus(self) -> None:
        """Remove files that are left from a larger number of files."""
        prefix = self._path.name + "."
        for path in self._path.parent.glob(f"{self._path.name}.*"):
            number = path.name.removeprefix(prefix)
            if number.isdecimal() and int(number) >= self._max_files:
                path.unlink(missing_ok=True)
