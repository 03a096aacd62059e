"""The message store: one log, the queues and the key index derived from it, opened, appended to and read together."""

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from threading import Lock
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from latermq.clock import Clock
from latermq.config import StoreConfig
from latermq.errors import CorruptStore, IllegalMessage, NoPermission, StoreError
from latermq.message.names import SCHEDULE_TOPIC, TIMER_DEAD_LETTER_TOPIC, TIMER_TOPIC, is_file_name
from latermq.message.properties import TOPIC_DELETED, encode_properties
from latermq.message.record import (
    BLANK,
    HEAD,
    MAGIC,
    MAX_SHORT_TOPIC_BYTES,
    SYSFLAG_BORN_V6,
    SYSFLAG_ROLLED_BACK,
    SYSFLAG_STORE_V6,
    Message,
    decode_record,
    encode_record,
    record_store_timestamp_ms,
)
from latermq.store.block import Block
from latermq.store.checkpoint import Checkpoint, TimerMarks, load_checkpoint, save_checkpoint
from latermq.store.commit_log import CommitLog
from latermq.store.consume_queue import ENTRY, FOLDER, ConsumeQueue, are_cut_short
from latermq.store.dispatch import IndexKeys, index_keys, queue_tags_code
from latermq.store.files.disk import Disk
from latermq.store.key_index import NO_HIT, KeyIndex
from latermq.store.map_pool import MapPool
from latermq.store.ranges import RangeSet
from latermq.store.recovery import Delivered, Recovery, recover

ABORT_PATH = "abort"
STORE_ID_PATH = "latermq.storeid"
OWN_TOPICS = (SCHEDULE_TOPIC, TIMER_TOPIC, TIMER_DEAD_LETTER_TOPIC)  # they have few queues, and always find room
INDEX_BATCH = 1000  # keys are put into the index in batches of this many records
# Properties longer than this may hold hundreds of keys: of such ones batches have so many bytes at most.
_LONG_PROPERTIES = 512
INDEX_BATCH_BYTES = 128 << 10
_U16_SIZE = 2
_PLAIN_BYTES = HEAD.size + _U16_SIZE  # of a record in IPv4: what is neither body, topic nor properties
_NO_V6 = ~(SYSFLAG_BORN_V6 | SYSFLAG_STORE_V6)
_ENTRY_WORK = 8  # to look at a queue entry takes as long as at so many bytes of a record: 0.1 µs


class Draft(NamedTuple):
    """A message on its way into the log."""

    topic: str
    queue_id: int
    body: bytes
    properties: bytes
    born_timestamp_ms: int
    born_host: bytes
    flag: int = 0
    sysflag: int = 0
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0


# A message for `append_run`: topic, queue id, body, properties, born timestamp, flag, system flag, reconsume times, and
# the tags code of its queue entry where that is no tag's. A plain tuple: building a named one costs 0.3 µs more.
PlainMessage = tuple[str, int, bytes, bytes, int, int, int, int, int | None]


class Appended(NamedTuple):
    """Where a message went."""

    physical_offset: int
    queue_offset: int
    end_offset: int


class Fetched(NamedTuple):
    """Records read from a queue, as they lie in the log, and where to go on."""

    pieces: list[bytes]
    messages: int
    next_offset: int
    work: int  # what the filter did, in bytes of records
    is_worn_out: bool  # the filter had looked at as much as one call may


@dataclass(frozen=True)
class CheckpointPlan:
    """What a checkpoint will say once everything it covers is synced."""

    log_offset: int
    index_file: str
    index_next_entry: int
    index_files: list[str]
    store_timestamp_ms: int
    delivered: dict[int, list[tuple[int, int]]]
    queue_ends: dict[str, dict[int, int]]
    queue_starts: dict[str, dict[int, int]]
    queues: tuple[ConsumeQueue, ...]
    timers: TimerMarks | None


