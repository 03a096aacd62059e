"""Which files of queues are mapped: a bounded number of them, whatever the number of queues.

Each map takes a descriptor and some of the kernel's maps, and both are limited. So a file of a queue is mapped when it
is used, and the one that was mapped first makes room for it. No use is recorded, which would cost every send
something: a file that is busy all the time is mapped again once in as many openings as the pool has places. Measured:
25 µs for letting go of one file, mapping another and writing to it.
"""

import errno
from collections.abc import Callable
from itertools import islice
from threading import Lock

from latermq.errors import StoreError
from latermq.store.files.mapped_file import MappedFile

_TOO_MANY = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
_LET_GO_AT_ONCE = 8

LetGo = Callable[[MappedFile], None]


class MapPool:
    """The mapped files of all queues. One thread maps; files may be forgotten beside it."""

    def __init__(self, max_mapped: int) -> None:
        self.max_mapped = max_mapped
        self.mapped_again = 0  # how often a file was mapped that the pool had let go of, or a start had not mapped
        self._owners: dict[MappedFile, LetGo] = {}  # in the order in which they were mapped
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._owners)

    def wake(self, file: MappedFile, let_go: LetGo) -> None:
        """Map a file; `let_go` is called when it has to rest again, and lets it."""
        with self._lock:
            self._shrink_to(self.max_mapped - 1)
            while True:
                try:
                    file.wake()
                    break
                except OSError as error:
                    # Others have taken the descriptors that were counted on. Ours can be done without.
                    if error.errno not in _TOO_MANY or not self._owners:
                        raise StoreError(
                            f"cannot open {file.path}: {error.strerror}", hint="`latermq doctor` checks limits"
                        ) from None
                    self._shrink_to(len(self._owners) - _LET_GO_AT_ONCE)
            self._owners[file] = let_go
            self.mapped_again += 1

    def make_room(self, files: int) -> None:
        """Let so many files be mapped, one after the other, before one of them has to rest."""
        with self._lock:
            self._shrink_to(self.max_mapped - files)

    def _shrink_to(self, count: int) -> None:
        for file in list(islice(self._owners, max(0, len(self._owners) - max(0, count)))):
            self._owners.pop(file)(file)

    def forget(self, file: MappedFile) -> None:
        """A file is closed."""
        with self._lock:
            self._owners.pop(file, None)
