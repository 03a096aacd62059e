"""A Disk in memory, for tests: it can fill up, fail, or simulate a process or machine crash between any two calls."""

from collections.abc import Callable
from pathlib import Path
from random import Random

from latermq.store.files.disk import CallDisk
from latermq.store.files.mapped_file import CallMappedFile, MappedFile
from latermq.store.files.simulated_calls import SimulatedCalls, SimulatedCrash
from latermq.store.files.simulated_files import Inode

__all__ = ["MemoryDisk", "SimulatedCrash"]


class _MemoryMappedFile(CallMappedFile):
    """A mapped file whose operations a test can make fail."""

    def __init__(
        self, disk: "MemoryDisk", calls: SimulatedCalls, path: str, size: int, *, is_complete: bool, is_mapped: bool
    ) -> None:
        self._disk = disk
        super().__init__(calls, path, size, is_complete=is_complete, is_mapped=is_mapped)

    def reserve(self, upto: int) -> None:
        if min(upto, self.size) > self.reserved:
            self._disk.before("reserve", self.path)
        super().reserve(upto)

    def write(self, at: int, data: memoryview) -> None:
        half = len(data) // 2
        super().write(at, data[:half])
        self._disk.before("write", self.path)  # may fail halfway
        super().write(at + half, data[half:])

    def sync(self, synced_folders: set[str] | None = None) -> None:
        self._disk.before("sync", self.path)
        super().sync(synced_folders)


class MemoryDisk(CallDisk):
    """A Disk with its files in memory.

    `before_step` may raise to make an operation fail. `crash_after` ends the process in the middle of an operation.
    `after_process_crash` and `after_machine_crash` return the disk after that crash, or after a crash at any other
    moment.
    """

    def __init__(self, capacity_bytes: int = 1 << 40, calls: SimulatedCalls | None = None) -> None:
        self.calls = calls or SimulatedCalls(capacity_bytes)
        super().__init__(self.calls, "the directory")
        self.before_step: Callable[[str, str], None] = lambda operation, path: None

    @property
    def capacity_bytes(self) -> int:
        return self.calls.capacity_bytes

    @capacity_bytes.setter
    def capacity_bytes(self, capacity_bytes: int) -> None:
        self.calls.capacity_bytes = capacity_bytes

    @property
    def used_bytes(self) -> int:
        return self.calls.used_bytes

    def before(self, operation: str, path: str) -> None:
        """Allow the test to make this operation fail."""
        self.before_step(operation, path)

    def crash_after(self, calls: int | None, *, halfway: bool = False) -> None:
        """Allow this many more system calls that change something, and raise `SimulatedCrash` in the next one.

        With `halfway`, half of that last call is performed if it can be partial. None: no crash.
        """
        self.calls.crash_after(calls, halfway=halfway)

    def map_file(self, path: str, size: int) -> MappedFile:
        self.before("map", path)
        return super().map_file(path, size)

    def lazy_file(self, path: str, size: int, *, is_complete: bool) -> MappedFile:
        if not is_complete:
            self.before("map", path)
        return super().lazy_file(path, size, is_complete=is_complete)

    def mapped(self, path: str) -> MappedFile:
        """Return a file with all its space reserved, so that a test can change it behind the store's back."""
        file = super().map_file(path, self.file_size(path))
        file.reserve(file.size)
        return file

    def _make_mapped(self, path: str, size: int, *, is_complete: bool, is_mapped: bool) -> MappedFile:
        return _MemoryMappedFile(self, self.calls, path, size, is_complete=is_complete, is_mapped=is_mapped)

    def replace(self, path: str, data: bytes) -> None:
        self.before("replace", path)
        super().replace(path, data)

    def remove(self, path: str) -> None:
        self.before("remove", path)
        super().remove(path)

    def library_folder(self, name: str) -> Path:
        self.before("library", name)
        self._make_library_folder(name)
        return self.calls.library(name).path

    def library_synced(self, name: str) -> None:
        """Report that a library has synced: a power failure can only remove later data from its logs.

        Until this is called for a folder, a power failure leaves that folder unchanged.
        """
        self.calls.library(name).note_synced()

    def contents(self) -> dict[str, bytes]:
        """Return the content of every file, as far as its space is reserved, by path."""
        found = {}
        for path, node in self.calls.names.tree.items():
            if isinstance(node, Inode):
                found[path] = bytes(node.data[: min(node.allocated, node.size)])
        return found

    def after_process_crash(self) -> "MemoryDisk":
        """Return the disk that the next process finds: everything written is there, synced or not."""
        return MemoryDisk(calls=self.calls.after_process_crash())

    def after_machine_crash(self, chance: Random) -> "MemoryDisk":
        """Return the disk after a power failure: each unsynced page survives or not, at random.

        The same applies to file sizes. The last creations, renames and removals in a folder may be lost.
        """
        return MemoryDisk(calls=self.calls.after_machine_crash(chance))
