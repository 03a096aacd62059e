"""Files as the store uses them: mapped segments with reserved space, small files replaced atomically.

The store takes a Disk as an argument, so that a simulated one can fail, fill up and forget what was not synced
(memory_disk.py).
"""

import contextlib
import fcntl
import itertools
import mmap
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from latermq.errors import StoreError

_GOING_PREFIX = "removing-"
_BROUGHT_IN_BYTES = 128 << 10  # at once: the kernel reads no further ahead than the disk's setting says
_WRITTEN_NEXT_BYTES = 128 << 20  # the most that lies between what is read in order and the end of what is reserved


def _sync_folder(folder: Path) -> None:
    """Return when the names in a folder would survive the death of the machine."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


class MappedFile(Protocol):
    """A file of fixed size, mapped into memory. Only reserved bytes may be written: the rest may have no disk."""

    path: str
    size: int
    map: mmap.mmap
    reserved: int

    def reserve(self, upto: int) -> None:
        """Make sure that bytes below `upto` have disk space. Raises StoreError when there is none."""

    def bring_in(self, start: int, upto: int) -> None:
        """Have memory for these bytes, whose space is reserved, before they are written. Blocks; changes nothing."""

    def write(self, at: int, data: memoryview) -> None:
        """Put a block of bytes where space is reserved; the map shows them. Raises StoreError, with any part written.

        Where a block is many pages long this is several times as fast as writing to the map, which takes a fault for
        each page, and each fault waits where a sync is under way.
        """

    def sync(self) -> None:
        """Return when everything written so far would survive the death of the machine."""

    def zero_from(self, at: int) -> None:
        """Make everything from `at` read as zeros and give its disk space back."""

    def close(self) -> None: ...


class Disk(Protocol):
    """A directory. Paths are relative, with `/`."""

    def map_file(self, path: str, size: int) -> MappedFile:
        """Open the file at this size, creating it (sparse) where it is missing."""

    def list_names(self, folder: str) -> list[str]:
        """Names inside a folder, sorted; none where the folder is missing."""

    def file_size(self, path: str) -> int: ...

    def read(self, path: str) -> bytes | None:
        """The whole content of a small file, None where it is missing."""

    def replace(self, path: str, data: bytes) -> None:
        """Write a small file so that, whatever happens, either the old or the new content is found."""

    def remove(self, path: str) -> None:
        """Remove a file or a folder with all it holds; fine when it is missing."""

    def library_folder(self, name: str) -> Path:
        """A folder of the machine for a library that keeps files of its own, made where it is missing."""

    def lock(self) -> None:
        """Keep every other process out of this directory, until the process ends."""

    def unlock(self) -> None: ...

    def used_ratio(self) -> float:
        """How full the disk is, 0 to 1."""


class _RealMappedFile:
    """A mapped file in a real directory."""

    def __init__(self, absolute: Path, path: str, size: int) -> None:
        self.path = path
        self.size = size
        self._absolute = absolute
        absolute.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(absolute, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            if os.fstat(fd).st_size != size:
                os.ftruncate(fd, size)
            # Reserving again what has its blocks already is cheap; trusting a sparse file's block count is not safe.
            self.reserved = 0
            self.map = mmap.mmap(fd, size)
            self._is_entered = False
            self._short_from = 0  # where the part begins whose faults are kept short
            self._write_fd = -1
        finally:
            # The map keeps a descriptor of its own; a second one for each of thousands of queues is too many. Those
            # that blocks are written to have one from the first block on.
            os.close(fd)

    def _with_fd(self, action: Callable[[int], None]) -> None:
        fd = os.open(self._absolute, os.O_RDWR)
        try:
            action(fd)
        finally:
            os.close(fd)

    def reserve(self, upto: int) -> None:
        upto = min(upto, self.size)
        start = self.reserved
        if upto <= start:
            return
        try:
            self._with_fd(lambda fd: os.posix_fallocate(fd, start, upto - start))
        except OSError as error:
            raise StoreError(
                f"no disk space for {self.path} ({error.strerror})", hint="Free disk space or shorten store.retention"
            ) from None
        self.reserved = upto
        self._keep_faults_short(start, upto)

    def _keep_faults_short(self, start: int, upto: int) -> None:
        """Writing to a page for the first time shall bring in that page, and not what the disk reads ahead.

        Measured with a read-ahead of 8 MB: one write in 8 MB took 20 ms, all of it spent on clearing pages that
        nobody had asked for. What lies further behind the writer is read in order, and reading ahead helps it.
        """
        start = max(start, upto - _WRITTEN_NEXT_BYTES) // mmap.PAGESIZE * mmap.PAGESIZE
        self.map.madvise(mmap.MADV_RANDOM, start, upto - start)
        if self._short_from:  # the writer may still be in the last step but one, not before it
            self.map.madvise(mmap.MADV_NORMAL, 0, self._short_from)
        self._short_from = start

    def bring_in(self, start: int, upto: int) -> None:
        def read(fd: int) -> None:
            for at in range(start, upto, _BROUGHT_IN_BYTES):
                os.posix_fadvise(fd, at, min(_BROUGHT_IN_BYTES, upto - at), os.POSIX_FADV_WILLNEED)

        with contextlib.suppress(OSError):  # only a hint; a file that is gone needs none
            self._with_fd(read)

    def write(self, at: int, data: memoryview) -> None:
        try:
            if self._write_fd < 0:
                self._write_fd = os.open(self._absolute, os.O_RDWR)
            while data:
                written = os.pwrite(self._write_fd, data, at)
                at, data = at + written, data[written:]
        except OSError as error:
            raise StoreError(
                f"cannot write to {self.path} ({error.strerror})", hint="Look at the disk; it is tried again"
            ) from None

    def sync(self) -> None:
        # fdatasync also writes what was changed through the map, and lets other threads run meanwhile; msync does not.
        with contextlib.suppress(FileNotFoundError):  # removed meanwhile: nobody needs it any more
            self._with_fd(os.fdatasync)
        if not self._is_entered:
            # A new file is found after a power cut only if its folders know it.
            for folder in itertools.islice(self._absolute.parents, len(Path(self.path).parts)):
                _sync_folder(folder)
            self._is_entered = True

    def zero_from(self, at: int) -> None:
        def cut(fd: int) -> None:
            os.ftruncate(fd, at)
            os.ftruncate(fd, self.size)

        self._with_fd(cut)
        self.reserved = min(self.reserved, at // 4096 * 4096)

    def close(self) -> None:
        self.map.close()
        if self._write_fd >= 0:
            os.close(self._write_fd)
            self._write_fd = -1


class FileDisk:
    """A Disk that is a directory of the machine."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._lock_fd: int | None = None
        try:
            root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(
                f"cannot make the data directory {root}: {error.strerror}", hint="Name a writable one with --data"
            ) from None
        for left in root.glob(f"{_GOING_PREFIX}*"):
            shutil.rmtree(left, ignore_errors=True)

    def map_file(self, path: str, size: int) -> MappedFile:
        try:
            return _RealMappedFile(self._root / path, path, size)
        except OSError as error:
            raise StoreError(f"cannot open {path}: {error.strerror}", hint="`latermq doctor` checks limits") from None

    def list_names(self, folder: str) -> list[str]:
        try:
            return sorted(path.name for path in (self._root / folder).iterdir())
        except FileNotFoundError:
            return []

    def file_size(self, path: str) -> int:
        return (self._root / path).stat().st_size

    def read(self, path: str) -> bytes | None:
        try:
            return (self._root / path).read_bytes()
        except FileNotFoundError:
            return None

    def replace(self, path: str, data: bytes) -> None:
        target = self._root / path
        draft = target.with_name(target.name + ".draft")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with draft.open("wb") as file:
                file.write(data)
                file.flush()
                os.fdatasync(file.fileno())
            draft.rename(target)
            _sync_folder(target.parent)
        except OSError as error:
            raise StoreError(f"cannot write {path}: {error.strerror}", hint="Free disk space") from None

    def remove(self, path: str) -> None:
        target = self._root / path
        try:
            if target.is_dir():
                # A folder goes at once or not at all: half of one would look like damage.
                going = self._root / f"{_GOING_PREFIX}{target.name}"
                shutil.rmtree(going, ignore_errors=True)
                target.rename(going)
                _sync_folder(target.parent)
                shutil.rmtree(going)
            else:
                target.unlink(missing_ok=True)
        except OSError as error:
            raise StoreError(f"cannot remove {path}: {error.strerror}", hint="Check the permissions") from None

    def library_folder(self, name: str) -> Path:
        folder = self._root / name
        try:
            if not folder.is_dir():
                folder.mkdir(parents=True)
                _sync_folder(folder.parent)
        except OSError as error:
            raise StoreError(f"cannot make {name}: {error.strerror}", hint="Check the permissions") from None
        return folder

    def lock(self) -> None:
        try:
            fd = os.open(self._root / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise StoreError(
                f"cannot open {self._root}/lock: {error.strerror}", hint="Name a writable directory with --data"
            ) from None
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            raise StoreError(
                f"{self._root} is in use by another process", hint="Stop that broker, or name another --data"
            ) from None
        self._lock_fd = fd

    def unlock(self) -> None:
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None

    def used_ratio(self) -> float:
        status = os.statvfs(self._root)
        total = status.f_blocks - status.f_bfree + status.f_bavail
        return 1 - status.f_bavail / total if total else 0.0
