"""A Disk in memory, for tests: it can fill up, fail, and die like a process or like a machine."""

import mmap
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np

from latermq.errors import StoreError

PAGE_BYTES = 4096
Pages = dict[int, bytes]  # by number
# RocksDB syncs a good deal, which a test of its logic need not wait for.
_FAST_FOLDER = "/dev/shm" if Path("/dev/shm").is_dir() else None


class _LibraryFolder:
    """A real folder, as a library knows no other, that is removed when nobody needs this object any more."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="latermq-library-", dir=_FAST_FOLDER))
        self._remove = weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)
        # How long each file was when the library last synced; None where it never said so.
        self.synced_bytes: dict[str, int] | None = None

    def sizes(self) -> dict[str, tuple[int, int]]:
        """Every file with its length and the time of its last change."""
        found = {}
        for path in self.path.rglob("*"):
            try:
                status = path.stat()
            except FileNotFoundError:  # removed meanwhile
                continue
            if path.is_file():
                found[str(path.relative_to(self.path))] = (status.st_size, status.st_mtime_ns)
        return found

    def note_synced(self) -> None:
        self.synced_bytes = {name: size for name, (size, _) in self.sizes().items()}

    def copy(self) -> "_LibraryFolder":
        """The files as they are at one moment, though the library's threads may still write to them."""
        while True:
            before = self.sizes()
            copy = _LibraryFolder()
            try:
                shutil.copytree(self.path, copy.path, dirs_exist_ok=True)
            except shutil.Error:
                before = {}
            if before == self.sizes():
                break
        copy.synced_bytes = self.synced_bytes
        return copy

    def cut_unsynced(self, chance: Random) -> None:
        """Lose, as chance has it, the ends of write-ahead logs; every other file a library syncs before it counts."""
        if self.synced_bytes is None:
            return
        for name in self.sizes():
            path = self.path / name
            size = path.stat().st_size
            if path.suffix == ".log":
                os.truncate(path, chance.randint(min(self.synced_bytes.get(name, 0), size), size))
        self.note_synced()

    def remove(self) -> None:
        self._remove()


