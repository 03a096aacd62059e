"""A mapped file of fixed size, with space reserved in advance. Truncation zeroes data but keeps the file's size."""

import contextlib
import mmap
from collections.abc import Iterator
from threading import Lock
from typing import Protocol

from latermq.errors import StoreError
from latermq.store.files.system_calls import Calls, is_unsupported

PAGE_BYTES = 4096
_PREFETCH_BYTES = 128 << 10  # per call: the kernel reads ahead no further than the disk's setting
_WRITTEN_NEXT_BYTES = 128 << 20  # maximum distance from sequential reads to the end of the reserved space
_FORGOTTEN_BYTES = 2 << 20  # per call, during which no other thread runs: 512 pages in about 50 µs
_COMPARED_BYTES = 1 << 20  # per comparison with zeros


class MappedFile(Protocol):
    """A file of fixed size, mapped into memory. Write only reserved bytes: the rest may have no disk space."""

    path: str
    size: int
    map: mmap.mmap
    reserved: int
    is_mapped: bool

    def open_map(self) -> None:
        """Map the file if it is not mapped. Raises OSError."""

    def close_map(self) -> None:
        """Release the map and its descriptor until `open_map`. Everything except `map` keeps working."""

    def reserve(self, upto: int) -> None:
        """Ensure that bytes below `upto` have disk space. Raises StoreError if there is none."""

    def prefetch(self, start: int, upto: int) -> None:
        """Fault in memory for these reserved bytes before they are written. Blocks; does not change the content."""

    def forget_pages(self, start: int, upto: int) -> None:
        """Give up the process's memory for these bytes. They stay in the file, and the next use maps them again.

        May run concurrently with every other use.
        """

    def read(self, at: int, size: int) -> bytes:
        """Return the same bytes as the map. Use this where nothing may have been written: the map is not safe there.

        In memory file systems, reading a mapped page that was never written takes space. If there is none, a signal
        kills the process.
        """

    def write(self, at: int, data: memoryview) -> None:
        """Write a block of bytes to reserved space. The map shows them.

        Raises StoreError, possibly after a partial write. For a block of many pages this is several times as fast as
        writing to the map. The map causes a fault for each page, and each fault waits during a sync.
        """

    def end_writing(self) -> None:
        """Release the descriptor for block writes, because no more blocks will be written."""

    def sync(self, synced_folders: set[str] | None = None) -> None:
        """Return when everything written so far would survive a crash of the machine.

        `synced_folders` contains the parent folders of the file's own folder that were synced since that one was
        created. This call adds the folders that it syncs.
        """

    def zero_from(self, at: int) -> bool:
        """Make everything from `at` read as zeros. Return False, and touch nothing, if it already does.

        The file keeps its size in any case. A crash midway leaves some of the bytes.
        """

    def close(self) -> None: ...


