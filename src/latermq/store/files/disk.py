"""The store's files: mapped segments with reserved space, and small files that are replaced atomically.

No path leads out of the directory, whatever its parts are. Removal never follows a symbolic link.

Each operation is a sequence of system calls, and the process or the machine may crash between any two of them. The
store receives a Disk as an argument. `memory_disk.py` provides the same Disk on a simulated machine, which can fail,
fill up, crash between any two of these calls and lose unsynced data.
"""

import contextlib
import errno
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from latermq.errors import StoreError
from latermq.store.files.mapped_file import CallMappedFile, MappedFile
from latermq.store.files.paths import check_inside
from latermq.store.files.system_calls import FOLDER_MODE, Calls, SystemCalls

__all__ = ["CallDisk", "Disk", "FileDisk", "MappedFile"]

REMOVAL_PREFIX = "removing-"
_REMOVAL_CHARS = 100  # of the removed name, so that it is still a valid name with the prefix


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


class Disk(Protocol):
    """A directory. Paths are relative and use `/`."""

    def map_file(self, path: str, size: int) -> MappedFile:
        """Open the file with this size. Create it (sparse) if it is missing."""

    def lazy_file(self, path: str, size: int, *, is_complete: bool) -> MappedFile:
        """Return the same file, not mapped until `open_map`.

        With `is_complete` it exists with this size, and is not checked.
        """

    def list_names(self, folder: str) -> list[str]:
        """Return the sorted names in a folder, or an empty list if the folder is missing."""

    def file_size(self, path: str) -> int: ...

    def read(self, path: str) -> bytes | None:
        """Return the content of a small file, or None if it is missing."""

    def replace(self, path: str, data: bytes) -> None:
        """Write a small file atomically: after a crash it has either the old or the new content."""

    def remove(self, path: str) -> None:
        """Remove a file or a folder and its content, if it exists. A file may reappear after a power failure."""

    def sync_names(self, folder: str) -> None:
        """Return when all creations and removals in a folder would survive a crash of the machine."""

    def library_folder(self, name: str) -> Path:
        """Return a real folder for a library that manages its own files. Create it if it is missing."""

    def lock(self) -> None:
        """Lock this directory against all other processes until the process ends."""

    def unlock(self) -> None: ...

    def used_ratio(self) -> float:
        """Return how full the disk is, from 0 to 1."""


