"""The system calls that a Disk uses, each one a method. A crash can happen between any two of them.

`disk.py` defines their order. `simulated_calls.py` provides the same calls on a simulated machine in memory.
"""

import ctypes
import errno
import fcntl
import mmap
import os
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

# Messages are private: only the store's user may read its files, whatever the umask is.
FILE_MODE = 0o600
FOLDER_MODE = 0o700
_PUNCH_HOLE_KEEP_SIZE = 0x02 | 0x01
# If the file system does not support the call, glibc's posix_fallocate writes to the file instead, and overwrites
# concurrent writes. fallocate reports an error.
_fallocate = ctypes.CDLL(None, use_errno=True).fallocate
_fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
# A process that only checks whether a directory is in use holds its lock for a moment. A start must not fail because of
# that.
_POLL_S = 0.1
_UNSUPPORTED = (errno.EOPNOTSUPP, errno.ENOSYS, errno.ENOTTY)


def is_unsupported(error: OSError) -> bool:
    """Whether the file system does not support the call."""
    return error.errno in _UNSUPPORTED


def _link_in_path(path: str) -> OSError:
    reason = f"{path} is a symbolic link, which is followed only for folders in the data directory itself"
    return OSError(errno.ELOOP, reason, path)


class Calls(Protocol):
    """The system calls. Paths are relative to the Disk's directory, which is "" itself. All methods raise OSError."""

    def open(self, path: str, *, create: bool = False, empty: bool = False, read_only: bool = False) -> int:
        """Return a descriptor."""

    def close(self, fd: int) -> None: ...

    def size(self, fd: int) -> int: ...

    def truncate(self, fd: int, size: int) -> None: ...

    def allocate(self, fd: int, start: int, size: int) -> None:
        """Allocate disk space for these bytes without changing them."""

    def punch(self, fd: int, start: int, size: int) -> None:
        """Make these bytes read as zeros and free their disk space. The file keeps its size."""

    def next_data(self, fd: int, at: int) -> int | None:
        """Return the first position from `at` on that may hold nonzero bytes, or None."""

    def next_hole(self, fd: int, at: int) -> int:
        """Return the end of the possibly nonzero bytes from `at` on."""

    def read(self, fd: int, size: int, at: int) -> bytes: ...

    def write(self, fd: int, data: bytes | memoryview, at: int) -> int:
        """Return the number of bytes written."""

    def sync(self, fd: int) -> None: ...

    def will_need(self, fd: int, at: int, size: int) -> None: ...

    def map(self, fd: int, size: int) -> mmap.mmap: ...

    def unmap(self, mapped: mmap.mmap) -> None: ...

    def forget_pages(self, mapped: mmap.mmap, at: int, size: int) -> None:
        """Give up the process's memory for these bytes. The content stays; the next use maps it again."""

    def file_size(self, path: str) -> int: ...

    def is_folder(self, path: str) -> bool:
        """Whether this is a folder or a link to one."""

    def is_link(self, path: str) -> bool: ...

    def list_folder(self, path: str) -> list[str]: ...

    def make_folder(self, path: str) -> None: ...

    def remove_folder(self, path: str) -> None:
        """Remove an empty folder."""

    def unlink(self, path: str) -> None: ...

    def rename(self, path: str, new_path: str) -> None: ...

    def sync_folder(self, path: str) -> None:
        """Return when the names in a folder would survive a crash of the machine."""

    def lock(self, path: str) -> int:
        """Create this file if necessary, lock it against all other processes, and return its descriptor."""

    def used_ratio(self) -> float: ...