class _MemoryMappedFile:
    """A mapped file whose last synced content is remembered.

    Files are large and nearly empty: content is kept as its pages that are not zero, and the map is of huge pages,
    which are read as zeros without being there.
    """

    def __init__(
        self, disk: "MemoryDisk", path: str, size: int, reserved: int = 0, content: Pages | None = None
    ) -> None:
        self._disk = disk
        self.path = path
        self.size = size
        self.reserved = reserved
        self.map = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.map.madvise(mmap.MADV_HUGEPAGE)
        self.synced: Pages = content or {}
        for page, data in self.synced.items():
            self.map[page * PAGE_BYTES : page * PAGE_BYTES + len(data)] = data

    def pages(self) -> Pages:
        """The content of what is reserved."""
        whole = self.reserved // PAGE_BYTES
        words = np.frombuffer(self.map, np.uint64, whole * PAGE_BYTES // 8).reshape(whole, PAGE_BYTES // 8)
        used = np.bitwise_or.reduce(words, axis=1).nonzero()[0].tolist()
        found = {page: self.map[page * PAGE_BYTES : (page + 1) * PAGE_BYTES] for page in used}
        if any(rest := self.map[whole * PAGE_BYTES : self.reserved]):
            found[whole] = rest
        return found

    def reserve(self, upto: int) -> None:
        upto = min(upto, self.size)
        if upto <= self.reserved:
            return
        self._disk.before("reserve", self.path)
        self._disk.take(upto - self.reserved, self.path)
        self.reserved = upto

    def bring_in(self, start: int, upto: int) -> None:
        """It is in memory."""

    def write(self, at: int, data: memoryview) -> None:
        half = len(data) // 2
        self.map[at : at + half] = bytes(data[:half])
        self._disk.before("write", self.path)  # which may fail half-way
        self.map[at + half : at + len(data)] = bytes(data[half:])

    def sync(self) -> None:
        self._disk.before("sync", self.path)
        self.synced = self.pages()

    def zero_from(self, at: int) -> None:
        page, inside = divmod(at, PAGE_BYTES)
        next_page = page * PAGE_BYTES if inside == 0 else min((page + 1) * PAGE_BYTES, self.size)
        self.map[at:next_page] = bytes(next_page - at)
        if next_page < self.size:
            self.map.madvise(mmap.MADV_DONTNEED, next_page)  # of memory without a file: to be read as zeros
        self.synced = {number: data for number, data in self.synced.items() if number < page} | (
            {page: self.synced[page][:inside]} if inside and page in self.synced else {}
        )

    def close(self) -> None:
        """The content stays, as a file's does."""


class MemoryDisk:
    """A Disk whose files are memory. `before_step` may raise to make an operation fail."""

    def __init__(self, capacity_bytes: int = 1 << 40) -> None:
        self.capacity_bytes = capacity_bytes
        self.used_bytes = 0
        self.before_step: Callable[[str, str], None] = lambda operation, path: None
        self._mapped: dict[str, _MemoryMappedFile] = {}
        self._small: dict[str, bytes] = {}
        self._libraries: dict[str, _LibraryFolder] = {}
        self._locked = False

    def before(self, operation: str, path: str) -> None:
        """Give the test its chance to fail this operation."""
        self.before_step(operation, path)

    def take(self, size_bytes: int, path: str) -> None:
        """Use up space, as reserving does."""
        if self.used_bytes + size_bytes > self.capacity_bytes:
            raise StoreError(f"no disk space for {path}", hint="Free disk space or shorten store.retention")
        self.used_bytes += size_bytes

    def map_file(self, path: str, size: int) -> _MemoryMappedFile:
        self.before("map", path)
        file = self._mapped.get(path)
        if file is None:
            file = self._mapped[path] = _MemoryMappedFile(self, path, size)
        return file

    def list_names(self, folder: str) -> list[str]:
        prefix = folder + "/"
        paths = [path for path in (*self._mapped, *self._small) if path.startswith(prefix)]
        return sorted({path.removeprefix(prefix).split("/", 1)[0] for path in paths})

    def file_size(self, path: str) -> int:
        if path in self._mapped:
            return self._mapped[path].size
        if path not in self._small:
            raise FileNotFoundError(path)
        return len(self._small[path])

    def read(self, path: str) -> bytes | None:
        return self._small.get(path)

    def replace(self, path: str, data: bytes) -> None:
        self.before("replace", path)
        self._small[path] = data

    def remove(self, path: str) -> None:
        self.before("remove", path)
        for table in (self._mapped, self._small):
            for name in [name for name in table if name == path or name.startswith(path + "/")]:
                if table is self._mapped:
                    self.used_bytes -= self._mapped[name].reserved
                del table[name]
        for name in [name for name in self._libraries if name == path or name.startswith(path + "/")]:
            self._libraries.pop(name).remove()

    def library_folder(self, name: str) -> Path:
        self.before("library", name)
        if name not in self._libraries:
            self._libraries[name] = _LibraryFolder()
        return self._libraries[name].path

    def library_synced(self, name: str) -> None:
        """To be called when a library has synced: from now on a power cut takes from its logs what comes later.

        As long as nobody calls it for a folder, a power cut leaves that folder as it is.
        """
        self._libraries[name].note_synced()

    def lock(self) -> None:
        if self._locked:
            raise StoreError("the directory is in use by another process")
        self._locked = True

    def unlock(self) -> None:
        self._locked = False

    def used_ratio(self) -> float:
        return self.used_bytes / self.capacity_bytes

    def after_process_death(self) -> "MemoryDisk":
        """The disk that the next process finds: everything written is there, synced or not."""
        copy = self._copy(_MemoryMappedFile.pages)
        for path, file in self._mapped.items():
            copy._mapped[path].synced = file.synced  # the next power cut still takes what was not synced
        return copy

    def after_machine_death(self, chance: Random) -> "MemoryDisk":
        """The disk after a power cut: of what was not synced, each page is there or not, as chance has it."""

        def survived(file: _MemoryMappedFile) -> Pages:
            old, new = file.synced, file.pages()
            return {
                page: content[page]
                for page in sorted(old.keys() | new.keys())
                if page in (content := new if chance.random() < 0.5 else old)
            }

        copy = self._copy(survived)
        for folder in copy._libraries.values():
            folder.cut_unsynced(chance)
        return copy

    def _copy(self, content: Callable[[_MemoryMappedFile], Pages]) -> "MemoryDisk":
        copy = MemoryDisk(self.capacity_bytes)
        copy.used_bytes = self.used_bytes
        copy._small = dict(self._small)
        for path, file in self._mapped.items():
            copy._mapped[path] = _MemoryMappedFile(copy, path, file.size, file.reserved, content(file))
        copy._libraries = {name: folder.copy() for name, folder in self._libraries.items()}
        return copy
