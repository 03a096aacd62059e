"""The ConsumeQueue: a 20-byte entry per message with the position of its record (docs/formats/consumequeue.md)."""

import struct
from collections.abc import Callable, Mapping
from itertools import pairwise

import numpy as np

from latermq.arrays import Ints, Structs
from latermq.message.record_fields import topic_field
from latermq.store.files.disk import Disk, MappedFile
from latermq.store.queues.map_pool import MapPool
from latermq.store.segments import LazySegments, segment_name, segment_starts

FOLDER = "consumequeue"
ENTRY = struct.Struct(">qiq")  # physical offset, record size, tags code
ENTRY_BYTES = ENTRY.size
ENTRY_DTYPE = np.dtype([("offset", ">i8"), ("size", ">i4"), ("tags", ">i8")])
# Space is reserved in small steps because there may be thousands of queues, most of them short.
RESERVE_STEP_BYTES = 64 * 1024
# A queue that begins inside a file has entries of this size before its first real entry, as in RocketMQ.
PRE_BLANK_SIZE = 0x7FFFFFFF
_PRE_BLANK = ENTRY.pack(0, PRE_BLANK_SIZE, 0)


class ConsumeQueue:
    """One queue of one topic. Entry n is at byte 20·n. Entries are in log order."""

    def __init__(
        self,
        disk: Disk,
        topic: str,
        queue_id: int,
        *,
        file_entries: int,
        pool: MapPool,
        promised_end: int | None = None,
        is_size_right: Callable[[], bool] = lambda: False,
    ) -> None:
        """`promised_end` is the queue's end according to a checkpoint; see `Segments`."""
        self.topic = topic
        self.queue_id = queue_id
        encoded = topic.encode()
        # The topic as encoded in records, with its length prefix, for topics of ordinary length.
        self.topic_bytes = topic_field(encoded)[1]
        self.folder = f"{FOLDER}/{topic}/{queue_id}"
        self._file_bytes = file_entries * ENTRY_BYTES
        self._disk = disk
        if self._has_hole(is_promised=promised_end is not None):
            self.remove()
        promised_bytes = None if promised_end is None else promised_end * ENTRY_BYTES
        self._segments = LazySegments(
            disk, self.folder, self._file_bytes, promised_bytes, is_size_right, pool, self._release
        )
        self.min_offset = self._segments.start // ENTRY_BYTES
        self.next_offset = self.min_offset
        self._synced_offset = self.min_offset
        # The file for the next entry. None if that file is unmapped or does not exist yet.
        self._file: MappedFile | None = None
        self._at = 0
        # Caches that avoid reading the files of idle queues, of which there may be thousands: the log offset of the
        # first entry's record, and the queue end up to which everything is known to be flushed.
        self._first_at = -1
        self.known_flushed = -1

    def _release(self, file: MappedFile) -> None:
        """Unmap a file because the pool needs its slot for another one."""
        if file is self._file:
            self._file = None
        file.close_map()

    # Writing

    def make_room(self, count: int = 1) -> None:
        """Reserve space for the next entries. Raises StoreError and changes nothing if there is no space."""
        needed = self._at + count * ENTRY_BYTES
        file = self._file
        if file is None or needed > file.reserved:
            self._make_room(count)

    def _make_room(self, count: int) -> None:
        left = count
        offset = self.next_offset
        while left:
            start = offset * ENTRY_BYTES
            if start >= self._segments.end:
                file = self._segments.make_next()
                file.reserve(min(RESERVE_STEP_BYTES, self._file_bytes))
                self._segments.adopt(file)
            file = self._segments.file_at(start)
            at = start % self._file_bytes
            here = min(left, (self._file_bytes - at) // ENTRY_BYTES)
            needed = at + here * ENTRY_BYTES
            file.reserve(min(self._file_bytes, -(-needed // RESERVE_STEP_BYTES) * RESERVE_STEP_BYTES))
            left -= here
            offset += here
        if self._file is None:
            self._turn_to(self.next_offset)

    def _turn_to(self, offset: int) -> MappedFile:
        self._file = file = self._segments.file_at(offset * ENTRY_BYTES)
        self._at = offset * ENTRY_BYTES % self._file_bytes
        return file

    def append(self, physical_offset: int, size: int, tags_code: int) -> int:
        """Add one entry in the space reserved by `make_room`, and return its queue offset."""
        offset = self.next_offset
        file = self._file or self._turn_to(offset)
        at = self._at
        ENTRY.pack_into(file.map, at, physical_offset, size, tags_code)
        self.next_offset = offset + 1
        self._at = at = at + ENTRY_BYTES
        if at == self._file_bytes:
            self._file, self._at = None, 0
        return offset

    def extend(self, physical_offsets: Ints, sizes: Ints, tags_codes: Ints) -> None:
        """Add many entries at once in the space reserved by `make_room`."""
        entries = np.empty(len(sizes), ENTRY_DTYPE)
        entries["offset"], entries["size"], entries["tags"] = physical_offsets, sizes, tags_codes
        raw = entries.tobytes()
        done = 0
        while done < len(raw):
            start = self.next_offset * ENTRY_BYTES
            at = start % self._file_bytes
            part = raw[done : done + self._file_bytes - at]
            self._segments.file_at(start).map[at : at + len(part)] = part
            done += len(part)
            self.next_offset += len(part) // ENTRY_BYTES
        if self.next_offset * ENTRY_BYTES < self._segments.end:
            self._turn_to(self.next_offset)
        else:
            self._file, self._at = None, 0

    def sync(self, synced_folders: set[str] | None = None) -> None:
        """Sync the entries added since the last sync. Blocks; may run concurrently with the writer."""
        end = self.next_offset
        if end > self._synced_offset:
            self._segments.sync(self._synced_offset * ENTRY_BYTES, end * ENTRY_BYTES, synced_folders)
            self._synced_offset = end

    # Reading

    def entries(self, offset: int, count: int) -> bytes:
        """Return the raw entries from `offset`: at most `count`, and not beyond the end of their file."""
        count = min(count, self.next_offset - offset)
        if count <= 0 or offset < self.min_offset:
            return b""
        at = offset * ENTRY_BYTES % self._file_bytes
        end = min(at + count * ENTRY_BYTES, self._file_bytes)
        return self._segments.file_at(offset * ENTRY_BYTES).map[at:end]

    def entry(self, offset: int) -> tuple[int, int, int] | None:
        """Return (physical offset, size, tags code) of one entry, or None if there is none."""
        raw = self.entries(offset, 1)
        return ENTRY.unpack(raw) if raw else None

    def array(self, offset: int, count: int) -> Structs:
        """Return the same as `entries`, as a numpy array with the fields offset, size and tags."""
        return np.frombuffer(self.entries(offset, count), dtype=ENTRY_DTYPE)

    def gather(self, offsets: Ints) -> Structs:
        """Return the entries at these offsets, which must be sorted and inside the queue."""
        entries = np.empty(len(offsets), ENTRY_DTYPE)
        file_entries = self._file_bytes // ENTRY_BYTES
        done = 0
        while done < len(offsets):
            start = int(offsets[done]) // file_entries * file_entries
            end = int(np.searchsorted(offsets, start + file_entries))
            file = self._segments.file_at(start * ENTRY_BYTES)
            entries[done:end] = np.frombuffer(file.map, ENTRY_DTYPE, file_entries)[offsets[done:end] - start]
            done = end
        return entries

    def find_first(self, is_after: Callable[[int, int, int], bool]) -> int:
        """Return the first offset for which `is_after` is true. It must stay true for all later entries."""
        low, high = self.min_offset, self.next_offset
        while low < high:
            middle = (low + high) // 2
            if is_after(*self._peek(middle)):
                high = middle
            else:
                low = middle + 1
        return low

    def offset_of_log(self, physical_offset: int) -> int:
        """Return the first queue offset whose record is at or after this log offset."""
        return self.find_first(lambda offset, size, tags: size != PRE_BLANK_SIZE and offset >= physical_offset)

    def _peek(self, offset: int) -> tuple[int, int, int]:
        at = offset * ENTRY_BYTES % self._file_bytes
        return ENTRY.unpack_from(self._segments.file_at(offset * ENTRY_BYTES).map, at)

    def _look(self, offset: int) -> tuple[int, int, int]:
        """Do the same as `_peek` without mapping the file: a start looks at every queue but uses hardly any of them."""
        file = self._segments.lazy_file_at(offset * ENTRY_BYTES)
        at = offset * ENTRY_BYTES % self._file_bytes
        return ENTRY.unpack_from(file.map, at) if file.is_mapped else ENTRY.unpack(file.read(at, ENTRY_BYTES))

    # Opening and cutting

    def _has_hole(self, *, is_promised: bool) -> bool:
        """Whether a file between others is missing. The remaining files are then useless, and the queue is rebuilt.

        The same applies to an empty file before others, unless a checkpoint shows that its content is not needed.
        """
        names = self._disk.list_names(self.folder)
        sizes = [self._disk.file_size(f"{self.folder}/{name}") for name in names]
        if len(names) < 2 or set(sizes) - {0, self._file_bytes}:
            return False  # `Segments` handles files of another size
        if 0 in sizes[:-1] and not is_promised:
            return True
        starts = [int(name) for name in names if name.isdigit()]
        return any(later - start != self._file_bytes for start, later in pairwise(starts))

    @property
    def kept_from(self) -> int:
        """The offset of the first entry that the files can hold."""
        return self._segments.start // ENTRY_BYTES

    def holds(self, end: int, kept_from: int, log_start: int, log_end: int) -> bool:
        """Whether the files hold the entries up to `end`, as a checkpoint at `log_end` says.

        `kept_from` is the first entry of the files according to the checkpoint. If the files begin later, either
        retention removed the earlier ones or a file was lost. After retention, the first remaining entry also points
        below the log's start.
        """
        if not self._segments.start <= end * ENTRY_BYTES <= self._segments.end:
            return False
        if end > self.kept_from:
            offset, size, _ = self._look(end - 1)
            if size <= 0 or (size != PRE_BLANK_SIZE and offset + size > log_end):
                return False
        if self.kept_from <= kept_from:
            return True
        offset, size, _ = self._look(self.kept_from) if end > self.kept_from else (log_start, 0, 0)
        return size == PRE_BLANK_SIZE or offset < log_start

    def open_at(self, next_offset: int) -> None:
        """Open the queue with the end that a checkpoint names and the files hold. Discard everything after it."""
        self.next_offset = next_offset
        self._cut()

    def remove(self) -> None:
        """Remove all files. The queue must not be used afterwards."""
        self._disk.remove(self.folder)

    def open_below(self, physical_offset: int) -> None:
        """Find the queue's end: the first entry that is empty or points to this log offset or later. Discard the rest.

        This is for stores that stopped cleanly without a LaterMQ checkpoint: their entries are complete and in order.
        """
        # Do not read the map, which must not be touched where nothing was written.
        low, high = self.min_offset, self._segments.end // ENTRY_BYTES
        while low < high:
            middle = (low + high) // 2
            file = self._segments.lazy_file_at(middle * ENTRY_BYTES)
            offset, size, _ = ENTRY.unpack(file.read(middle * ENTRY_BYTES % self._file_bytes, ENTRY_BYTES))
            if size <= 0 or offset >= physical_offset:
                high = middle
            else:
                low = middle + 1
        self.next_offset = low
        self._cut()

    def restart_at(self, offset: int) -> None:
        """Restart the queue empty at this offset: its topic was deleted and recreated, or its old entries are gone."""
        self._segments.clear()
        self._segments.begin_at(offset * ENTRY_BYTES)
        blanks = offset - self._segments.start // ENTRY_BYTES
        self.min_offset = self.next_offset = self._synced_offset = offset - blanks
        self._file, self._at = None, 0
        self._first_at = self.known_flushed = -1
        if blanks:
            self.make_room(blanks)
            self._segments.file_at(offset * ENTRY_BYTES).map[: blanks * ENTRY_BYTES] = _PRE_BLANK * blanks
            self.min_offset = self.next_offset = offset
            self._turn_to(offset)
        elif offset:
            self.make_room()  # creates a file, so that the next start finds the queue's position

    def _cut(self) -> None:
        end = self.next_offset * ENTRY_BYTES
        self._segments.cut(end)
        self._synced_offset = self.next_offset
        self._file, self._at = None, 0

    def forget_below(self, log_start: int) -> list[str]:
        """Advance to the log's start: entries whose records are gone are no longer available.

        Returns the paths of files that hold only such entries. Remove them after the log's own files.
        """
        if self._first_at >= log_start:
            return []
        if self.min_offset < self.next_offset:
            offset, size, _ = self._look(self.min_offset)
            if size != PRE_BLANK_SIZE and offset >= log_start:
                self._first_at = offset
                return []
        self.min_offset = max(self.min_offset, self.offset_of_log(log_start))
        paths = []
        while len(self._segments) > 1 and self._segments.start + self._file_bytes <= self.min_offset * ENTRY_BYTES:
            paths.append(self._segments.drop_first())
        return paths

    def close(self) -> None:
        """Unmap all files."""
        self._file = None
        self._segments.close()


def are_cut_short(disk: Disk, file_entries: int, promised_ends: Mapping[tuple[str, int], int | None]) -> bool:
    """Whether queue files that are too short were created with this size and truncated later.

    This is the case if another file has this size, or if each short file ends where its queue ends: then a process
    crashed while it truncated the queue.
    """
    are_cut = True
    for (topic, queue_id), end in promised_ends.items():
        folder = f"{FOLDER}/{topic}/{queue_id}"
        for start in segment_starts(disk, folder):
            size = disk.file_size(f"{folder}/{segment_name(start)}")
            if size == file_entries * ENTRY_BYTES:
                return True
            are_cut &= size == 0 or (end is not None and start + size == end * ENTRY_BYTES)
    return are_cut