class SystemCalls:
    """The system calls of this machine."""

    def __init__(self, root: Path, pause: Callable[[float], None] = lambda seconds: None) -> None:
        """`pause` waits for this many seconds, so that another process can release its lock."""
        self._root = root
        # A start looks at every file, and a Path for each would take a third of its time.
        self._prefix = f"{root}/"
        self._pause = pause

    def open(self, path: str, *, create: bool = False, empty: bool = False, read_only: bool = False) -> int:
        how = (os.O_RDONLY if read_only else os.O_RDWR) | (os.O_CREAT if create else 0) | (os.O_TRUNC if empty else 0)
        try:
            return os.open(self._text_at(path), how if read_only else how | os.O_NOFOLLOW, FILE_MODE)
        except OSError as error:
            if error.errno == errno.ELOOP:
                self.check_no_link(path)
            raise

    def check_no_link(self, path: str) -> None:
        """Raise the error of a write if the file is a link or if a folder above it is a link that is not followed."""
        self._at(path)
        if self.is_link(path):
            raise _link_in_path(path)

    def _text_at(self, path: str) -> str:
        """Return the path of a file. Links directly in the directory are followed, but none below it.

        A folder in the directory may be a link to another disk. The program chooses the names there. The names below
        contain input from clients. A user who can create links there must not make the broker write or remove anything
        elsewhere.
        """
        end = path.find("/", path.find("/") + 1)
        while end > 0:
            if self.is_link(path[:end]):
                raise _link_in_path(path[:end])
            end = path.find("/", end + 1)
        return self._prefix + path

    def _at(self, path: str) -> Path:
        return Path(self._text_at(path))

    def close(self, fd: int) -> None:
        os.close(fd)

    def size(self, fd: int) -> int:
        return os.fstat(fd).st_size

    def truncate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

    def allocate(self, fd: int, start: int, size: int) -> None:
        self._fallocate(fd, 0, start, size)

    def punch(self, fd: int, start: int, size: int) -> None:
        self._fallocate(fd, _PUNCH_HOLE_KEEP_SIZE, start, size)

    def _fallocate(self, fd: int, mode: int, start: int, size: int) -> None:
        while _fallocate(fd, mode, start, size):
            number = ctypes.get_errno()
            if number != errno.EINTR:
                raise OSError(number, os.strerror(number))

    def next_data(self, fd: int, at: int) -> int | None:
        try:
            return os.lseek(fd, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return None
            if error.errno == errno.EINVAL:  # a file system without support for holes
                return at if at < os.fstat(fd).st_size else None
            raise

    def next_hole(self, fd: int, at: int) -> int:
        try:
            return os.lseek(fd, at, os.SEEK_HOLE)
        except OSError as error:
            if error.errno == errno.EINVAL:
                return os.fstat(fd).st_size
            raise

    def read(self, fd: int, size: int, at: int) -> bytes:
        return os.pread(fd, size, at)

    def write(self, fd: int, data: bytes | memoryview, at: int) -> int:
        return os.pwrite(fd, data, at)

    def sync(self, fd: int) -> None:
        os.fdatasync(fd)

    def will_need(self, fd: int, at: int, size: int) -> None:
        os.posix_fadvise(fd, at, size, os.POSIX_FADV_WILLNEED)

    def map(self, fd: int, size: int) -> mmap.mmap:
        return mmap.mmap(fd, size)

    def unmap(self, mapped: mmap.mmap) -> None:
        mapped.close()

    def forget_pages(self, mapped: mmap.mmap, at: int, size: int) -> None:
        mapped.madvise(mmap.MADV_DONTNEED, at, size)

    def file_size(self, path: str) -> int:
        return os.stat(self._text_at(path)).st_size  # noqa: PTH116, see `_prefix`

    def is_folder(self, path: str) -> bool:
        return (self._root / path).is_dir()

    def is_link(self, path: str) -> bool:
        return os.path.islink(self._prefix + path)  # noqa: PTH114, see `_prefix`

    def list_folder(self, path: str) -> list[str]:
        with os.scandir(self._text_at(f"{path}/" if path else "")) as entries:
            return [entry.name for entry in entries]

    def make_folder(self, path: str) -> None:
        self._at(path).mkdir(FOLDER_MODE)

    def remove_folder(self, path: str) -> None:
        self._at(path).rmdir()

    def unlink(self, path: str) -> None:
        self._at(path).unlink()

    def rename(self, path: str, new_path: str) -> None:
        self._at(path).rename(self._at(new_path))

    def sync_folder(self, path: str) -> None:
        fd = os.open(self._text_at(path), os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def lock(self, path: str) -> int:
        fd = self.open(path, create=True)
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self._pause(_POLL_S)
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            raise
        return fd

    def used_ratio(self) -> float:
        """Return the ratio of the fullest disk: a folder may be a link to another one."""
        with os.scandir(self._root) as entries:
            linked = [entry.path for entry in entries if entry.is_symlink() and entry.is_dir()]
        return max(map(_used_ratio, (str(self._root), *linked)))


def _used_ratio(path: str) -> float:
    status = os.statvfs(path)
    total = status.f_blocks - status.f_bfree + status.f_bavail
    return 1 - status.f_bavail / total if total else 0.0
