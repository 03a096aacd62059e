"""The log reader: finds records by log offset, by queue and by key. It never changes anything on disk."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from latermq.arrays import Ints
from latermq.errors import CorruptStore
from latermq.message.properties import encode_properties
from latermq.message.record import Message, decode_record, record_store_timestamp_ms
from latermq.message.record_fields import HEAD
from latermq.store.commit_log import CommitLog
from latermq.store.dispatch import EntryCode
from latermq.store.index.key_index import NO_HIT, KeyIndex
from latermq.store.index.pending_keys import PendingKeys
from latermq.store.queues.consume_queue import ENTRY, ConsumeQueue
from latermq.store.queues.queue_table import QueueTable

_ENTRY_WORK = 8  # checking a queue entry takes as long as filtering this many bytes of a record: 0.1 µs


class Fetched(NamedTuple):
    """Records read from a queue, in their log format, and the offset to continue from."""

    pieces: list[bytes]
    messages: int
    next_offset: int
    work: int  # the filter's work, in bytes of records
    is_exhausted: bool  # the filter reached its limit for one call


class LogReader:
    """Reads the log through its queues and its index, in the thread that appends."""

    def __init__(
        self, log: CommitLog, queues: QueueTable, index: KeyIndex, pending_keys: PendingKeys, entry_code: EntryCode
    ) -> None:
        self.log = log
        self.queues = queues
        self._index = index
        self._pending_keys = pending_keys
        self._entry_code = entry_code

    # By log offset

    def read_message(self, physical_offset: int) -> Message | None:
        """Return the message at a log offset, or None if no record begins there."""
        record = self.log.read_record(physical_offset)
        return decode_record(record) if record else None

    def waiting_code_at(self, physical_offset: int) -> int:
        """Return the code of the queue entry for the waiting record at this log offset."""
        message = self.read_message(physical_offset)
        if message is None:
            raise CorruptStore(f"a queue entry points to {physical_offset}, where the log has no record")
        return self._entry_code(
            message.topic, encode_properties(message.properties).encode(), message.store_timestamp_ms
        )

    # By queue

    def fetch(
        self,
        queue: ConsumeQueue,
        offset: int,
        *,
        max_count: int,
        max_bytes: int,
        code_matches: Callable[[int], bool] | None = None,
        record_matches: Callable[[bytes], bool] | None = None,
        max_scan: int = 16_384,
        max_work: int = 1 << 20,
        record_work: int = 0,
        byte_work: int = 1,
        until: int | None = None,
    ) -> Fetched:
        """Read records from `offset` on, at least one regardless of its size. Adjacent records are read as one piece.

        With `until`, entries from that offset on are not read.

        Filters check the tags code of the entry first, then the record. Bodies are never decoded. Filtering a record of
        n bytes counts as `record_work + n · byte_work`. The call stops at `max_work` and returns how far it got.
        """
        if code_matches is None and record_matches is None and until is None and max_count < max_scan:
            fetched = self._fetch_all(queue, offset, max_count, max_bytes)
            if fetched is not None:
                return fetched
        count = total_bytes = scanned = work = 0
        next_offset = offset
        spans: list[tuple[int, int]] = []
        run_start = run_end = -1
        while count < max_count and scanned < max_scan and total_bytes < max_bytes and work < max_work:
            chunk = min(max_count - count if code_matches is None else 512, 512)
            if until is not None:
                chunk = min(chunk, until - next_offset)
            entries = queue.entries(next_offset, chunk)
            if not entries:
                break
            for at, size, code in ENTRY.iter_unpack(entries):
                if code_matches is not None and not code_matches(code):
                    next_offset += 1
                    scanned += 1
                    continue
                if count and (total_bytes + size > max_bytes or count >= max_count):
                    total_bytes = max_bytes  # full: leave both loops
                    break
                if record_matches is not None:
                    if work >= max_work:
                        break
                    work += record_work + size * byte_work
                    if not record_matches(self.log.read(at, size)):
                        next_offset += 1
                        scanned += 1
                        continue
                if at == run_end and not self.log.is_segment_start(at):
                    run_end = at + size
                else:
                    if run_end > run_start:
                        spans.append((run_start, run_end))
                    run_start, run_end = at, at + size
                next_offset += 1
                scanned += 1
                count += 1
                total_bytes += size
        if run_end > run_start:
            spans.append((run_start, run_end))
        is_exhausted = work >= max_work or scanned >= max_scan
        return Fetched(self.log.read_spans(spans), count, next_offset, work + scanned * _ENTRY_WORK, is_exhausted)

    def _fetch_all(self, queue: ConsumeQueue, offset: int, count: int, max_bytes: int) -> Fetched | None:
        """Read this many records, or return None if they are fewer, too large together, or in several files.

        Most fetches of a backlog are like that: they take half of the time.
        """
        entries = queue.entries(offset, count)
        if not entries or len(entries) != count * ENTRY.size:
            return None
        places = list(ENTRY.iter_unpack(entries))
        total_bytes = sum([size for _, size, _ in places])
        pieces = self.log.read_places(places, total_bytes) if total_bytes <= max_bytes else None
        return None if pieces is None else Fetched(pieces, count, offset + count, count * _ENTRY_WORK, False)

    def store_timestamp_ms(self, queue: ConsumeQueue, offset: int) -> int:
        """Return the store time of the message at this queue offset, or -1 if there is none."""
        entry = queue.entry(offset)
        if entry is None or not self.log.start <= entry[0] < self.log.end:
            return -1
        return record_store_timestamp_ms(self.log.read(entry[0], HEAD.size), 0)

    def offset_by_time(self, queue: ConsumeQueue, timestamp_ms: int, *, upper: bool = False) -> int:
        """Return the first offset stored at or after this time, or with `upper` the last one stored at or before it."""
        bound_ms = timestamp_ms + 1 if upper else timestamp_ms

        def is_after(at: int, size: int, code: int) -> bool:
            return record_store_timestamp_ms(self.log.read(at, HEAD.size), 0) >= bound_ms

        found = queue.find_first(is_after)
        return max(queue.min_offset, found - 1) if upper else found

    def flushed_end(self, queue: ConsumeQueue) -> int:
        """The queue offset up to which records survive a power failure. No stored consumer position exceeds it."""
        if queue.known_flushed == queue.next_offset:
            return queue.next_offset
        newest = queue.entry(queue.next_offset - 1)
        if newest is None or newest[0] + newest[1] <= self.log.flushed:
            queue.known_flushed = queue.next_offset
            return queue.next_offset
        return queue.offset_of_log(self.log.flushed)

    # By key

    def find_by_key(self, topic: str, key: str, begin_ms: int, end_ms: int) -> Iterator[int]:
        """Yield log offsets that may hold this key, newest first."""
        return (offset for offset in self.search_key(topic, key, begin_ms, end_ms) if offset != NO_HIT)

    def search_key(
        self, topic: str, key: str, begin_ms: int = 0, end_ms: int = 1 << 62, start: int = 0
    ) -> Iterator[int]:
        """Do the same from a log offset on, with NO_HIT after many steps without a hit, so that callers can pause."""
        self._pending_keys.put()
        before = self.log.end
        for offset in self._index.find(topic, key, begin_ms, end_ms, max(start, self.log.start)):
            if offset == NO_HIT:
                yield offset
            elif offset < before:  # keys added again after the disk was full are in the index twice
                before = offset
                yield offset

    @property
    def newest_indexed(self) -> tuple[int, int]:
        """Store time and physical offset of the newest record in the key index."""
        return self._index.newest

    def find_hashes(self, hashes: Ints) -> tuple[Ints, Ints]:
        """Return pairs (row of a hash, log offset that may hold its key) for many hashed keys."""
        self._pending_keys.put()
        rows, offsets = self._index.find_all(hashes)
        kept = (offsets >= self.log.start) & (offsets < self.log.end)
        return rows[kept], offsets[kept]