class CallDisk:
    """A Disk implemented with system calls."""

    def __init__(self, calls: Calls, where: str) -> None:
        self._calls = calls
        self._where = where
        self._lock_fd: int | None = None
        self._synced_folders: set[str] = set()  # folders of small files whose parent folders are known to be synced

    def map_file(self, path: str, size: int) -> MappedFile:
        return self._open_file(path, size, is_complete=False, is_mapped=True)

    def lazy_file(self, path: str, size: int, *, is_complete: bool) -> MappedFile:
        return self._open_file(path, size, is_complete=is_complete, is_mapped=False)

    def _open_file(self, path: str, size: int, *, is_complete: bool, is_mapped: bool) -> MappedFile:
        check_inside(path)
        try:
            try:
                return self._make_mapped(path, size, is_complete=is_complete, is_mapped=is_mapped)
            except FileNotFoundError:  # only for the first file of a folder
                self._make_folders(_parent(path))
                return self._make_mapped(path, size, is_complete=is_complete, is_mapped=is_mapped)
        except OSError as error:
            raise StoreError(
                f"cannot open {path}: {error.strerror}", hint="Run `latermq doctor` to check the limits"
            ) from None

    def _make_mapped(self, path: str, size: int, *, is_complete: bool, is_mapped: bool) -> MappedFile:
        return CallMappedFile(self._calls, path, size, is_complete=is_complete, is_mapped=is_mapped)

    def _make_folders(self, folder: str) -> None:
        if folder and not self._calls.is_folder(folder):
            self._make_folders(_parent(folder))
            try:
                self._calls.make_folder(folder)
            except FileExistsError:
                if not self._calls.is_folder(folder):  # otherwise another thread created it
                    raise

    def list_names(self, folder: str) -> list[str]:
        check_inside(folder)
        try:
            return sorted(self._calls.list_folder(folder))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise StoreError(
                f"cannot list {folder}: {error.strerror}", hint="Check that it is a readable directory"
            ) from None

    def file_size(self, path: str) -> int:
        return self._calls.file_size(check_inside(path))

    def read(self, path: str) -> bytes | None:
        try:
            fd = self._calls.open(check_inside(path), read_only=True)
        except FileNotFoundError:
            return None
        try:
            return self._calls.read(fd, self._calls.size(fd), 0)
        finally:
            self._calls.close(fd)

    def replace(self, path: str, data: bytes) -> None:
        draft = f"{check_inside(path)}.draft"
        try:
            self._make_folders(_parent(path))
            fd = self._calls.open(draft, create=True, empty=True)
            try:
                left, at = memoryview(data), 0
                while left:
                    written = self._calls.write(fd, left, at)
                    at, left = at + written, left[written:]
                self._calls.sync(fd)
            finally:
                self._calls.close(fd)
            self._calls.rename(draft, path)
            self._sync_parents(path)
        except OSError as error:
            raise StoreError(f"cannot write {path}: {error.strerror}", hint="Free disk space") from None

    def _sync_parents(self, path: str) -> None:
        """Make this name durable, and its folder too, which may be new: its parent folder must be synced."""
        folder = _parent(path)
        self._calls.sync_folder(folder)
        while folder and folder not in self._synced_folders:
            self._calls.sync_folder(_parent(folder))
            self._synced_folders.add(folder)
            folder = _parent(folder)

    def remove(self, path: str) -> None:
        check_inside(path)
        try:
            if self._is_own_folder(path):
                self._remove_folder(path)
            else:
                with contextlib.suppress(FileNotFoundError):
                    self._calls.unlink(path)
        except OSError as error:
            raise StoreError(f"cannot remove {path}: {error.strerror}", hint="Check the permissions") from None

    def _is_own_folder(self, path: str) -> bool:
        """Whether to remove this path as a folder with its content. For a link, only the link itself is removed."""
        return self._calls.is_folder(path) and not self._calls.is_link(path)

    def _remove_folder(self, path: str) -> None:
        """Remove a folder completely or not at all: a partial folder would look like damage."""
        name = path.rpartition("/")[2]
        renamed = f"{REMOVAL_PREFIX}{name[:_REMOVAL_CHARS]}"
        self._remove_all(renamed)
        try:
            self._calls.rename(path, renamed)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            # The parent folder is a link to another disk. The next start removes what a crash midway leaves.
            renamed = path
        self._calls.sync_folder(_parent(path))
        self._remove_all(renamed)

    def _remove_all(self, path: str) -> None:
        """Remove a folder and its content, file by file, or a single file, if it exists."""
        with contextlib.suppress(FileNotFoundError):
            if not self._is_own_folder(path):
                self._calls.unlink(path)
                return
            for name in self._calls.list_folder(path):
                self._remove_all(f"{path}/{name}")
            self._calls.remove_folder(path)

    def sync_names(self, folder: str) -> None:
        check_inside(folder)
        with contextlib.suppress(FileNotFoundError):
            self._calls.sync_folder(folder)

    def _make_library_folder(self, name: str) -> None:
        check_inside(name)
        try:
            if not self._calls.is_folder(name):
                self._make_folders(name)
                self._calls.sync_folder(_parent(name))
        except OSError as error:
            raise StoreError(f"cannot create {name}: {error.strerror}", hint="Check the permissions") from None

    def _remove_leftovers(self) -> None:
        """Complete the removals of a process that crashed midway."""
        for name in self.list_names(""):
            if name.startswith(REMOVAL_PREFIX):
                with contextlib.suppress(OSError):  # the next start tries again
                    self._remove_all(name)

    def lock(self) -> None:
        try:
            self._lock_fd = self._calls.lock("lock")
        except BlockingIOError:
            raise StoreError(
                f"{self._where} is in use by another process",
                hint="Stop that process, or choose another directory with --data",
            ) from None
        except OSError as error:
            raise StoreError(
                f"cannot open {self._where}/lock: {error.strerror}", hint="Choose a writable directory with --data"
            ) from None
        self._remove_leftovers()

    def unlock(self) -> None:
        if self._lock_fd is not None:
            self._calls.close(self._lock_fd)
            self._lock_fd = None

    def used_ratio(self) -> float:
        return self._calls.used_ratio()


class FileDisk(CallDisk):
    """A Disk in a real directory."""

    def __init__(self, root: Path, pause: Callable[[float], None] = lambda seconds: None) -> None:
        super().__init__(SystemCalls(root, pause), str(root))
        self._root = root
        try:
            root.mkdir(FOLDER_MODE, parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(
                f"cannot create the data directory {root}: {error.strerror}", hint="Choose a writable one with --data"
            ) from None

    def library_folder(self, name: str) -> Path:
        self._make_library_folder(name)
        return self._root / name
