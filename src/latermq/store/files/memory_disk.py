"""A Disk in memory, for tests: it can fill up, fail, and die like a process or a machine, between any two calls."""

from collections.abc import Callable
from pathlib import Path
from random import Random

from latermq.store.files.disk import CallDisk
from latermq.store.files.mapped_file import CallMappedFile, MappedFile
from latermq.store.files.simulated_calls import Died, SimulatedCalls
from latermq.store.files.simulated_files import Inode

__all__ = ["Died", "MemoryDisk"]


class _MemoryMappedFile(CallMappedFile):
    """A mapped file whose operations a test may fail."""

    def __init__(
        self, disk: "MemoryDisk", calls: SimulatedCalls, path: str, size: int, *, is_made: bool, is_awake: bool
    ) -> None:
        self._disk = disk
        super().__init__(calls, path, size, is_made=is_made, is_awake=is_awake)

    def reserve(self, upto: int) -> None:
        if min(upto, self.size) > self.reserved:
            self._disk.before("reserve", self.path)
        super().reserve(upto)

    def write(self, at: int, data: memoryview) -> None:
        half = len(data) // 2
        super().write(at, data[:half])
        self._disk.before("write", self.path)  # which may fail half-way
        super().write(at + half, data[half:])

    def sync(self, entered: set[str] | None = None) -> None:
        self._disk.before("sync", self.path)
        super().sync(entered)


class MemoryDisk(CallDisk):
    """A Disk whose files are memory.

    `before_step` may raise to make an operation fail. `die_after` ends the process in the middle of one; what is found
    then, and what would be found after any other moment, `after_process_death` and `after_machine_death` tell.
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
        """Give the test its chance to fail this operation."""
        self.before_step(operation, path)

    def die_after(self, calls: int | None, *, half_way: bool = False) -> None:
        """Let the process make so many more system calls that change something, and raise `Died` in the next one.

        `half_way` makes half of that last call, where it is one that can be half done. None: live on.
        """
        self.calls.die_after(calls, half_way=half_way)

    def map_file(self, path: str, size: int) -> MappedFile:
        self.before("map", path)
        return super().map_file(path, size)

    def resting_file(self, path: str, size: int, *, is_made: bool) -> MappedFile:
        if not is_made:
            self.before("map", path)
        return super().resting_file(path, size, is_made=is_made)

    def mapped(self, path: str) -> MappedFile:
        """A file as it is, all its space reserved, to be changed behind the store's back."""
        file = super().map_file(path, self.file_size(path))
        file.reserve(file.size)
        return file

    def _make_mapped(self, path: str, size: int, *, is_made: bool, is_awake: bool) -> MappedFile:
        return _MemoryMappedFile(self, self.calls, path, size, is_made=is_made, is_awake=is_awake)

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
        """To be called when a library has synced: from now on a power cut takes from its logs what comes later.

        As long as nobody calls it for a folder, a power cut leaves that folder as it is.
        """
        self.calls.library(name).note_synced()

    def contents(self) -> dict[str, bytes]:
        """Every file as far as space is reserved, by its path."""
        found = {}
        for path, node in self.calls.names.tree.items():
            if isinstance(node, Inode):
                found[path] = bytes(node.data[: min(node.allocated, node.size)])
        return found

    def after_process_death(self) -> "MemoryDisk":
        """The disk that the next process finds: everything written is there, synced or not."""
        return MemoryDisk(calls=self.calls.after_process_death())

    def after_machine_death(self, chance: Random) -> "MemoryDisk":
        """The disk after a power cut: of what was not synced, each page is there or not, as chance has it.

        The same goes for the lengths of files; of what was made, renamed and removed in a folder, the last may be lost.
        """
        return MemoryDisk(calls=self.calls.after_machine_death(chance))