class MessageStore:
    """Opened by the constructor, which recovers it. One thread appends and reads; `flush` and `save` may run beside."""

    def __init__(
        self,
        disk: Disk,
        config: StoreConfig,
        clock: Clock,
        *,
        store_host: bytes,
        new_store_id: str,
        waiting_codes: Mapping[str, Callable[[bytes, int], int]] = MappingProxyType({}),
    ) -> None:
        """`waiting_codes` tells for each topic where messages wait what its queue entries hold instead of a tag's
        code, from a record's properties and store time: when it is due.
        """
        self._disk = disk
        self._config = config
        self._clock = clock
        self._now_ms = clock.now_ms
        self._store_host = store_host
        self._store_host_v4 = len(store_host) == 8
        self._waiting_codes = waiting_codes
        disk.lock()
        foreign = disk.read(STORE_ID_PATH) is None
        self.store_id = self._load_store_id(new_store_id)
        checkpoint = load_checkpoint(disk)
        self.log = CommitLog(
            disk,
            segment_bytes=config.segment,
            reserve_step_bytes=config.reserve_step,
            promised_end=checkpoint.log_offset if checkpoint else None,
        )
        self.index = KeyIndex(disk, slots=config.index_slots, max_entries=config.index_entries)
        self.pool = MapPool(config.max_open_queues)
        self._queues = self._open_queues(checkpoint.queue_ends if checkpoint else None)
        self._unindexed: list[tuple[str, bytes, int, int]] = []
        self._long_bytes = 0  # of long properties among these
        self._hashed: list[IndexKeys] = []
        self.last_store_timestamp_ms = 0
        self.checkpoint_offset = 0
        self._planning = Lock()
        self._removals_plan: CheckpointPlan | None = None
        crashed = disk.read(ABORT_PATH) is not None
        disk.replace(ABORT_PATH, b"")
        # Which entries of each level have been delivered: derived from the log, as the queues are.
        self.delivered: Delivered = {}
        # What timers keep beside the log: how far it is when a checkpoint is planned, and what syncs it then.
        self.timer_marks: Callable[[], tuple[TimerMarks, list[tuple[int, int]]] | None] = lambda: None
        self.sync_timers: Callable[[], None] = lambda: None
        self.saved_timer_marks: TimerMarks | None = None
        # The same as the last checkpoint has it: no death takes that back.
        self.safely_delivered: dict[int, list[tuple[int, int]]] = {}
        self.recovery: Recovery = recover(
            disk,
            self.log,
            self._queues,
            self.index,
            self.queue,
            self._tags_code,
            self.delivered,
            crashed=crashed,
            foreign=foreign,
        )
        self.last_store_timestamp_ms = self.recovery.last_store_timestamp_ms
        # What was accepted shall find a queue when it is delivered, also where an earlier version or a higher bound
        # accepted it. But by deleting topics and making them again, nobody gets more than a quarter beyond the bound.
        self._max_queues = config.max_queues
        self._max_delivered_queues = max(config.max_queues, len(self._queues)) + config.max_queues // 4
        if (resumed := self.recovery.resumed) is not None:
            self.checkpoint_offset = resumed.log_offset
            self.safely_delivered = resumed.delivered
            self.saved_timer_marks = resumed.timers

    def _load_store_id(self, new_store_id: str) -> str:
        stored = self._disk.read(STORE_ID_PATH)
        if stored is not None:
            store_id = stored.decode(errors="replace").strip()
            if not is_file_name(store_id):  # folders of the pipeline are called so
                raise CorruptStore(
                    f"{STORE_ID_PATH} holds {store_id[:40]!r}, which is no store id",
                    hint="Put the right one back: the timeline's windows and claims are kept under it",
                )
            return store_id
        self._disk.replace(STORE_ID_PATH, new_store_id.encode() + b"\n")
        return new_store_id

    def _open_queues(self, ends: dict[str, dict[int, int]] | None) -> dict[tuple[str, int], ConsumeQueue]:
        """All queues on disk; `ends` says how long a checkpoint knows them to be."""
        found = [
            (topic, int(name))
            for topic in filter(is_file_name, self._disk.list_names(FOLDER))  # what is no UTF-8 is no topic
            for name in self._disk.list_names(f"{FOLDER}/{topic}")
            if name.isdigit()
        ]
        promised = {
            (topic, queue_id): None if ends is None else ends.get(topic, {}).get(queue_id, 0)
            for topic, queue_id in found
        }
        is_size_right = cache(lambda: are_cut_short(self._disk, self._config.queue_file_entries, promised))
        return {
            (topic, queue_id): ConsumeQueue(
                self._disk,
                topic,
                queue_id,
                file_entries=self._config.queue_file_entries,
                pool=self.pool,
                promised_end=end,
                is_size_right=is_size_right,
            )
            for (topic, queue_id), end in promised.items()
        }

    def _new_queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        return ConsumeQueue(self._disk, topic, queue_id, file_entries=self._config.queue_file_entries, pool=self.pool)

    # Queues

    def queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        """The queue, made where it is missing."""
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            queue = self._queues[topic, queue_id] = self._new_queue(topic, queue_id)
        return queue

    def _admit_queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        """The same for a message that is being sent: it is refused where there are too many queues."""
        if len(self._queues) >= self._max_queues and (topic, queue_id) not in self._queues and topic not in OWN_TOPICS:
            raise NoPermission(
                f"there are {len(self._queues)} queues, as many as store.max_queues allows: none is made for "
                f"{topic!r} {queue_id}",
                hint="Send to a queue that has messages, delete topics that nobody uses, or raise store.max_queues",
            )
        return self.queue(topic, queue_id)

    def hold_queue(self, topic: str, queue_id: int) -> None:
        """Make sure of a queue's place before a message for it is let wait. It gets its file with the first entry."""
        if (topic, queue_id) not in self._queues:
            self._admit_queue(topic, queue_id)

    def has_queue(self, topic: str, queue_id: int) -> bool:
        """Whether the queue is there."""
        return (topic, queue_id) in self._queues

    def can_deliver_to(self, topic: str, queue_id: int) -> bool:
        """Whether there is a place for what has waited; it is there but in odd cases, see `store.max_queues`."""
        return (topic, queue_id) in self._queues or len(self._queues) < self._max_delivered_queues

    def find_queue(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """The queue, if anything was ever put into it or waits for it."""
        return self._queues.get((topic, queue_id))

    def queues(self) -> Iterable[ConsumeQueue]:
        """All queues there are."""
        return list(self._queues.values())

    def go_on_from(self, offsets: Mapping[tuple[str, int], int]) -> None:
        """Let queues that no record in the log tells of go on at these offsets: their numbers were given out once.

        For a start without a checkpoint, which would have said how long each queue is.
        """
        for (topic, queue_id), offset in offsets.items():
            queue = self._queues.get((topic, queue_id))
            if offset and (queue is None or queue.next_offset == queue.min_offset < offset):
                self.queue(topic, queue_id).restart_at(offset)

    def remove_topic(self, topic: str) -> Callable[[], None]:
        """Forget a topic's queues; its records stay in the log until it is their time.

        So that they do not come back when queues are built again from the log, the log itself says that they are gone,
        in a record behind them. Raises StoreError where there is no space for it; nothing has changed then.

        What is returned removes them from disk. It blocks and may run beside the writer, one after the other with
        `save`; until it has run, nothing may be appended to the topic.
        """
        going = [queue for key, queue in self._queues.items() if key[0] == topic]
        if going:
            self.index_pending()
            staying = {key: queue for key, queue in self._queues.items() if key[0] != topic}
            self._append_deletion(topic)
            plan = self._plan(staying)
            with self._planning:
                self._removals_plan = plan
            self._queues = staying

        def remove() -> None:
            # The checkpoint first: what it does not name is removed at the next start, if we do not get there.
            if going:
                self._save_removals()
            for queue in going:
                queue.close()
            self._disk.remove(f"{FOLDER}/{topic}")

        return remove

    def _save_removals(self) -> None:
        """Save a checkpoint that knows of every removal up to now, unless that was done meanwhile.

        Of those that wait the newest one's is enough for all, and each takes megabytes where there are many queues.
        """
        with self._planning:
            plan, self._removals_plan = self._removals_plan, None
        if plan is None:
            return
        try:
            self.save(plan)
        except BaseException:
            with self._planning:
                self._removals_plan = self._removals_plan or plan
            raise

    def _append_deletion(self, topic: str) -> None:
        """Like a rolled-back transaction it gets no queue entry, neither here nor from RocketMQ."""
        now_ms = self._now_ms()
        properties = encode_properties({TOPIC_DELETED: "1"}).encode()
        draft = Draft(topic, 0, b"", properties, now_ms, self._store_host, sysflag=SYSFLAG_ROLLED_BACK)
        at = self.log.place(len(self.encode(draft, 0, 0, now_ms)))
        self.log.write_block(at, bytearray(self.encode(draft, 0, at, now_ms)))
        self.last_store_timestamp_ms = now_ms

    # Appending

    def append(
        self,
        topic: str,
        queue_id: int,
        body: bytes,
        properties: bytes,
        born_timestamp_ms: int,
        born_host: bytes,
        flag: int = 0,
        sysflag: int = 0,
        reconsume_times: int = 0,
        now_ms: int = 0,
    ) -> tuple[int, int, int]:
        """Append one message and its queue entry; its index keys follow in a batch. Returns what Appended names.

        `now_ms` becomes its store time where the caller has looked at the clock already.

        This is the hot path of every send: `encode_record`, `CommitLog.place` and the write are spelled out here for
        hosts in IPv4 and topics of ordinary length, which saves calls with many arguments (1.2 of 4.6 µs).
        """
        queue = self._queues.get((topic, queue_id)) or self._admit_queue(topic, queue_id)
        topic_bytes = queue.topic_bytes
        if len(born_host) != 8 or not self._store_host_v4 or len(topic_bytes) > MAX_SHORT_TOPIC_BYTES + 1:
            draft = Draft(
                topic, queue_id, body, properties, born_timestamp_ms, born_host, flag, sysflag, reconsume_times
            )
            return self.append_all([draft], now_ms)[0]
        # Whatever can fail for want of space comes before the log is touched: a refused message is not there.
        properties_size = len(properties)
        if len(self._unindexed) >= INDEX_BATCH:
            self.index_pending()
        if properties_size > _LONG_PROPERTIES:
            self._note_long(properties_size)
        queue.make_room()
        log = self.log
        body_size = len(body)
        size = HEAD.size + body_size + len(topic_bytes) + _U16_SIZE + properties_size
        at = log.end
        if at + size > log.limit:
            at = log.make_place(size)
        now_ms = now_ms or self._now_ms()
        in_file = at - log.file_start
        # fmt: off
        log.map[in_file : in_file + size] = b"".join((
            HEAD.pack(
                size, MAGIC, zlib.crc32(body) & 0x7FFFFFFF, queue_id, flag, queue.next_offset, at, sysflag & _NO_V6,
                born_timestamp_ms, born_host, now_ms, self._store_host, reconsume_times, 0, body_size,
            ),
            body, topic_bytes, properties_size.to_bytes(2, "big"), properties,
        ))
        # fmt: on
        log.end = at + size
        waiting_code = self._waiting_codes.get(topic)
        code = queue_tags_code(properties) if waiting_code is None else waiting_code(properties, now_ms)
        queue_offset = queue.append(at, size, code)
        self.last_store_timestamp_ms = now_ms
        self._unindexed.append((topic, properties, at, now_ms))
        return at, queue_offset, at + size

    def append_run(self, run: list[PlainMessage], born_host: bytes, now_ms: int) -> list[tuple[int, int]]:
        """Append messages of one sender, each as `append` would, and return (physical offset, queue offset) of each.

        It ends before the first that has to wait for its turn in the index, finds no space or fits no segment:
        `append` deals with that one. Topics are of ordinary length and hosts in IPv4. Looking things up once a run
        saves 0.7 of 2.6 µs.
        """
        log, queues, unindexed, store_host = self.log, self._queues, self._unindexed, self._store_host
        pack, crc32, join = HEAD.pack, zlib.crc32, b"".join
        appended: list[tuple[int, int]] = []
        for topic, queue_id, body, properties, born_timestamp_ms, flag, sysflag, reconsume_times, code in run:
            if len(unindexed) >= INDEX_BATCH:
                break
            body_size, properties_size = len(body), len(properties)
            if properties_size > _LONG_PROPERTIES:
                if self._long_bytes + properties_size > INDEX_BATCH_BYTES:
                    break
                self._long_bytes += properties_size
            try:
                queue = queues.get((topic, queue_id)) or self._admit_queue(topic, queue_id)
                queue.make_room()
                topic_bytes = queue.topic_bytes
                size = _PLAIN_BYTES + body_size + len(topic_bytes) + properties_size
                at = log.end
                if at + size > log.limit:
                    at = log.make_place(size)
            except (StoreError, IllegalMessage, NoPermission):
                break
            in_file = at - log.file_start
            # fmt: off
            log.map[in_file : in_file + size] = join((
                pack(
                    size, MAGIC, crc32(body) & 0x7FFFFFFF, queue_id, flag, queue.next_offset, at, sysflag,
                    born_timestamp_ms, born_host, now_ms, store_host, reconsume_times, 0, body_size,
                ),
                body, topic_bytes, properties_size.to_bytes(2, "big"), properties,
            ))
            # fmt: on
            log.end = at + size
            appended.append((at, queue.append(at, size, queue_tags_code(properties) if code is None else code)))
            unindexed.append((topic, properties, at, now_ms))
        if appended:
            self.last_store_timestamp_ms = now_ms
        return appended

    def append_all(self, drafts: list[Draft], now_ms: int = 0) -> list[Appended]:
        """Append several messages as one block: after the death of the process all of them are there, or none."""
        if len(self._unindexed) >= INDEX_BATCH:
            self.index_pending()
        self._note_long(sum(len(draft.properties) for draft in drafts))
        now_ms = now_ms or self._now_ms()
        counts: dict[tuple[str, int], int] = {}
        for draft in drafts:
            counts[draft.topic, draft.queue_id] = counts.get((draft.topic, draft.queue_id), 0) + 1
        next_offsets = {}
        self._make_place(len(counts))
        for (topic, queue_id), count in counts.items():
            queue = self._admit_queue(topic, queue_id)
            queue.make_room(count)
            next_offsets[topic, queue_id] = queue.next_offset
        records: list[bytes] = []
        for draft in drafts:
            key = (draft.topic, draft.queue_id)
            records.append(self.encode(draft, next_offsets[key], 0, now_ms))
            next_offsets[key] += 1
        at = self.log.place(sum(map(len, records)))
        appended = []
        block = bytearray()
        for draft, record in zip(drafts, records, strict=True):
            physical_offset = at + len(block)
            block += record
            block[-len(record) + 28 : -len(record) + 36] = physical_offset.to_bytes(8, "big")
            appended.append((draft, physical_offset, len(record)))
        self.log.write_block(at, block)
        self.last_store_timestamp_ms = now_ms
        return [self._queue_up(draft, offset, size, now_ms) for draft, offset, size in appended]

    def encode(self, draft: Draft, queue_offset: int = 0, physical_offset: int = 0, now_ms: int = 0) -> bytes:
        """The record of a message; a block patches in later what is not known yet."""
        return encode_record(
            draft.topic.encode(),
            draft.body,
            draft.properties,
            queue_id=draft.queue_id,
            queue_offset=queue_offset,
            physical_offset=physical_offset,
            born_timestamp_ms=draft.born_timestamp_ms,
            born_host=draft.born_host,
            store_timestamp_ms=now_ms,
            store_host=self._store_host,
            flag=draft.flag,
            sysflag=draft.sysflag,
            reconsume_times=draft.reconsume_times,
            prepared_transaction_offset=draft.prepared_transaction_offset,
        )

    def _queue_up(self, draft: Draft, physical_offset: int, size: int, now_ms: int) -> Appended:
        queue = self._queues[draft.topic, draft.queue_id]
        queue_offset = queue.append(physical_offset, size, self._tags_code(draft.topic, draft.properties, now_ms))
        self._unindexed.append((draft.topic, draft.properties, physical_offset, now_ms))
        return Appended(physical_offset, queue_offset, physical_offset + size)

    def _make_place(self, queues: int) -> None:
        """Let the files of so many queues stay mapped until all are written to: nothing may fail behind the log."""
        if queues > 1:
            self.pool.make_room(2 * queues)  # two of a queue where one ends

    @property
    def max_block_queues(self) -> int:
        """To how many queues a block may go at once."""
        return max(1, self.pool.max_mapped // 4)

    def _tags_code(self, topic: str, properties: bytes, store_timestamp_ms: int) -> int:
        waiting_code = self._waiting_codes.get(topic)
        return queue_tags_code(properties) if waiting_code is None else waiting_code(properties, store_timestamp_ms)

    def append_block(self, block: Block, now_ms: int = 0) -> list[ConsumeQueue]:
        """Append records that were built in advance, patching what was not known then; the queues that they went to.

        Raises StoreError without space; nothing has changed then. It must not be longer than `max_block_bytes`, nor go
        to more than `max_block_queues`.
        """
        self.index_pending()
        # A part of a block may have no record for some of the block's queues; those are not made for nothing.
        rows = block.rows_by_queue()
        queues = [self.queue(*block.queues[number]) for number in rows]
        self._make_place(len(queues))
        for queue, own in zip(queues, rows.values(), strict=True):
            queue.make_room(len(own))
        at = self.log.place(block.size)
        now_ms = now_ms or self._clock.now_ms()
        if (TIMER_TOPIC, 0) in block.queues:  # rolls and batches
            now_ms = self.not_before_last(TIMER_TOPIC, now_ms)
        physical_offsets = block.patch(at, rows.values(), [queue.next_offset for queue in queues], now_ms)
        self.log.write_block(at, block.data)
        for queue, own in zip(queues, rows.values(), strict=True):
            queue.extend(physical_offsets[own], block.sizes[own], block.tags[own])
        self.last_store_timestamp_ms = now_ms
        self._hash_unindexed()  # keys go into the index in the order of their records
        key_offsets = physical_offsets[block.key_rows]
        self._hashed.append(IndexKeys(block.key_hashes, key_offsets, np.full_like(key_offsets, now_ms)))
        if block.level:  # timers go in any order, and keep their own account
            self.delivered.setdefault(block.level, RangeSet()).add_all(block.entries)
        return queues

    def index_pending(self) -> None:
        """Put the keys of what was appended lately into the index."""
        self._hash_unindexed()
        while self._hashed:
            self.index.put(self._hashed[0])
            del self._hashed[0]

    def _note_long(self, properties_bytes: int) -> None:
        """Properties are about to be stored that may hold many keys: those before come first, where they are many."""
        if self._long_bytes + properties_bytes > INDEX_BATCH_BYTES:
            self.index_pending()
        self._long_bytes += properties_bytes

    def _hash_unindexed(self) -> None:
        self._long_bytes = 0
        if self._unindexed:
            self._hashed.append(index_keys(*zip(*self._unindexed, strict=True)))
            self._unindexed = []

    # Reading

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
    ) -> Fetched:
        """Records from `offset` on, at least one whatever its size, neighbours in the log read as one piece.

        Filters look at the tags code of the entry first, then at the record. Bodies are never decoded. Looking at a
        record of n bytes is `record_work + n · byte_work`; at `max_work` the reader is told how far it went.
        """
        count = total_bytes = scanned = work = 0
        next_offset = offset
        records: list[bytes] = []
        run_start = run_end = -1
        while count < max_count and scanned < max_scan and total_bytes < max_bytes and work < max_work:
            entries = queue.entries(next_offset, min(max_count - count if code_matches is None else 512, 512))
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
                        records.append(self.log.read(run_start, run_end - run_start))
                    run_start, run_end = at, at + size
                next_offset += 1
                scanned += 1
                count += 1
                total_bytes += size
        if run_end > run_start:
            records.append(self.log.read(run_start, run_end - run_start))
        is_worn_out = work >= max_work or scanned >= max_scan
        return Fetched(records, count, next_offset, work + scanned * _ENTRY_WORK, is_worn_out)

    def read_message(self, physical_offset: int) -> Message | None:
        """The message at a log offset, None where no record begins."""
        record = self.log.read_record(physical_offset)
        return decode_record(record) if record else None

    def not_before_last(self, topic: str, now_ms: int) -> int:
        """This time, or where the clock was set back, that of the last record of the topic's queue 0.

        So store times there never go back, and a search by time finds everything.
        """
        queue = self._queues.get((topic, 0))
        return max(now_ms, self.store_timestamp_ms(queue, queue.next_offset - 1)) if queue else now_ms

    def waiting_code_at(self, physical_offset: int) -> int:
        """What a queue entry would hold for the waiting record at this log offset."""
        message = self.read_message(physical_offset)
        if message is None:
            raise CorruptStore(f"the log holds no record at {physical_offset}, where a queue entry points")
        return self._tags_code(
            message.topic, encode_properties(message.properties).encode(), message.store_timestamp_ms
        )

    def store_timestamp_ms(self, queue: ConsumeQueue, offset: int) -> int:
        """When the message at this queue offset was stored; -1 where there is none."""
        entry = queue.entry(offset)
        if entry is None or not self.log.start <= entry[0] < self.log.end:
            return -1
        return record_store_timestamp_ms(self.log.read(entry[0], HEAD.size), 0)

    def offset_by_time(self, queue: ConsumeQueue, timestamp_ms: int, *, upper: bool = False) -> int:
        """The first offset stored at or after this time; with `upper` the last stored at or before it."""
        bound_ms = timestamp_ms + 1 if upper else timestamp_ms

        def is_behind(at: int, size: int, code: int) -> bool:
            return record_store_timestamp_ms(self.log.read(at, HEAD.size), 0) >= bound_ms

        found = queue.first_where(is_behind)
        return max(queue.min_offset, found - 1) if upper else found

    def find_by_key(self, topic: str, key: str, begin_ms: int, end_ms: int) -> Iterator[int]:
        """Log offsets that may hold this key, newest first."""
        return (offset for offset in self.search_key(topic, key, begin_ms, end_ms) if offset != NO_HIT)

    def search_key(
        self, topic: str, key: str, begin_ms: int = 0, end_ms: int = 1 << 62, start: int = 0
    ) -> Iterator[int]:
        """The same from a log offset on, with NO_HIT after many steps that found nothing, for those who pause there."""
        self.index_pending()
        before = self.log.end
        for offset in self.index.find(topic, key, begin_ms, end_ms, max(start, self.log.start)):
            if offset == NO_HIT:
                yield offset
            elif offset < before:  # keys that were put again after a full disk are there twice
                before = offset
                yield offset

    def flushed_end(self, queue: ConsumeQueue) -> int:
        """The queue offset up to which records are safe from a power cut: no stored position goes beyond it."""
        if queue.known_flushed == queue.next_offset:
            return queue.next_offset
        newest = queue.entry(queue.next_offset - 1)
        if newest is None or newest[0] + newest[1] <= self.log.flushed:
            queue.known_flushed = queue.next_offset
            return queue.next_offset
        return queue.offset_of_log(self.log.flushed)

    # Syncing

    def flush(self) -> int:
        """Sync the log and return F. Blocks; runs beside the writer."""
        # Without space ahead the writer will be told when it needs it; what is written is synced all the same.
        with suppress(StoreError):
            self.log.prepare_ahead()
        return self.log.flush()

    def prepare_ahead(self) -> None:
        """Take disk space and memory for what is written next. Blocks; runs beside the writer."""
        self.log.prepare_ahead()
        self.log.bring_in_ahead()

    def plan_checkpoint(self) -> CheckpointPlan:
        """What the next checkpoint covers; taken by the writer, then synced and saved by `save`."""
        self.index_pending()
        return self._plan(self._queues)

    def _plan(self, queues: dict[tuple[str, int], ConsumeQueue]) -> CheckpointPlan:
        index_file, next_entry = self.index.mark
        ends: dict[str, dict[int, int]] = {}
        starts: dict[str, dict[int, int]] = {}
        for (topic, queue_id), queue in queues.items():
            ends.setdefault(topic, {})[queue_id] = queue.next_offset
            if queue.kept_from:
                starts.setdefault(topic, {})[queue_id] = queue.kept_from
        delivered = {level: ranges.ranges() for level, ranges in self.delivered.items()}
        timers = self.timer_marks()
        if timers is not None:
            delivered[0] = timers[1]
        return CheckpointPlan(
            self.log.end,
            index_file,
            next_entry,
            [file.name for file in self.index.files],
            self.last_store_timestamp_ms,
            delivered,
            ends,
            starts,
            tuple(queues.values()),
            timers[0] if timers else None,
        )

    @property
    def bytes_since_checkpoint(self) -> int:
        """How much of the log would be read after a crash."""
        return self.log.end - self.checkpoint_offset

    def save(self, plan: CheckpointPlan) -> None:
        """Sync what the plan covers, then replace an older checkpoint. Blocks; runs beside the writer."""
        if plan.log_offset < self.checkpoint_offset:
            return  # a removal of a topic took a later plan along
        self.log.flush()
        # Of thousands of new queues each has a folder of its own; those above are synced once.
        entered: set[str] = set()
        for queue in plan.queues:
            is_made = plan.queue_ends[queue.topic][queue.queue_id] > 0  # else its folder may be newer than a sync here
            queue.sync(entered if is_made else None)
        self.index.sync()
        self.sync_timers()
        save_checkpoint(
            self._disk,
            Checkpoint(
                log_offset=plan.log_offset,
                index_file=plan.index_file,
                index_next_entry=plan.index_next_entry,
                index_files=plan.index_files,
                index_file_bytes=self.index.file_bytes,
                store_timestamp_ms=plan.store_timestamp_ms,
                delivered=plan.delivered,
                queue_ends=plan.queue_ends,
                queue_starts=plan.queue_starts,
                timers=plan.timers,
            ),
        )
        self.checkpoint_offset = plan.log_offset
        self.safely_delivered = plan.delivered
        self.saved_timer_marks = plan.timers

    def close(self) -> None:
        """Stop cleanly: everything synced, and no marker that says otherwise."""
        self.save(self.plan_checkpoint())
        self._disk.remove(ABORT_PATH)
        self.release()

    def release(self) -> None:
        """Let go of all files without a word on disk, as a process that dies does."""
        for queue in self._queues.values():
            queue.close()
        self.index.close()
        self.log.close()
        self._disk.unlock()

    @property
    def segment_bytes(self) -> int:
        """How long a segment of the log is."""
        return int(self._config.segment)

    @property
    def max_block_bytes(self) -> int:
        """How long a block, or a record, may be: one segment holds it."""
        return self.segment_bytes - BLANK.size

    def used_ratio(self) -> float:
        """How full the disk is, 0 to 1."""
        return self._disk.used_ratio()

    def statistics(self) -> dict[str, int]:
        """Sizes and positions, for operators."""
        return {
            "log_start": self.log.start,
            "log_end": self.log.end,
            "log_flushed": self.log.flushed,
            "queues": len(self._queues),
            "max_queues": self._max_queues,
            "mapped_queue_files": len(self.pool),
            "max_mapped_queue_files": self.pool.max_mapped,
            "unindexed": len(self._unindexed) + sum(len(keys.hashes) for keys in self._hashed),
        }
