"""Recovery: find the log's true end after a stop or a crash, and bring queues and index to it."""

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass

import msgspec
import numpy as np

from latermq.errors import CorruptStore
from latermq.message.entry_id import decode_entry_id
from latermq.message.names import TIMER_DEAD_LETTER_TOPIC, TIMER_TOPIC
from latermq.message.record import (
    Layout,
    record_prepared_transaction_offset,
    record_queue_id,
    record_queue_offset,
    record_store_timestamp_ms,
)
from latermq.message.timer_code import TIMER, real_topic, timer_kind
from latermq.store.checkpoint import Checkpoint, TimerMarks, load_checkpoint
from latermq.store.commit_log import CommitLog
from latermq.store.consume_queue import ConsumeQueue
from latermq.store.disk import Disk, MappedFile
from latermq.store.dispatch import index_keys, is_queued
from latermq.store.key_index import KeyIndex
from latermq.store.ranges import RangeSet

Delivered = dict[int, RangeSet]
Queues = dict[tuple[str, int], ConsumeQueue]
INDEX_BATCH = 10_000


@dataclass(frozen=True)
class Recovery:
    """What opening the store found and did."""

    crashed: bool
    scanned_from: int
    log_end: int
    records: int
    last_store_timestamp_ms: int
    had_checkpoint: bool
    timers: TimerMarks | None  # as the checkpoint has them
    timers_scheduled: Counter[str]  # for each topic, how many timers the read part of the log schedules,
    timers_delivered: Counter[str]  # and how many it delivers


def recover(
    disk: Disk,
    log: CommitLog,
    queues: Queues,
    index: KeyIndex,
    make_queue: Callable[[str, int], ConsumeQueue],
    tags_code_of: Callable[[str, bytes, int], int],
    delivered: Delivered,
    *,
    crashed: bool,
    foreign: bool,
) -> Recovery:
    """Open log, queues and index at the same place.

    The checkpoint names a log offset below which everything derived was synced. From there the log is read: the first
    record that is not whole ends it, and what comes before is dispatched again. After a clean stop nothing is left to
    read. Without a checkpoint the whole log is read, unless RocketMQ alone has worked on the store and stopped cleanly.
    """
    checkpoint = load_checkpoint(disk)
    if checkpoint is None and foreign and not crashed:
        return _open_foreign(log, queues)
    if checkpoint is not None:
        if checkpoint.log_offset > log.files_end:
            raise CorruptStore(
                f"the log ends at {log.files_end}, its checkpoint says {checkpoint.log_offset}: a segment is missing",
                hint="Restore the missing files of commitlog/ from a copy",
            )
        for level, ranges in checkpoint.delivered.items():
            delivered[level] = RangeSet(ranges)
    if checkpoint is not None and _open_queues(queues, checkpoint.queue_ends):
        start = max(log.start, checkpoint.log_offset)
        index.restore((checkpoint.index_file, checkpoint.index_next_entry), start)
    else:
        # No checkpoint, or queues that are shorter than it says: everything derived is built again.
        start = log.start
        index.clear()
        for queue in queues.values():
            queue.restart_at(0)
    replay = _Replay(queues, index, make_queue, tags_code_of, delivered)
    if checkpoint is not None and start >= checkpoint.log_offset:
        replay.counted_from = 0  # its counts know all timers before
    records = 0
    for offset, parts, file in log.scan(start):
        replay.dispatch(offset, parts, file, log.segment_position(offset))
        records += 1
    replay.finish()
    end = log.scan_end if log.has_files else start
    log.open_at(end, flushed=start)
    for queue in queues.values():
        queue.forget_below(log.start)
    last_ms = replay.last_store_timestamp_ms or _timestamp(checkpoint)
    return Recovery(
        crashed,
        start,
        end,
        records,
        last_ms,
        had_checkpoint=checkpoint is not None,
        timers=_timer_marks(checkpoint, start),
        timers_scheduled=replay.timers_scheduled,
        timers_delivered=replay.timers_delivered,
    )


def _open_queues(queues: Queues, ends: dict[str, dict[int, int]]) -> bool:
    """Open every queue where the checkpoint says it ends; False where one of them is not all there."""
    whole = all((topic, queue_id) in queues for topic, own in ends.items() for queue_id, end in own.items() if end)
    for (topic, queue_id), queue in queues.items():
        end = ends.get(topic, {}).get(queue_id)
        if end is None:
            queue.restart_at(0)  # made after the checkpoint, or of a topic that was being removed
        else:
            whole = queue.open_at(end) and whole
    return whole


