"""The files of a library on a simulated disk: a real folder that can lose unsynced data."""

import os
import shutil
import tempfile
import weakref
from pathlib import Path
from random import Random

# RocksDB syncs often, and tests of its logic need not wait for a real disk.
_FAST_FOLDER = "/dev/shm" if Path("/dev/shm").is_dir() else None


class LibraryFolder:
    """A real folder, because libraries need one. It is removed when this object is garbage-collected."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="latermq-library-", dir=_FAST_FOLDER))
        self._remove = weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)
        # The size of each file when the library last synced, or None if it never reported a sync.
        self.synced_bytes: dict[str, int] | None = None

    def sizes(self) -> dict[str, tuple[int, int]]:
        """Return the size and modification time of every file."""
        found = {}
        for path in self.path.rglob("*"):
            try:
                status = path.stat()
            except FileNotFoundError:  # removed in the meantime
                continue
            if path.is_file():
                found[str(path.relative_to(self.path))] = (status.st_size, status.st_mtime_ns)
        return found

    def note_synced(self) -> None:
        self.synced_bytes = {name: size for name, (size, _) in self.sizes().items()}

    def copy(self) -> "LibraryFolder":
        """Copy the files as of one moment, although the library's threads may still write to them."""
        while True:
            before = self.sizes()
            copy = LibraryFolder()
            try:
                shutil.copytree(self.path, copy.path, dirs_exist_ok=True)
            except shutil.Error:
                before = {}
            if before == self.sizes():
                break
        copy.synced_bytes = self.synced_bytes
        return copy

    def cut_unsynced(self, chance: Random) -> None:
        """Cut write-ahead logs at random positions in their unsynced part.

        A library syncs every other file before it relies on it.
        """
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
