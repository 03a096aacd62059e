"""The CommitLog: all records in one sequence, appended once and never changed (docs/formats/commitlog.md)."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from mmap import mmap
from threading import Lock

import numpy as np

from latermq.arrays import Ints
from latermq.errors import IllegalMessage, StoreError
from latermq.message.record import check_record
from latermq.message.record_batch import RecordBatch, check_records
from latermq.message.record_fields import (
    BLANK,
    BLANK_MAGIC,
    BORN_HOST_AT,
    MAGIC,
    MAGIC_LONG_TOPIC,
    MIN_RECORD_BYTES,
    SIZE_AND_MAGIC,
    SYSFLAG_AT,
    born_host_bytes,
)
from latermq.store.files.disk import Disk, MappedFile
from latermq.store.files.mapped_file import PAGE_BYTES
from latermq.store.segments import Segments, segment_name, segment_starts

FOLDER = "commitlog"
_PREFETCH_BYTES = 4 << 20
_FORGOTTEN_STEP_BYTES = 4 << 20
_SCANNED_RECORDS = 10_000  # maximum per batch
_SCANNED_BYTES = 4 << 20  # maximum per batch, unless a single record is longer
Piece = bytes | bytearray | memoryview
LogListener = Callable[[int, Piece], None]


class CommitLog:
    """The commit log, with one writer and many readers.

    Everything up to `end` is written. Everything up to `flushed` (F) survives a power failure.
    """

    def __init__(
        self,
        disk: Disk,
        *,
        segment_bytes: int,
        reserve_step_bytes: int,
        resident_bytes: int = 64 << 20,
        promised_end: int | None = None,
        on_low_space: Callable[[], None] = lambda: None,
    ) -> None:
        """`promised_end` is the offset up to which the log is synced according to a checkpoint; see `Segments`."""
        self._disk = disk
        self._segments = Segments(
            disk, FOLDER, segment_bytes, promised_end, lambda: _fills_its_only_file(disk, promised_end or 0)
        )
        self._segment_bytes = segment_bytes
        self._reserve_step_bytes = min(reserve_step_bytes, segment_bytes)
        self._resident_bytes = resident_bytes
        self.start = self._segments.start
        self.end = self.start
        self.flushed = self.start
        self._file: MappedFile | None = None
        # The segment being written, for the store's hot path: its start, its map, and the log offset up to which a
        # block fits without calling `make_place`.
        self.file_start = 0
        self.map: mmap = mmap(-1, 1)
        self.limit = 0
        self._prepared: MappedFile | None = None
        self.listener: LogListener | None = None  # receives everything that is written, see `LogWriter.listen`
        self._on_low_space = on_low_space  # called when half of the space reserved in advance is used
        # The file whose pages were last faulted in, and the position up to which they were.
        self._prefetched: tuple[MappedFile | None, int] = (None, 0)
        self._forgotten = self.start  # up to here the log's pages were given up
        self._swept = 0  # number of the older segment whose pages were last given up
        self._scan_end = self.start
        # Flushes for waiting senders and for checkpoints come from different threads.
        self._flush_lock = Lock()
        # Either the writer or another thread ahead of it creates the next segment, but only one of them.
        self._prepare_lock = Lock()

    # Writing

    def place(self, size: int) -> int:
        """Return the offset for a block of this size. Raises StoreError and changes nothing if there is no space."""
        at = self.end
        return at if at + size <= self.limit else self.make_place(size)

    def make_place(self, size: int) -> int:
        """Do the work of `place` beyond `limit`: reserve more space, or continue in a new segment."""
        file = self._file
        at = self.end - self.file_start
        # Keep 8 bytes free so that a blank tail always fits.
        if file is None or at + size + BLANK.size > self._segment_bytes:
            if size + BLANK.size > self._segment_bytes:
                raise IllegalMessage(
                    f"a block of {size} bytes does not fit a segment of {self._segment_bytes}",
                    hint="Send less at once, or raise store.segment",
                )
            file = self._rotate(size)
            at = 0
        elif at + size + BLANK.size > file.reserved:
            file.reserve(self._reserve_target(at + size + BLANK.size))
        self.map = file.map
        self.limit = self.file_start + min(file.reserved, self._segment_bytes) - BLANK.size
        half = self.limit - self._reserve_step_bytes // 2
        if self.file_start + at + size <= half:
            self.limit = half  # the next call is due at this offset
        else:
            self._on_low_space()
        return self.file_start + at

    def write(self, offset: int, piece: Piece, is_block: bool = False) -> None:
        """Append a record at the offset from `place`. Every record in the log passes through here.

        A block holds several records: after a crash of the process either all of them exist or none. Raises StoreError
        if the disk fails; then none of them exists.
        """
        end = offset + len(piece)
        file_start = self.file_start
        if is_block:
            self._write_block(offset - file_start, piece)
        else:
            self.map[offset - file_start : end - file_start] = piece
        self.end = end
        if self.listener is not None:
            self.listener(offset, piece)

    def _write_block(self, at: int, block: Piece) -> None:
        assert self._file is not None, "make_place must be called first"
        try:
            self._file.write(at + 4, memoryview(block)[4:])
        except StoreError:
            # Otherwise the block's records after the end would pass for written ones as soon as another record ends
            # right before them.
            self.map[at : at + len(block)] = bytes(len(block))
            raise
        self.map[at : at + 4] = block[:4]

    def _reserve_target(self, needed: int) -> int:
        step = self._reserve_step_bytes
        return min(self._segment_bytes, -(-needed // step) * step)

    def _rotate(self, size: int) -> MappedFile:
        """Continue in a new segment. Close the old one with a blank tail only after the new one has its space."""
        with self._prepare_lock:
            return self._rotate_alone(size)

    def _rotate_alone(self, size: int) -> MappedFile:
        old, old_at = self._file, self.end - self.file_start
        if self._prepared is None:
            self._prepared = self._segments.make_next()
        file = self._prepared
        file.reserve(self._reserve_target(size + BLANK.size))
        if old is not None:
            old.reserve(old_at + BLANK.size)
            blank = BLANK.pack(self._segment_bytes - old_at, BLANK_MAGIC)
            old.map[old_at : old_at + BLANK.size] = blank
            old.end_writing()
            if self.listener is not None:
                self.listener(self.end, blank)
        self._segments.adopt(file)
        self._prepared = None
        self._file = file
        self.file_start = self._segments.end - self._segment_bytes
        self.end = self.file_start
        return file

    def prepare_ahead(self) -> None:
        """Reserve the next step of disk space before the writer needs it. May run concurrently with the writer."""
        with self._prepare_lock:
            self._prepare_alone()

    def _prepare_alone(self) -> None:
        file = self._file
        if file is None:
            return
        at = self.end - self.file_start
        step = self._reserve_step_bytes
        # This threshold is slightly below the writer's: the writer calls `on_low_space` before it writes, so `end` does
        # not include that block yet.
        if 0 <= at <= self._segment_bytes and at + step // 2 + step // 8 > file.reserved:
            file.reserve(self._reserve_target(at + step))
        if at + step > self._segment_bytes and self._prepared is None:
            prepared = self._segments.make_next()
            prepared.reserve(step)
            self._prepared = prepared

    def prefetch_ahead(self) -> None:
        """Fault in memory for the next writes. Blocks; may run concurrently with the writer.

        A write to a page that is not in memory waits for it: up to 12 µs on a virtual machine whose memory is allocated
        on demand.
        """
        file = self._file
        if file is None:
            return
        in_file, upto = self._prefetched
        start = max(upto if in_file is file else 0, self.end - self.file_start)
        end = file.reserved
        # In pieces, because the rest of a segment that is no longer written needs no memory.
        for at in range(start, end, _PREFETCH_BYTES):
            if file is not self._file:
                return
            file.prefetch(at, min(end, at + _PREFETCH_BYTES))
        self._prefetched = (file, max(start, end))

    def forget_pages_behind(self) -> None:
        """Give up the process's memory for what lies further behind the end than `resident_bytes`.

        Readers map what they need again. Therefore it also covers one older segment, each in its turn. Does nothing
        until the log has grown by a few MiB. Blocks; may run concurrently with the writer, in one thread.
        """
        size = self._segment_bytes
        upto = max(self.start, self.end - self._resident_bytes)
        if upto - self._forgotten < min(_FORGOTTEN_STEP_BYTES, size):
            return
        newest, oldest = upto // size, self.start // size
        for number in range(max(self._forgotten, self.start) // size, newest + 1):
            self._forget(number, max(0, self._forgotten - number * size), min(size, upto - number * size))
        self._forgotten = upto
        if oldest < newest:
            self._swept = self._swept + 1 if oldest <= self._swept < newest - 1 else oldest
            self._forget(self._swept, 0, size)

    def _forget(self, number: int, start: int, upto: int) -> None:
        # Retention may have dropped the segment, and a new log has none.
        with suppress(KeyError):
            file = self._segments.file_at(number * self._segment_bytes)
            file.forget_pages(start // PAGE_BYTES * PAGE_BYTES, upto)

    def flush(self) -> int:
        """Sync everything written so far and return the new F. Blocks; may run concurrently with the writer."""
        with self._flush_lock:
            end = self.end
            if end > self.flushed:
                self._segments.sync(self.flushed, end)
                self.flushed = end
            return self.flushed

    # Reading

    def read(self, offset: int, size: int) -> bytes:
        """Return the bytes of one or more records within one segment."""
        segment_start = offset // self._segment_bytes * self._segment_bytes
        at = offset - segment_start
        return self._segments.file_at(offset).map[at : at + size]

    def read_spans(self, spans: list[tuple[int, int]]) -> list[bytes]:
        """Return the bytes between pairs of offsets, each within one segment. It takes a third of `read` for each."""
        segment_bytes = self._segment_bytes
        pieces: list[bytes] = []
        segment_start, segment_end = 0, -1
        for start, end in spans:
            if not segment_start <= start < segment_end:
                data = self._segments.file_at(start).map
                segment_start = start // segment_bytes * segment_bytes
                segment_end = segment_start + segment_bytes
            pieces.append(data[start - segment_start : end - segment_start])
        return pieces

    def read_places(self, places: Sequence[tuple[int, int, int]], total_bytes: int) -> list[bytes] | None:
        """Return the records at sorted places, as (offset, size, any number), or None if they span segments.

        Records that are all adjacent are one piece.
        """
        first, (last, last_size, _) = places[0][0], places[-1]
        start = first // self._segment_bytes * self._segment_bytes
        end = last + last_size
        if end > start + self._segment_bytes:
            return None
        data = self._segments.file_at(first).map
        if end - first == total_bytes:
            return [data[first - start : end - start]]
        return [data[at - start : at - start + size] for at, size, _ in places]

    def read_all(self, offsets: Ints, sizes: Ints) -> bytes:
        """Return many records, concatenated. Adjacent records in a segment are read as one piece."""
        ends = offsets + sizes
        apart = (offsets[1:] != ends[:-1]) | (offsets[1:] % self._segment_bytes == 0)
        firsts = np.concatenate(([0], np.flatnonzero(apart) + 1))
        lasts = np.append(firsts[1:], len(offsets)) - 1
        spans = zip(offsets[firsts].tolist(), ends[lasts].tolist(), strict=True)
        return b"".join(self.read_spans(list(spans)))

    def gather(self, offsets: Ints, at: Ints, dtype: str) -> Ints:
        """Read one number from each of many records: `at` is its position in each record, `dtype` its encoding."""
        values = np.empty(len(offsets), np.int64)
        segments = offsets // self._segment_bytes
        for segment in np.unique(segments).tolist():
            own = segments == segment
            mapped = self._segments.file_at(segment * self._segment_bytes).map
            size = np.dtype(dtype).itemsize
            numbers_at_any_byte = np.ndarray((self._segment_bytes - size + 1,), dtype, mapped, strides=(1,))
            values[own] = numbers_at_any_byte[offsets[own] % self._segment_bytes + at[own]]
        return values

    def record_sizes(self, offsets: Ints) -> Ints:
        """Return the sizes that the records at these offsets state; 0 where the log holds no record of that size."""
        at = offsets % self._segment_bytes
        inside = (offsets >= self.start) & (at + MIN_RECORD_BYTES <= self._segment_bytes) & (offsets < self.end)
        sizes = np.zeros(len(offsets), np.int64)
        sizes[inside] = self.gather(offsets[inside], np.zeros_like(offsets[inside]), ">u4")
        fits = (sizes >= MIN_RECORD_BYTES) & (at + sizes <= self._segment_bytes) & (offsets + sizes <= self.end)
        whole: Ints = np.where(fits, sizes, 0)
        return whole

    def store_timestamps(self, offsets: Ints) -> Ints:
        """Return the store times of the records at these offsets."""
        sysflags = self.gather(offsets, np.full_like(offsets, SYSFLAG_AT), ">i4")
        return self.gather(offsets, BORN_HOST_AT + born_host_bytes(sysflags), ">i8")

    def read_record(self, offset: int) -> bytes | None:
        """Return the whole record at this offset, or None if there is none."""
        if not self.start <= offset < self.end:
            return None
        at = offset % self._segment_bytes
        file = self._segments.file_at(offset)
        parts = check_record(file.map, at, self._segment_bytes, offset)
        return file.map[at : at + parts.size] if parts else None

    def scan(self, offset: int, until: int | None = None, at_once: int = _SCANNED_RECORDS) -> Iterator[RecordBatch]:
        """Yield every complete record from `offset` up to `until`, a record boundary. Stop at the first incomplete one.

        Recovery uses this before `end` is known, so it does not look at `end`. It does not read the map either, which
        must not be touched where nothing was written.
        """
        stop = self._segments.end if until is None else min(until, self._segments.end)
        while self._segments.start <= offset < stop:
            file = self._segments.file_at(offset)
            at = offset % self._segment_bytes
            data = file.read(at, min(_SCANNED_BYTES, self._segment_bytes - at, stop - offset))
            batch = check_records(data, 0, len(data), offset, at_once)
            if not len(batch) and (size := _promised_size(data)) > len(data):
                data = file.read(at, min(size, self._segment_bytes - at, stop - offset))
                batch = check_records(data, 0, len(data), offset, at_once)
            if len(batch):
                offset += int(batch.sizes.sum())
                yield batch
            elif self._is_blank(file, at):
                offset += self._segment_bytes - at
            else:
                break
        self._scan_end = offset

    def _is_blank(self, file: MappedFile, at: int) -> bool:
        if at + BLANK.size > self._segment_bytes:
            return False
        size, magic = BLANK.unpack(file.read(at, BLANK.size))
        return bool(magic == BLANK_MAGIC and size == self._segment_bytes - at)

    # Opening and cutting

    @property
    def scan_end(self) -> int:
        """The offset at which the last completed `scan` stopped."""
        return self._scan_end

    @property
    def has_files(self) -> bool:
        """Whether the log has any files."""
        return len(self._segments) > 0

    @property
    def files_end(self) -> int:
        """The end of the newest file. The log itself ends at or before it."""
        return self._segments.end

    def is_segment_start(self, offset: int) -> bool:
        """Whether a segment begins at this offset. A read must not cross it."""
        return offset % self._segment_bytes == 0

    def last_used_segment(self) -> int:
        """The start of the newest segment that begins with a record. Segments created in advance may follow it."""
        start = self._segments.end - self._segment_bytes
        while start > self._segments.start:
            file = self._segments.file_at(start)
            if any(file.read(0, BLANK.size)) and check_record(file.map, 0, self._segment_bytes, start):
                break
            start -= self._segment_bytes
        return max(start, self._segments.start)

    def open_at(self, end: int, flushed: int) -> None:
        """Set the log's end, and remove everything after it so that it can never be mistaken for records."""
        segments = self._segments
        if len(segments) == 0:
            segments.begin_at(end)
        if segments.cut(end):
            # Make the removal durable. Otherwise, after a power failure, removed records, which are complete, could
            # follow new ones.
            if end < segments.end:
                segments.file_at(end).sync()
            self._disk.sync_names(FOLDER)
        if end < segments.end:
            self._file = segments.file_at(end)
            self.file_start = segments.end - self._segment_bytes
        else:
            self.file_start = end
        self.limit = 0
        self.start = segments.start
        self.end = end
        self._forgotten = end
        self.flushed = min(flushed, end)
        assert self.start <= self.flushed, f"F is within the log: {self.start} <= {self.flushed} <= {self.end}"

    def closed_segments(self) -> list[tuple[int, int]]:
        """Return (start, end) of every segment except the one being written, oldest first."""
        size = self._segment_bytes
        return [(start, start + size) for start in range(self.start, self._segments.end - size, size)]

    def drop_first_segment(self) -> str:
        """Drop the oldest segment, so that its records can no longer be read. Return the path of the file to remove."""
        path = self._segments.drop_first()
        self.start = self._segments.start
        return path

    def close(self) -> None:
        """Unmap everything. Remove a segment created in advance, because it is empty."""
        if self._prepared is not None:
            prepared, self._prepared = self._prepared, None
            self._segments.adopt(prepared)
            self._segments.remove_last()
        self._file = None
        self.limit = 0
        self._segments.close()


def _promised_size(head: bytes) -> int:
    """Return the size of the record with these first bytes, or 0 if they do not start a record."""
    size, magic = SIZE_AND_MAGIC.unpack_from(head) if len(head) >= SIZE_AND_MAGIC.size else (0, 0)
    return size if magic in (MAGIC, MAGIC_LONG_TOPIC) else 0


def _fills_its_only_file(disk: Disk, promised_end: int) -> bool:
    """Whether the log's only file ends exactly at the end of its last record.

    No file is created that short, so the process crashed while it truncated the log.
    """
    starts = segment_starts(disk, FOLDER)
    if len(starts) != 1:
        return False
    path = f"{FOLDER}/{segment_name(starts[0])}"
    size = disk.file_size(path)
    file = disk.map_file(path, size)
    at = max(0, promised_end - starts[0])
    while at < size and len(batch := check_records(file.map, at, size, starts[0] + at, _SCANNED_RECORDS)):
        at += int(batch.sizes.sum())
    file.close()
    return at == size
