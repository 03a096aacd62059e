"""A mapped file: fixed in size, its space taken ahead, cut without ever changing its length."""

import contextlib
import mmap
from collections.abc import Iterator
from threading import Lock
from typing import Protocol

from latermq.errors import StoreError
from latermq.store.files.system_calls import Calls, is_unsupported

PAGE_BYTES = 4096
_BROUGHT_IN_BYTES = 128 << 10  # at once: the kernel reads no further ahead than the disk's setting says
_WRITTEN_NEXT_BYTES = 128 << 20  # the most that lies between what is read in order and the end of what is reserved
_LOOKED_AT_BYTES = 1 << 20  # at once, where bytes are compared with zeros


class MappedFile(Protocol):
    """A file of fixed size, mapped into memory. Only reserved bytes may be written: the rest may have no disk."""

    path: str
    size: int
    map: mmap.mmap
    reserved: int
    is_awake: bool  # whether it is mapped

    def wake(self) -> None:
        """Map it, where it rests. Raises OSError."""

    def rest(self) -> None:
        """Hold neither a map nor a descriptor until `wake`; all but `map` goes on as before."""

    def reserve(self, upto: int) -> None:
        """Make sure that bytes below `upto` have disk space. Raises StoreError when there is none."""

    def bring_in(self, start: int, upto: int) -> None:
        """Have memory for these bytes, whose space is reserved, before they are written. Blocks; changes nothing."""

    def read(self, at: int, size: int) -> bytes:
        """The same bytes as in the map. To be used where nothing may have been written: there the map is not safe.

        In memory file systems, reading a page of the map that was never written takes space, and a signal ends the
        process where there is none.
        """

    def write(self, at: int, data: memoryview) -> None:
        """Put a block of bytes where space is reserved; the map shows them. Raises StoreError, with any part written.

        Where a block is many pages long this is several times as fast as writing to the map, which takes a fault for
        each page, and each fault waits where a sync is under way.
        """

    def end_writing(self) -> None:
        """No block will be written to it any more: hold no descriptor for them."""

    def sync(self, entered: set[str] | None = None) -> None:
        """Return when everything written so far would survive the death of the machine.

        `entered` are folders above the file's own that were synced since that one was made; it gets those synced now.
        """

    def zero_from(self, at: int) -> bool:
        """Make everything from `at` read as zeros; False where it does already, and nothing was touched.

        The file keeps its size whatever happens. A death half-way leaves some of the bytes.
        """

    def close(self) -> None: ...


