"""What a library keeps on a simulated disk: a real folder, which can lose what was not synced."""

import os
import shutil
import tempfile
import weakref
from pathlib import Path
from random import Random

# RocksDB syncs a good deal, which a test of its logic need not wait for.
_FAST_FOLDER = "/dev/shm" if Path("/dev/shm").is_dir() else None


class LibraryFolder:
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

    def copy(self) -> "LibraryFolder":
        """The files as they are at one moment, though the library's threads may still write to them."""
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