class CallMappedFile:
    """A mapped file implemented with system calls."""

    def __init__(
        self, calls: Calls, path: str, size: int, *, is_complete: bool = False, is_mapped: bool = True
    ) -> None:
        """`is_complete`: the file exists and has its size."""
        self._calls = calls
        self.path = path
        self.size = size
        # Reserving space that already has its blocks is cheap. Trusting the block count of a sparse file is not safe.
        self.reserved = 0
        self.is_mapped = False
        self._is_path_synced = False
        self._short_from = 0  # start of the part whose page faults are kept short
        self._write_fd = -1
        # The writer and the thread that reserves space ahead of it may want the same bytes.
        self._reserve_lock = Lock()
        if is_mapped or not is_complete:
            self._open(is_complete=is_complete, is_mapped=is_mapped)

    def _open(self, *, is_complete: bool, is_mapped: bool) -> None:
        fd = self._calls.open(self.path, create=not is_complete)
        try:
            if not is_complete and self._calls.size(fd) != self.size:
                self._calls.truncate(fd, self.size)
            if is_mapped:
                self.map = self._calls.map(fd, self.size)
                self.is_mapped = True
        finally:
            # The map keeps its own descriptor. A file with block writes has a second one from the first block on.
            self._calls.close(fd)

    def open_map(self) -> None:
        if self.is_mapped:
            return
        self._open(is_complete=True, is_mapped=True)
        if self.reserved > self._short_from:
            self.map.madvise(mmap.MADV_RANDOM, self._short_from, self.reserved - self._short_from)

    def close_map(self) -> None:
        if self.is_mapped:
            self.is_mapped = False
            self._calls.unmap(self.map)
            del self.map

    @contextlib.contextmanager
    def _opened(self) -> Iterator[int]:
        fd = self._calls.open(self.path)
        try:
            yield fd
        finally:
            self._calls.close(fd)

    def reserve(self, upto: int) -> None:
        upto = min(upto, self.size)
        if upto <= self.reserved:
            return
        with self._reserve_lock:
            start = self.reserved
            if upto <= start:
                return
            try:
                with self._opened() as fd:
                    self._allocate(fd, start, upto - start)
            except OSError as error:
                raise StoreError(
                    f"no disk space for {self.path} ({error.strerror})",
                    hint="Free disk space or shorten store.retention",
                ) from None
            self.reserved = upto
            self._keep_faults_short(start, upto)

    def _allocate(self, fd: int, start: int, size: int) -> None:
        try:
            self._calls.allocate(fd, start, size)
        except OSError as error:
            if not is_unsupported(error):
                raise
            self._fill(fd, start, start + size)

    def _fill(self, fd: int, start: int, upto: int) -> None:
        """Allocate the space of these bytes by writing the zeros that they already contain.

        No other thread writes here: the space is not reserved yet, and only one thread at a time reserves.
        """
        at = start
        while at < upto:
            page_end = min(upto, (at // PAGE_BYTES + 1) * PAGE_BYTES)
            end = min(upto, page_end + _COMPARED_BYTES)
            data = self._calls.read(fd, end - at, at)
            if not data.strip(b"\0"):
                self._write_all(fd, data, at)
                at = end
                continue
            page = data[: page_end - at]
            if not page.strip(b"\0"):
                self._write_all(fd, page, at)
            at = page_end

    def _write_all(self, fd: int, data: bytes | memoryview, at: int) -> None:
        while data:
            written = self._calls.write(fd, data, at)
            at, data = at + written, data[written:]

    def _keep_faults_short(self, start: int, upto: int) -> None:
        """Make the first write to a page fault in only that page, without the disk's read-ahead.

        Measured with a read-ahead of 8 MB: one write in 8 MB took 20 ms, all of it spent on clearing unneeded pages.
        Data further behind the writer is read sequentially, where read-ahead helps.
        """
        start = max(start, upto - _WRITTEN_NEXT_BYTES) // mmap.PAGESIZE * mmap.PAGESIZE
        if not self.is_mapped:
            self._short_from = start
            return
        self.map.madvise(mmap.MADV_RANDOM, start, upto - start)
        if self._short_from:  # the writer may still be in the previous step, but not before it
            self.map.madvise(mmap.MADV_NORMAL, 0, self._short_from)
        self._short_from = start

    def prefetch(self, start: int, upto: int) -> None:
        # This is only a hint, which a removed file does not need.
        with contextlib.suppress(OSError), self._opened() as fd:
            for at in range(start, upto, _PREFETCH_BYTES):
                self._calls.will_need(fd, at, min(_PREFETCH_BYTES, upto - at))

    def forget_pages(self, start: int, upto: int) -> None:
        # Another thread may unmap the file at any moment.
        with contextlib.suppress(AttributeError, ValueError):
            for at in range(start, upto, _FORGOTTEN_BYTES):
                self._calls.forget_pages(self.map, at, min(_FORGOTTEN_BYTES, upto - at))

    def read(self, at: int, size: int) -> bytes:
        try:
            with self._opened() as fd:
                return self._calls.read(fd, size, at)
        except OSError as error:
            raise StoreError(f"cannot read {self.path} ({error.strerror})", hint="Check the disk") from None

    def write(self, at: int, data: memoryview) -> None:
        try:
            if self._write_fd < 0:
                self._write_fd = self._calls.open(self.path)
            self._write_all(self._write_fd, data, at)
        except OSError as error:
            raise StoreError(
                f"cannot write to {self.path} ({error.strerror})", hint="Check the disk; the broker retries"
            ) from None

    def sync(self, synced_folders: set[str] | None = None) -> None:
        # fdatasync also writes changes made through the map, and other threads can run during it. With msync they
        # cannot.
        with contextlib.suppress(FileNotFoundError), self._opened() as fd:  # removed, no longer needed
            self._calls.sync(fd)
        if not self._is_path_synced:
            # After a power failure a new file exists only if its parent folders were synced.
            folder = self.path.rpartition("/")[0]
            self._calls.sync_folder(folder)
            synced_folders = set() if synced_folders is None else synced_folders
            while folder:
                folder = folder.rpartition("/")[0]
                if folder not in synced_folders:
                    self._calls.sync_folder(folder)
                    synced_folders.add(folder)
            self._is_path_synced = True

    def zero_from(self, at: int) -> bool:
        try:
            with self._opened() as fd:
                if self._first_byte(fd, at) is None:
                    return False
                try:
                    self._calls.punch(fd, at, self.size - at)
                except OSError as error:
                    if not is_unsupported(error):
                        raise
                    self._overwrite(fd, at)
        except OSError as error:
            raise StoreError(
                f"cannot truncate {self.path} ({error.strerror})", hint="Free disk space, or check the disk"
            ) from None
        self.reserved = min(self.reserved, at // PAGE_BYTES * PAGE_BYTES)
        return True

    def _pieces(self, fd: int, at: int) -> Iterator[tuple[int, bytes]]:
        """Yield the written data from `at` on in pieces with their positions, without the holes."""
        while (start := self._calls.next_data(fd, at)) is not None:
            at = self._calls.next_hole(fd, start)
            for piece_at in range(start, at, _COMPARED_BYTES):
                yield piece_at, self._calls.read(fd, min(_COMPARED_BYTES, at - piece_at), piece_at)

    def _first_byte(self, fd: int, at: int) -> int | None:
        """Return the position of the first nonzero byte from `at` on."""
        for piece_at, piece in self._pieces(fd, at):
            if rest := piece.lstrip(b"\0"):
                return piece_at + len(piece) - len(rest)
        return None

    def _overwrite(self, fd: int, at: int) -> None:
        """Zero the data by writing, because the file system cannot punch holes."""
        for piece_at, piece in self._pieces(fd, at):
            if piece.strip(b"\0"):
                self._write_all(fd, bytes(len(piece)), piece_at)

    def close(self) -> None:
        self.close_map()
        self.end_writing()

    def end_writing(self) -> None:
        if self._write_fd >= 0:
            self._calls.close(self._write_fd)
            self._write_fd = -1