class CallMappedFile:
    """A mapped file, by system calls."""

    def __init__(self, calls: Calls, path: str, size: int, *, is_made: bool = False, is_awake: bool = True) -> None:
        """`is_made`: the file is there and has its size."""
        self._calls = calls
        self.path = path
        self.size = size
        # Reserving again what has its blocks already is cheap; trusting a sparse file's block count is not safe.
        self.reserved = 0
        self.is_awake = False
        self._is_entered = False
        self._short_from = 0  # where the part begins whose faults are kept short
        self._write_fd = -1
        # The writer and whoever takes space ahead of it may want the same bytes.
        self._reserving = Lock()
        if is_awake or not is_made:
            self._open(is_made=is_made, is_awake=is_awake)

    def _open(self, *, is_made: bool, is_awake: bool) -> None:
        fd = self._calls.open(self.path, create=not is_made)
        try:
            if not is_made and self._calls.size(fd) != self.size:
                self._calls.truncate(fd, self.size)
            if is_awake:
                self.map = self._calls.map(fd, self.size)
                self.is_awake = True
        finally:
            # The map keeps a descriptor of its own. Files that blocks are written to have a second one from the first
            # block on.
            self._calls.close(fd)

    def wake(self) -> None:
        if self.is_awake:
            return
        self._open(is_made=True, is_awake=True)
        if self.reserved > self._short_from:
            self.map.madvise(mmap.MADV_RANDOM, self._short_from, self.reserved - self._short_from)

    def rest(self) -> None:
        if self.is_awake:
            self.is_awake = False
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
        with self._reserving:
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
        """Take the space of these bytes by writing the zeros that are there already.

        Nobody else writes here: it is not reserved yet, and only one thread at a time reserves.
        """
        at = start
        while at < upto:
            page_end = min(upto, (at // PAGE_BYTES + 1) * PAGE_BYTES)
            end = min(upto, page_end + _LOOKED_AT_BYTES)
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
        """Writing to a page for the first time shall bring in that page, and not what the disk reads ahead.

        Measured with a read-ahead of 8 MB: one write in 8 MB took 20 ms, all of it spent on clearing pages that
        nobody had asked for. What lies further behind the writer is read in order, and reading ahead helps it.
        """
        start = max(start, upto - _WRITTEN_NEXT_BYTES) // mmap.PAGESIZE * mmap.PAGESIZE
        if not self.is_awake:
            self._short_from = start
            return
        self.map.madvise(mmap.MADV_RANDOM, start, upto - start)
        if self._short_from:  # the writer may still be in the last step but one, not before it
            self.map.madvise(mmap.MADV_NORMAL, 0, self._short_from)
        self._short_from = start

    def bring_in(self, start: int, upto: int) -> None:
        # Only a hint; a file that is gone needs none.
        with contextlib.suppress(OSError), self._opened() as fd:
            for at in range(start, upto, _BROUGHT_IN_BYTES):
                self._calls.will_need(fd, at, min(_BROUGHT_IN_BYTES, upto - at))

    def read(self, at: int, size: int) -> bytes:
        try:
            with self._opened() as fd:
                return self._calls.read(fd, size, at)
        except OSError as error:
            raise StoreError(f"cannot read {self.path} ({error.strerror})", hint="Look at the disk") from None

    def write(self, at: int, data: memoryview) -> None:
        try:
            if self._write_fd < 0:
                self._write_fd = self._calls.open(self.path)
            self._write_all(self._write_fd, data, at)
        except OSError as error:
            raise StoreError(
                f"cannot write to {self.path} ({error.strerror})", hint="Look at the disk; it is tried again"
            ) from None

    def sync(self, entered: set[str] | None = None) -> None:
        # fdatasync also writes what was changed through the map, and lets other threads run meanwhile; msync does not.
        with contextlib.suppress(FileNotFoundError), self._opened() as fd:  # removed meanwhile: nobody needs it
            self._calls.sync(fd)
        if not self._is_entered:
            # A new file is found after a power cut only if its folders know it.
            folder = self.path.rpartition("/")[0]
            self._calls.sync_folder(folder)
            entered = set() if entered is None else entered
            while folder:
                folder = folder.rpartition("/")[0]
                if folder not in entered:
                    self._calls.sync_folder(folder)
                    entered.add(folder)
            self._is_entered = True

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
                f"cannot cut {self.path} ({error.strerror})", hint="Free disk space, or look at the disk"
            ) from None
        self.reserved = min(self.reserved, at // PAGE_BYTES * PAGE_BYTES)
        return True

    def _pieces(self, fd: int, at: int) -> Iterator[tuple[int, bytes]]:
        """What was written from `at` on, in pieces with their places, without what never was."""
        while (start := self._calls.next_data(fd, at)) is not None:
            at = self._calls.next_hole(fd, start)
            for piece_at in range(start, at, _LOOKED_AT_BYTES):
                yield piece_at, self._calls.read(fd, min(_LOOKED_AT_BYTES, at - piece_at), piece_at)

    def _first_byte(self, fd: int, at: int) -> int | None:
        """Where the first byte from `at` on lies that is not zero."""
        for piece_at, piece in self._pieces(fd, at):
            if rest := piece.lstrip(b"\0"):
                return piece_at + len(piece) - len(rest)
        return None

    def _overwrite(self, fd: int, at: int) -> None:
        """Zero what is there by writing, where a file system cannot punch holes."""
        for piece_at, piece in self._pieces(fd, at):
            if piece.strip(b"\0"):
                self._write_all(fd, bytes(len(piece)), piece_at)

    def close(self) -> None:
        self.rest()
        self.end_writing()

    def end_writing(self) -> None:
        if self._write_fd >= 0:
            self._calls.close(self._write_fd)
            self._write_fd = -1
