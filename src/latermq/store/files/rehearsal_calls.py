"""System calls of a Disk that change nothing: a rehearsal of a start that does not touch the store's files.

Real files are only read. Everything written, truncated, renamed or removed stays in the memory of this process.
"""

import errno
import fcntl
import itertools
import mmap
import os
from pathlib import Path

from latermq.store.files.system_calls import SystemCalls

_COMPARED_BYTES = 1 << 20


def _failure(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)


class _File:
    """One file: the real one, with a private map once it is written, or memory if it is longer than the real one."""

    def __init__(self, real: Path | None) -> None:
        # The real file as long as it has the same bytes: it knows its holes.
        self.unchanged = real
        self.size = real.stat().st_size if real is not None else 0
        self._map = None if real is not None and self.size else mmap.mmap(-1, mmap.PAGESIZE)
        self._holds_descriptor = False
        self.is_shown = False  # whether a caller has its map

    @property
    def map(self) -> mmap.mmap:
        if self._map is None:
            assert self.unchanged is not None
            with self.unchanged.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), self.size, access=mmap.ACCESS_COPY)
            self._holds_descriptor = True
        return self._map

    def read(self, at: int, size: int) -> bytes:
        if self._map is None and self.unchanged is not None:
            with self.unchanged.open("rb") as file:
                return os.pread(file.fileno(), size, at)
        return self.map[at : min(at + size, self.size)]

    def release_descriptor(self) -> None:
        """Release the descriptor: a store may have more files than a process may open."""
        if not self._holds_descriptor:
            return
        self._holds_descriptor = False
        if self.unchanged is None:
            # Copy only nonzero data, because each written page costs memory.
            kept = mmap.mmap(-1, len(self.map))
            for at in range(0, self.size, _COMPARED_BYTES):
                piece = self.map[at : at + _COMPARED_BYTES]
                if piece.strip(b"\0"):
                    kept[at : at + len(piece)] = piece
            self._map = kept
        else:
            self._map = None

    def resize(self, size: int) -> None:
        self.change()
        if size > len(self.map):
            grown = mmap.mmap(-1, size)
            grown[: self.size] = self.map[: self.size]
            self._map, self._holds_descriptor = grown, False
        elif size < self.size:
            self.zero(size, self.size)
        self.size = size

    def change(self) -> mmap.mmap:
        """Mark the file as different from the real one, and return its map."""
        mapped = self.map
        self.unchanged = None
        return mapped

    def zero(self, start: int, end: int) -> None:
        """Set bytes to zero. Write only where they are nonzero, because each written page costs memory."""
        self.change()
        for at in range(start, end, _COMPARED_BYTES):
            upto = min(end, at + _COMPARED_BYTES)
            if self.map[at:upto].strip(b"\0"):
                self.map[at:upto] = bytes(upto - at)


