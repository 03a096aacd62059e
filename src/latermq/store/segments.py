"""A long sequence of bytes laid over files of equal size, each named after the offset it starts at."""

from collections.abc import Callable

from latermq.errors import CorruptStore
from latermq.store.files.disk import Disk, MappedFile
from latermq.store.map_pool import LetGo, MapPool

NAME_DIGITS = 20


def segment_starts(disk: Disk, folder: str) -> list[int]:
    """The offsets at which the files of a sequence start."""
    return [int(name) for name in disk.list_names(folder) if len(name) == NAME_DIGITS and name.isdigit()]


def segment_name(start: int) -> str:
    """The file name of the segment that starts at this offset."""
    return f"{start:0{NAME_DIGITS}d}"


class Segments:
    """The files of one sequence, from the oldest kept to the newest, by number (offset // segment size).

    One thread adds and removes; another may look files up meanwhile, which a dict allows and a list does not.
    """

    def __init__(
        self,
        disk: Disk,
        folder: str,
        segment_bytes: int,
        promised_end: int | None = None,
        is_size_right: Callable[[], bool] = lambda: False,
    ) -> None:
        """Take over the files up to the first that was never given its size.

        What is missing from `promised_end` on nobody misses (None: nobody knows). A file that lost only that gets its
        size again, if `is_size_right` or another file shows that it was made with the size that is asked for.
        """
        self._disk = disk
        self._folder = folder
        self.segment_bytes = segment_bytes
        self._files: dict[int, MappedFile] = {}
        self.start = 0
        self.end = 0
        # Made by a process or a machine that died before they got their size, and what was made behind these: files
        # are synced in order, so nothing in them ever was.
        self.unreached: list[str] = []
        sizes = {start: disk.file_size(f"{folder}/{segment_name(start)}") for start in segment_starts(disk, folder)}
        for start, size in sizes.items():
            path = f"{folder}/{segment_name(start)}"
            is_made_so = size in (0, segment_bytes) or segment_bytes in sizes.values() or is_size_right()
            if size > segment_bytes or start % segment_bytes or not is_made_so:
                raise CorruptStore(
                    f"{path} has {size} bytes, the configuration says {segment_bytes}",
                    hint="Set the size this store was made with",
                )
            is_behind = bool(self.unreached) and promised_end is not None
            if is_behind or size == 0 or start + size < min(promised_end or 0, start + segment_bytes):
                self.unreached.append(path)
            else:
                self._open(start, path, size)

    def _open(self, start: int, path: str, size: int) -> None:
        if (self._files and start != self.end) or self.unreached:
            raise CorruptStore(
                f"{self._folder} has no file for offset {self.end}, but one for {start}",
                hint="Restore the missing file from a copy, or move the later ones away",
            )
        if not self._files:
            self.start = start
        self._files[start // self.segment_bytes] = self._take_over(path, size)
        self.end = start + self.segment_bytes

    def _take_over(self, path: str, size: int) -> MappedFile:
        """The file that was found with this size."""
        return self._disk.map_file(path, self.segment_bytes)

    def _close(self, file: MappedFile) -> None:
        file.close()

    def __len__(self) -> int:
        return len(self._files)

    def file_at(self, offset: int) -> MappedFile:
        """The file that holds this offset, which must be inside [start, end)."""
        return self._files[offset // self.segment_bytes]

    def make_next(self) -> MappedFile:
        """Make the file behind the newest without taking it over yet."""
        return self._disk.map_file(f"{self._folder}/{segment_name(self.end)}", self.segment_bytes)

    def adopt(self, file: MappedFile) -> None:
        """Take over the file that `make_next` made as the newest."""
        self._files[self.end // self.segment_bytes] = file
        self.end += self.segment_bytes

    def begin_at(self, offset: int) -> None:
        """Let an empty sequence begin with the file that holds this offset."""
        self.start = self.end = offset // self.segment_bytes * self.segment_bytes

    def drop_first(self) -> str:
        """Let go of the oldest file and return its path, for whoever has the time to remove it."""
        file = self._files.pop(self.start // self.segment_bytes)
        self.start += self.segment_bytes
        self._close(file)
        return file.path

    def remove_first(self) -> None:
        """Remove the oldest file."""
        self._disk.remove(self.drop_first())

    def remove_last(self) -> None:
        """Remove the newest file."""
        file = self._files.pop(self.end // self.segment_bytes - 1)
        self.end -= self.segment_bytes
        self._close(file)
        self._disk.remove(file.path)

    def _remove_unreached(self) -> None:
        while self.unreached:
            self._disk.remove(self.unreached[-1])
            self.unreached.pop()

    def clear(self) -> None:
        """Remove all files."""
        self._remove_unreached()
        while self._files:
            self.remove_last()

    def cut(self, end: int) -> bool:
        """Forget everything from `end` on: later files are removed, the rest of its own file reads as zeros.

        False where there was nothing, and nothing was touched.
        """
        is_cut = bool(self.unreached)
        self._remove_unreached()
        while self._files and self.end - self.segment_bytes >= end:
            self.remove_last()
            is_cut = True
        if self._files and end < self.end:
            is_cut |= self._files[end // self.segment_bytes].zero_from(end % self.segment_bytes)
        return is_cut

    def sync(self, start: int, end: int, entered: set[str] | None = None) -> None:
        """Sync the files that hold [start, end)."""
        for number in range(start // self.segment_bytes, -(-end // self.segment_bytes)):
            file = self._files.get(number)
            if file is not None:  # removed meanwhile: nobody needs it any more
                file.sync(entered)

    def close(self) -> None:
        """Unmap all files."""
        for file in self._files.values():
            self._close(file)
        self._files.clear()


class RestingSegments(Segments):
    """The same with files that are mapped only while they are used, and while a pool has room for them."""

    def __init__(
        self,
        disk: Disk,
        folder: str,
        segment_bytes: int,
        promised_end: int | None,
        is_size_right: Callable[[], bool],
        pool: MapPool,
        let_go: LetGo,
    ) -> None:
        self._pool = pool
        self._let_go = let_go
        super().__init__(disk, folder, segment_bytes, promised_end, is_size_right)

    def _take_over(self, path: str, size: int) -> MappedFile:
        return self._disk.resting_file(path, self.segment_bytes, is_made=size == self.segment_bytes)

    def _close(self, file: MappedFile) -> None:
        self._pool.forget(file)
        file.close()

    def make_next(self) -> MappedFile:
        path = f"{self._folder}/{segment_name(self.end)}"
        return self._disk.resting_file(path, self.segment_bytes, is_made=False)

    def file_at(self, offset: int) -> MappedFile:
        """The file that holds this offset, mapped until the next one is asked for, and most often for longer."""
        file = self._files[offset // self.segment_bytes]
        if not file.is_awake:
            self._pool.wake(file, self._let_go)
        return file

    def resting_at(self, offset: int) -> MappedFile:
        """The same file, mapped or not."""
        return self._files[offset // self.segment_bytes]
