"""A long byte sequence stored in files of equal size, each named after its start offset."""

from collections.abc import Callable

from latermq.errors import CorruptStore
from latermq.store.files.disk import Disk, MappedFile
from latermq.store.queues.map_pool import MapPool, Release

NAME_DIGITS = 20


def segment_starts(disk: Disk, folder: str) -> list[int]:
    """Return the start offsets of the files of a sequence."""
    return [int(name) for name in disk.list_names(folder) if len(name) == NAME_DIGITS and name.isdigit()]


def segment_name(start: int) -> str:
    """Return the file name of the segment that starts at this offset."""
    return f"{start:0{NAME_DIGITS}d}"


class Segments:
    """The files of one sequence, from the oldest kept to the newest, by number (offset // segment size).

    One thread adds and removes files. Another may look them up concurrently, which a dict allows and a list does not.
    """

    def __init__(
        self,
        disk: Disk,
        folder: str,
        segment_bytes: int,
        promised_end: int | None = None,
        is_size_right: Callable[[], bool] = lambda: False,
    ) -> None:
        """Open the files up to the first one that never got its full size.

        Data from `promised_end` on is not needed (None: unknown). A file that lost only such data gets its full size
        again if `is_size_right` or another file shows that it was created with the configured size.
        """
        self._disk = disk
        self._folder = folder
        self.segment_bytes = segment_bytes
        self._files: dict[int, MappedFile] = {}
        self.start = 0
        self.end = 0
        # Files that got no size because the process or the machine crashed, and all files created after them. Files are
        # synced in order, so nothing in these files was ever synced.
        self.abandoned: list[str] = []
        sizes = {start: disk.file_size(f"{folder}/{segment_name(start)}") for start in segment_starts(disk, folder)}
        for start, size in sizes.items():
            path = f"{folder}/{segment_name(start)}"
            is_size_known = size in (0, segment_bytes) or segment_bytes in sizes.values() or is_size_right()
            if size > segment_bytes or start % segment_bytes or not is_size_known:
                raise CorruptStore(
                    f"{path} has {size} bytes, but the configuration says {segment_bytes}",
                    hint="Set the size that this store was created with",
                )
            follows_abandoned = bool(self.abandoned) and promised_end is not None
            if follows_abandoned or size == 0 or start + size < min(promised_end or 0, start + segment_bytes):
                self.abandoned.append(path)
            else:
                self._open(start, path, size)

    def _open(self, start: int, path: str, size: int) -> None:
        if (self._files and start != self.end) or self.abandoned:
            raise CorruptStore(
                f"{self._folder} has no file for offset {self.end}, but one for {start}",
                hint="Restore the missing file from a backup, or move the later ones away",
            )
        if not self._files:
            self.start = start
        self._files[start // self.segment_bytes] = self._open_file(path, size)
        self.end = start + self.segment_bytes

    def _open_file(self, path: str, size: int) -> MappedFile:
        """Open an existing file of this size."""
        return self._disk.map_file(path, self.segment_bytes)

    def _close(self, file: MappedFile) -> None:
        file.close()

    def __len__(self) -> int:
        return len(self._files)

    def file_at(self, offset: int) -> MappedFile:
        """Return the file that holds this offset, which must be inside [start, end)."""
        return self._files[offset // self.segment_bytes]

    def make_next(self) -> MappedFile:
        """Create the file after the newest one, without adding it yet."""
        return self._disk.map_file(f"{self._folder}/{segment_name(self.end)}", self.segment_bytes)

    def adopt(self, file: MappedFile) -> None:
        """Add the file from `make_next` as the newest one."""
        self._files[self.end // self.segment_bytes] = file
        self.end += self.segment_bytes

    def begin_at(self, offset: int) -> None:
        """Set the start of an empty sequence to the file that holds this offset."""
        self.start = self.end = offset // self.segment_bytes * self.segment_bytes

    def drop_first(self) -> str:
        """Close the oldest file and return its path, so that the caller can remove it later."""
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

    def _remove_abandoned(self) -> None:
        while self.abandoned:
            self._disk.remove(self.abandoned[-1])
            self.abandoned.pop()

    def clear(self) -> None:
        """Remove all files."""
        self._remove_abandoned()
        while self._files:
            self.remove_last()

    def cut(self, end: int) -> bool:
        """Discard everything from `end` on: remove later files, and zero the rest of the file that holds `end`.

        Returns False if there was nothing to discard; then nothing was touched.
        """
        is_cut = bool(self.abandoned)
        self._remove_abandoned()
        while self._files and self.end - self.segment_bytes >= end:
            self.remove_last()
            is_cut = True
        if self._files and end < self.end:
            is_cut |= self._files[end // self.segment_bytes].zero_from(end % self.segment_bytes)
        return is_cut

    def sync(self, start: int, end: int, synced_folders: set[str] | None = None) -> None:
        """Sync the files that hold [start, end)."""
        for number in range(start // self.segment_bytes, -(-end // self.segment_bytes)):
            file = self._files.get(number)
            if file is not None:  # removed in the meantime, and no longer needed
                file.sync(synced_folders)

    def close(self) -> None:
        """Unmap all files."""
        for file in self._files.values():
            self._close(file)
        self._files.clear()


class LazySegments(Segments):
    """Segments whose files are mapped only while they are in use and the pool has a slot for them."""

    def __init__(
        self,
        disk: Disk,
        folder: str,
        segment_bytes: int,
        promised_end: int | None,
        is_size_right: Callable[[], bool],
        pool: MapPool,
        release: Release,
    ) -> None:
        self._pool = pool
        self._release = release
        super().__init__(disk, folder, segment_bytes, promised_end, is_size_right)

    def _open_file(self, path: str, size: int) -> MappedFile:
        return self._disk.lazy_file(path, self.segment_bytes, is_complete=size == self.segment_bytes)

    def _close(self, file: MappedFile) -> None:
        self._pool.forget(file)
        file.close()

    def make_next(self) -> MappedFile:
        path = f"{self._folder}/{segment_name(self.end)}"
        return self._disk.lazy_file(path, self.segment_bytes, is_complete=False)

    def file_at(self, offset: int) -> MappedFile:
        """Return the file that holds this offset. It stays mapped at least until the next call, usually longer."""
        file = self._files[offset // self.segment_bytes]
        if not file.is_mapped:
            self._pool.open_map(file, self._release)
        return file

    def lazy_file_at(self, offset: int) -> MappedFile:
        """Return the same file, mapped or not."""
        return self._files[offset // self.segment_bytes]