class RehearsalCalls:
    """Implements `Calls` without changing real files."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._real = SystemCalls(root)
        self._files: dict[str, _File] = {}  # opened or created files
        self._folders: set[str] = set()  # created folders
        self._gone: set[str] = set()  # removed or renamed real files and folders
        self._open: dict[int, _File] = {}
        self._mapped: dict[int, _File] = {}  # by the ids of their maps
        self._fds = itertools.count(1)

    # Files and folders

    def _is_seen(self, path: str) -> bool:
        """Whether neither this path nor a folder above it was removed."""
        parts = path.split("/")
        return not any("/".join(parts[:end]) in self._gone for end in range(1, len(parts) + 1))

    def _is_real(self, path: str) -> bool:
        """Whether the real file or folder at this path is still visible."""
        return self._is_seen(path) and (self._root / path).exists()

    def _find(self, path: str) -> _File | None:
        file = self._files.get(path)
        if file is None and self._is_real(path) and (self._root / path).is_file():
            file = self._files[path] = _File(self._root / path)
        return file

    def _require(self, path: str) -> _File:
        file = self._find(path)
        if file is None:
            raise _failure(errno.EISDIR if self.is_folder(path) else errno.ENOENT, path)
        return file

    def file_size(self, path: str) -> int:
        file = self._files.get(path)
        if file is not None:
            return file.size
        if not self._is_real(path):
            raise _failure(errno.ENOENT, path)
        return (self._root / path).stat().st_size

    def is_folder(self, path: str) -> bool:
        return not path or path in self._folders or (self._is_real(path) and (self._root / path).is_dir())

    def is_link(self, path: str) -> bool:
        return self._is_seen(path) and self._real.is_link(path)

    def list_folder(self, path: str) -> list[str]:
        if not self.is_folder(path):
            raise _failure(errno.ENOENT, path)
        prefix = f"{path}/" if path else ""
        made = {name.removeprefix(prefix).split("/")[0] for name in (*self._files, *self._folders)
                if name.startswith(prefix)}  # fmt: skip
        real = {child.name for child in (self._root / path).iterdir()} if not path or self._is_real(path) else set()
        return sorted(made | {name for name in real if prefix + name not in self._gone})

    def make_folder(self, path: str) -> None:
        if self.is_folder(path):
            raise _failure(errno.EEXIST, path)
        self._folders.add(path)

    def remove_folder(self, path: str) -> None:
        if self.list_folder(path):
            raise _failure(errno.ENOTEMPTY, path)
        self._folders.discard(path)
        self._gone.add(path)

    def unlink(self, path: str) -> None:
        if not self.is_link(path):
            self._require(path)
        self._files.pop(path, None)
        self._gone.add(path)

    def rename(self, path: str, new_path: str) -> None:
        if self.is_folder(path):
            self.make_folder(new_path)
            for name in self.list_folder(path):
                self.rename(f"{path}/{name}", f"{new_path}/{name}")
            self.remove_folder(path)
            return
        file = self._require(path)
        self.unlink(path)
        self._files[new_path] = file

    def sync_folder(self, path: str) -> None:
        """Do nothing: a rehearsal keeps nothing."""

    # Open files

    def open(self, path: str, *, create: bool = False, empty: bool = False, read_only: bool = False) -> int:
        if not read_only and path not in self._files and self._is_seen(path):
            self._real.check_no_link(path)
        file = self._find(path)
        if file is None:
            if not create or self.is_folder(path):
                raise _failure(errno.EISDIR if self.is_folder(path) else errno.ENOENT, path)
            file = self._files[path] = _File(None)
        if empty:
            file.resize(0)
        fd = next(self._fds)
        self._open[fd] = file
        return fd

    def close(self, fd: int) -> None:
        file = self._open.pop(fd)
        if not file.is_shown:
            file.release_descriptor()

    def size(self, fd: int) -> int:
        return self._open[fd].size

    def truncate(self, fd: int, size: int) -> None:
        self._open[fd].resize(size)

    def allocate(self, fd: int, start: int, size: int) -> None:
        """Take no disk space. The file counts as changed, because reserved bytes may be written through the map."""
        self._open[fd].change()

    def punch(self, fd: int, start: int, size: int) -> None:
        self._open[fd].zero(start, start + size)

    def next_data(self, fd: int, at: int) -> int | None:
        file = self._open[fd]
        if file.unchanged is not None:
            with file.unchanged.open("rb") as real:
                return self._real.next_data(real.fileno(), at)
        return at if at < file.size else None

    def next_hole(self, fd: int, at: int) -> int:
        file = self._open[fd]
        if file.unchanged is not None:
            with file.unchanged.open("rb") as real:
                return self._real.next_hole(real.fileno(), at)
        return file.size

    def read(self, fd: int, size: int, at: int) -> bytes:
        return self._open[fd].read(at, size)

    def write(self, fd: int, data: bytes | memoryview, at: int) -> int:
        file = self._open[fd]
        file.change()
        if at + len(data) > file.size:
            file.resize(at + len(data))
        file.map[at : at + len(data)] = bytes(data)
        return len(data)

    def sync(self, fd: int) -> None:
        """Do nothing: a rehearsal keeps nothing."""

    def will_need(self, fd: int, at: int, size: int) -> None:
        """Do nothing: this is only a hint."""

    def map(self, fd: int, size: int) -> mmap.mmap:
        file = self._open[fd]
        if len(file.map) < size:
            file.resize(size)
        file.is_shown = True
        self._mapped[id(file.map)] = file
        return file.map

    def forget_pages(self, mapped: mmap.mmap, at: int, size: int) -> None:
        """Do nothing: changes are only in this memory, not in the file."""

    def unmap(self, mapped: mmap.mmap) -> None:
        file = self._mapped.pop(id(mapped), None)
        if file is not None:
            file.is_shown = False
            file.release_descriptor()

    def lock(self, path: str) -> int:
        """Check that no other process uses the store, as a rehearsal requires. The lock is not kept."""
        real = self._root / path
        if real.exists():
            with real.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return self.open(path, create=True)

    def used_ratio(self) -> float:
        return 0.0