def _timer_marks(checkpoint: Checkpoint | None, start: int) -> TimerMarks | None:
    """The checkpoint's; where the log was read from further back, its counts would count that part twice."""
    timers = checkpoint.timers if checkpoint else None
    if timers is not None and checkpoint is not None and start < checkpoint.log_offset:
        return msgspec.structs.replace(timers, pending={})
    return timers


def _timestamp(checkpoint: Checkpoint | None) -> int:
    return checkpoint.store_timestamp_ms if checkpoint else 0


def _open_foreign(log: CommitLog, queues: Queues) -> Recovery:
    """Open a store that RocketMQ stopped cleanly: its queues and index are whole, only the log's end is looked for."""
    start = log.last_used_segment() if log.has_files else log.start
    records = 0
    last_ms = 0
    for offset, _, file in log.scan(start):
        last_ms = record_store_timestamp_ms(file.map, log.segment_position(offset))
        records += 1
    end = log.scan_end if log.has_files else start
    log.open_at(end, flushed=start)
    for queue in queues.values():
        queue.open_below(end)
        queue.forget_below(log.start)
    return Recovery(
        False,
        start,
        end,
        records,
        last_ms,
        had_checkpoint=False,
        timers=None,
        timers_scheduled=Counter(),
        timers_delivered=Counter(),
    )


class _Replay:
    """Dispatches records of the log again, in order."""

    def __init__(
        self,
        queues: Queues,
        index: KeyIndex,
        make_queue: Callable[[str, int], ConsumeQueue],
        tags_code_of: Callable[[str, bytes, int], int],
        delivered: Delivered,
    ) -> None:
        self._queues = queues
        self._index = index
        self._make_queue = make_queue
        self._tags_code_of = tags_code_of
        self._delivered = delivered
        # Timers go in any order: adding them one by one to the ranges would take a second for 50,000.
        self._new_delivered: defaultdict[int, list[int]] = defaultdict(list)
        self.timers_scheduled: Counter[str] = Counter()
        self.timers_delivered: Counter[str] = Counter()
        # The first entry of the timer topic that is counted. What replaces an older one, whose record is gone, must not
        # count as its end, but as the beginning where it is a roll.
        self.counted_from = 1 << 62
        self._unindexed: list[tuple[str, bytes, int, int]] = []
        self.last_store_timestamp_ms = 0

    def dispatch(self, offset: int, parts: Layout, file: MappedFile, at: int) -> None:
        data = file.map
        topic = data[at + parts.topic_at : at + parts.topic_at + parts.topic_bytes].decode()
        properties = data[at + parts.properties_at : at + parts.size]
        self.last_store_timestamp_ms = record_store_timestamp_ms(data, at)
        entry_id = decode_entry_id(record_prepared_transaction_offset(data, at, parts))
        if entry_id is not None:
            level, entry = entry_id
            self._new_delivered[level].append(entry)
            if level == 0:
                self._count_replaced(topic, properties, is_counted=entry >= self.counted_from)
        elif topic == TIMER_TOPIC and timer_kind(properties) == TIMER:
            self.timers_scheduled[real_topic(properties)] += 1
        if topic == TIMER_TOPIC:
            self.counted_from = min(self.counted_from, record_queue_offset(data, at))
        if is_queued(parts.sysflag):
            self._enqueue(topic, record_queue_id(data, at), record_queue_offset(data, at), offset, parts, properties)
        self._unindexed.append((topic, properties, offset, self.last_store_timestamp_ms))
        if len(self._unindexed) >= INDEX_BATCH:
            self.finish()

    def _count_replaced(self, topic: str, properties: bytes, *, is_counted: bool) -> None:
        if topic == TIMER_TOPIC:
            self.timers_scheduled[real_topic(properties)] += not is_counted
        elif is_counted:
            self.timers_delivered[real_topic(properties) if topic == TIMER_DEAD_LETTER_TOPIC else topic] += 1

    def _enqueue(
        self, topic: str, queue_id: int, queue_offset: int, offset: int, parts: Layout, properties: bytes
    ) -> None:
        queue = self._queues.get((topic, queue_id)) or self._make_queue(topic, queue_id)
        # An offset that is not the next one means that the topic was deleted and made again, or that the queue's older
        # entries are gone; either way the log is right.
        if queue_offset != queue.next_offset:
            queue.restart_at(queue_offset)
        queue.make_room()
        queue.append(offset, parts.size, self._tags_code_of(topic, properties, self.last_store_timestamp_ms))

    def finish(self) -> None:
        """Put the keys collected so far into the index."""
        if self._unindexed:
            self._index.put(index_keys(self._unindexed))
            self._unindexed.clear()
        for level, entries in self._new_delivered.items():
            self._delivered.setdefault(level, RangeSet()).add_all(np.array(entries, np.int64))
        self._new_delivered.clear()
