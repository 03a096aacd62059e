"""Recovery: find the log's true end after a stop or a crash, and bring queues and index to it."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
import numpy as np

from latermq.arrays import Bools, Ints
from latermq.errors import CorruptStore
from latermq.message.entry_id import decode_entry_ids
from latermq.message.names import SCHEDULE_TOPIC, TIMER_DEAD_LETTER_TOPIC, TIMER_TOPIC
from latermq.message.properties import TOPIC_DELETED, find_property
from latermq.message.record_batch import RecordBatch
from latermq.message.timer_code import TIMER, kinds_and_dues, real_queue, real_topic
from latermq.store.checkpoint import PATH as CHECKPOINT_PATH
from latermq.store.checkpoint import Checkpoint, TimerMarks, Unfinished, load_checkpoint, save_checkpoint
from latermq.store.commit_log import CommitLog
from latermq.store.consume_queue import FOLDER, ConsumeQueue
from latermq.store.dispatch import index_keys, is_queued
from latermq.store.files.disk import Disk
from latermq.store.index_check import check_size, find_damage, find_foreign_damage
from latermq.store.key_index import KeyIndex
from latermq.store.ranges import RangeSet

Delivered = dict[int, RangeSet]
Queues = dict[tuple[str, int], ConsumeQueue]
_NEVER = 1 << 62


class Lost(NamedTuple):
    """What a checkpoint speaks of and the files do not hold."""

    queues: set[tuple[str, int]]
    key_index: bool


@dataclass(frozen=True)
class Recovery:
    """What opening the store found and did."""

    crashed: bool
    scanned_from: int
    log_end: int
    records: int
    last_store_timestamp_ms: int
    had_checkpoint: bool
    resumed: Checkpoint | None  # the checkpoint that was gone on from, and would be again after the next crash
    rebuilt: tuple[str, ...]  # what was lost and is built again from the log
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
    read. What is lost of that which the checkpoint speaks of is first built again from the log before it, and goes on
    where the checkpoint says, though its records may have left the log. Without a checkpoint the whole log is read,
    unless RocketMQ alone has worked on the store and stopped cleanly.
    """
    checkpoint = load_checkpoint(disk)
    if checkpoint is None and foreign and not crashed:
        return _open_foreign(log, queues, index)
    if checkpoint is not None:
        if checkpoint.log_offset > log.files_end:
            raise CorruptStore(
                f"the log ends at {log.files_end}, its checkpoint says {checkpoint.log_offset}: a segment is missing",
                hint="Restore the missing files of commitlog/ from a copy",
            )
        for level, ranges in checkpoint.delivered.items():
            delivered[level] = RangeSet(ranges)
    replay = _Replay(queues, index, make_queue, tags_code_of, delivered)
    rebuilt: tuple[str, ...] = ()
    if checkpoint is not None:
        start = max(log.start, checkpoint.log_offset)
        damage = _open_index(index, log, checkpoint)
        lost = Lost(_open_queues(queues, checkpoint, log.start), bool(damage))
        replay.hold(_held(checkpoint))
        rebuilt = tuple(f"{FOLDER}/{topic}/{queue_id}" for topic, queue_id in sorted(lost.queues))
        rebuilt += (f"index: {damage}",) if damage else ()
        if rebuilt:
            _rebuild(disk, log, replay, checkpoint, lost)
        replay.counted_from = 0  # its counts know all timers before
        replay.is_behind_checkpoint = True
    else:
        start = log.start
        index.clear()
        for queue in queues.values():
            queue.restart_at(0)
    records = 0
    for batch in log.scan(start):
        replay.dispatch(batch)
        records += len(batch)
    end = log.scan_end if log.has_files else start
    log.open_at(end, flushed=start)
    if checkpoint is None:
        replay.go_on_behind_delivered()
    for key in [key for key, queue in queues.items() if not queue.next_offset and key not in replay.held]:
        queues.pop(key).close()  # what it held was of a topic that is deleted
    for queue in queues.values():
        for path in queue.forget_below(log.start):
            disk.remove(path)
    last_ms = replay.last_store_timestamp_ms or _timestamp(checkpoint)
    return Recovery(
        crashed,
        start,
        end,
        records,
        last_ms,
        had_checkpoint=checkpoint is not None,
        resumed=checkpoint if checkpoint is not None and start == checkpoint.log_offset and not rebuilt else None,
        rebuilt=rebuilt,
        timers=checkpoint.timers if checkpoint else None,
        timers_scheduled=replay.timers_scheduled,
        timers_delivered=replay.timers_delivered,
    )


def _open_queues(queues: Queues, checkpoint: Checkpoint, log_start: int) -> set[tuple[str, int]]:
    """Open every queue where the checkpoint says it ends; those of which that much is not there."""
    unfinished = checkpoint.unfinished or Unfinished()
    lost = {(topic, queue_id) for topic, own in unfinished.queues.items() for queue_id in own}
    for topic, own in checkpoint.queue_ends.items():
        lost.update((topic, queue_id) for queue_id, end in own.items() if end and (topic, queue_id) not in queues)
    for (topic, queue_id), queue in queues.items():
        end = checkpoint.queue_ends.get(topic, {}).get(queue_id)
        if end is None:
            queue.restart_at(0)  # made after the checkpoint, or of a topic that was being removed
            continue
        kept_from = checkpoint.queue_starts.get(topic, {}).get(queue_id, 0)
        if not queue.holds(end, kept_from, log_start, checkpoint.log_offset):
            lost.add((topic, queue_id))
        elif (topic, queue_id) not in lost:
            queue.open_at(end)
    return lost


def _held(checkpoint: Checkpoint) -> list[tuple[str, int]]:
    """The queues that have their place before they have a file: messages wait that are for them."""
    return [
        (topic, queue_id) for topic, own in checkpoint.queue_ends.items() for queue_id, end in own.items() if not end
    ]


def _open_index(index: KeyIndex, log: CommitLog, checkpoint: Checkpoint) -> str:
    """Open the index where the checkpoint says it ends, or say what of it is lost."""
    check_size(index, checkpoint.index_file_bytes)
    mark = (checkpoint.index_file, checkpoint.index_next_entry)
    if checkpoint.unfinished is not None and checkpoint.unfinished.index:
        return "a start that built it again did not come to its end"
    damage = find_damage(index, log, checkpoint.index_files, mark, checkpoint.log_offset)
    if not damage:
        index.restore(mark, max(log.start, checkpoint.log_offset))
    return damage


def _rebuild(disk: Disk, log: CommitLog, replay: "_Replay", checkpoint: Checkpoint, lost: Lost) -> None:
    """Build again what is lost of that which the checkpoint speaks of.

    The checkpoint first says what, so that a start which dies on the way leaves nothing half that seems whole.
    """
    named: defaultdict[str, list[int]] = defaultdict(list)
    for topic, queue_id in sorted(lost.queues):
        named[topic].append(queue_id)
    unfinished = Unfinished(queues=dict(named), index=lost.key_index)
    save_checkpoint(disk, msgspec.structs.replace(checkpoint, unfinished=unfinished))
    replay.clear(lost)
    until = checkpoint.log_offset
    for batch in log.scan(log.start, until):
        replay.rebuild(batch, lost)
    if log.start < until and log.scan_end < until:
        raise CorruptStore(
            f"the log is damaged at {log.scan_end}, and queues or index have to be built again from it",
            hint=f"Restore commitlog/ from a copy; or remove {CHECKPOINT_PATH}: the log then ends before the damage",
        )
    for topic, queue_id in lost.queues:
        queue = replay.queue(topic, queue_id)
        end = checkpoint.queue_ends[topic][queue_id]
        if queue.next_offset != end:  # its records have left the log
            queue.restart_at(end)


def _timestamp(checkpoint: Checkpoint | None) -> int:
    return checkpoint.store_timestamp_ms if checkpoint else 0


def _open_foreign(log: CommitLog, queues: Queues, index: KeyIndex) -> Recovery:
    """Open a store that RocketMQ stopped cleanly: its queues are whole, only the log's end is looked for.

    It can do without its index, and may have been told to. Here timers are found by it.
    """
    check_size(index, 0)
    start = log.last_used_segment() if log.has_files else log.start
    records = 0
    last_ms = 0
    for batch in log.scan(start):
        last_ms = int(batch.store_timestamps_ms[-1])
        records += len(batch)
    end = log.scan_end if log.has_files else start
    log.open_at(end, flushed=start)
    for queue in queues.values():
        queue.open_below(end)
        queue.forget_below(log.start)
    damage = find_foreign_damage(index, log, end)
    if damage:
        index.clear()
        for batch in log.scan(log.start, end):
            topics = [name.decode() for name in batch.topics]
            index.put(index_keys(topics, batch.properties, batch.offsets, batch.store_timestamps_ms))
    return Recovery(
        False,
        start,
        end,
        records,
        last_ms,
        had_checkpoint=False,
        resumed=None,
        rebuilt=(f"index: {damage}",) if damage else (),
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
        self.timers_scheduled: Counter[str] = Counter()
        self.timers_delivered: Counter[str] = Counter()
        # The first entry of the timer topic that is counted. What replaces an older one, whose record is gone, must not
        # count as its end, but as the beginning where it is a roll.
        self.counted_from = _NEVER
        self.last_store_timestamp_ms = 0
        self.is_behind_checkpoint = False
        self.held: set[tuple[str, int]] = set()  # queues that have a place whether or not they have an entry

    def hold(self, queues: Iterable[tuple[str, int]]) -> None:
        """Let queues have their place: messages wait that are for them."""
        for topic, queue_id in queues:
            self.held.add((topic, queue_id))
            self.queue(topic, queue_id)

    def dispatch(self, batch: RecordBatch) -> None:
        names = {name: name.decode() for name in set(batch.topics)}
        topics = [names[name] for name in batch.topics]
        codes = self._codes(topics, batch)
        is_timer_topic = np.array([topic == TIMER_TOPIC for topic in topics])
        levels, entries = decode_entry_ids(batch.prepared_transaction_offsets)
        for level in np.unique(levels[levels >= 0]).tolist():
            self._delivered.setdefault(level, RangeSet()).add_all(entries[levels == level])
        self._count_timers(topics, batch, levels, entries, is_timer_topic, codes)
        deleted = _deletions(topics, batch)
        for key in [key for key in self._queues if key[0] in deleted]:
            self._queues.pop(key).restart_at(0)
        self.held = {key for key in self.held if key[0] not in deleted} if deleted else self.held
        if self.is_behind_checkpoint:  # which knows what waits otherwise, and which of it was delivered
            self.hold(_awaited(topics, batch, levels, codes, deleted))
        for (topic, queue_id), rows in _rows_by_queue(topics, batch, deleted).items():
            self._enqueue(topic, queue_id, batch, rows, codes)
        self.last_store_timestamp_ms = int(batch.store_timestamps_ms[-1])
        self._index.put(index_keys(topics, batch.properties, batch.offsets, batch.store_timestamps_ms))

    def clear(self, lost: Lost) -> None:
        """Remove what is left of that which was lost."""
        for topic, queue_id in lost.queues:
            self.queue(topic, queue_id).restart_at(0)
        if lost.key_index:
            self._index.clear()

    def rebuild(self, batch: RecordBatch, lost: Lost) -> None:
        """Put records that a checkpoint knows of into the queues that were lost, and into the index if that was."""
        topics = [name.decode() for name in batch.topics]
        codes: Ints = np.zeros(len(batch), np.int64)
        deleted = _deletions(topics, batch)
        for topic, queue_id in lost.queues:
            if topic in deleted:
                self.queue(topic, queue_id).restart_at(0)
        for (topic, queue_id), rows in _rows_by_queue(topics, batch, deleted).items():
            if (topic, queue_id) in lost.queues:
                for row in rows.tolist():
                    stored_ms = int(batch.store_timestamps_ms[row])
                    codes[row] = self._tags_code_of(topic, batch.properties[row], stored_ms)
                self._enqueue(topic, queue_id, batch, rows, codes)
        if lost.key_index:
            self._index.put(index_keys(topics, batch.properties, batch.offsets, batch.store_timestamps_ms))

    def go_on_behind_delivered(self) -> None:
        """Let queues of waiting messages that have all left the log go on behind those that the log delivers."""
        for level, entries in self._delivered.items():
            queue = self.queue(SCHEDULE_TOPIC, level - 1) if level else self.queue(TIMER_TOPIC, 0)
            if queue.next_offset < entries.end:
                queue.restart_at(entries.end)

    def queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        """The queue, made where it is missing."""
        return self._queues.get((topic, queue_id)) or self._make_queue(topic, queue_id)

    def _codes(self, topics: list[str], batch: RecordBatch) -> Ints:
        timestamps_ms = batch.store_timestamps_ms.tolist()
        return np.array(list(map(self._tags_code_of, topics, batch.properties, timestamps_ms)), np.int64)

    def _count_timers(
        self,
        topics: list[str],
        batch: RecordBatch,
        levels: Ints,
        entries: Ints,
        is_timer_topic: Bools,
        codes: Ints,
    ) -> None:
        kinds, _ = kinds_and_dues(codes)
        scheduled = is_timer_topic & (levels < 0) & (kinds == TIMER)
        # As of just before each record.
        counted_from = np.minimum.accumulate(
            np.append(self.counted_from, np.where(is_timer_topic, batch.queue_offsets, _NEVER))
        )
        self.counted_from = int(counted_from[-1])
        is_counted = entries >= counted_from[:-1]
        scheduled |= is_timer_topic & (levels == 0) & ~is_counted
        delivered = ~is_timer_topic & (levels == 0) & is_counted
        self.timers_scheduled.update(real_topic(batch.properties[row]) for row in np.flatnonzero(scheduled).tolist())
        self.timers_delivered.update(
            real_topic(batch.properties[row]) if topics[row] == TIMER_DEAD_LETTER_TOPIC else topics[row]
            for row in np.flatnonzero(delivered).tolist()
        )

    def _enqueue(self, topic: str, queue_id: int, batch: RecordBatch, rows: Ints, codes: Ints) -> None:
        queue = self.queue(topic, queue_id)
        queue_offsets = batch.queue_offsets[rows]
        # An offset that is not the next one means that the topic was deleted and made again, or that the queue's older
        # entries are gone; either way the log is right.
        breaks = np.flatnonzero(np.diff(queue_offsets, prepend=queue.next_offset - 1) != 1)
        for run in np.split(np.arange(len(rows)), breaks):
            if len(run) == 0:
                continue
            if queue_offsets[run[0]] != queue.next_offset:
                queue.restart_at(int(queue_offsets[run[0]]))
            own = rows[run]
            queue.make_room(len(own))
            queue.extend(batch.offsets[own], batch.sizes[own], codes[own])


def _deletions(topics: list[str], batch: RecordBatch) -> dict[str, int]:
    """The topics that were deleted, and the rows of the records that say so; the last one of each topic."""
    unqueued = np.flatnonzero(~is_queued(batch.sysflags)).tolist()
    return {topics[row]: row for row in unqueued if find_property(batch.properties[row], TOPIC_DELETED.encode())}


def _awaited(
    topics: list[str], batch: RecordBatch, levels: Ints, codes: Ints, deleted: dict[str, int]
) -> Iterator[tuple[str, int]]:
    """The queues that messages are for which began to wait, but not those of topics that were deleted later.

    What is rolled began before, and its topic may be deleted.
    """
    kinds, _ = kinds_and_dues(codes)
    for row in np.flatnonzero(levels < 0).tolist():
        if topics[row] == SCHEDULE_TOPIC or (topics[row] == TIMER_TOPIC and kinds[row] == TIMER):
            queue = real_queue(batch.properties[row])
            if queue is not None and row > deleted.get(queue[0], -1):
                yield queue


def _rows_by_queue(topics: list[str], batch: RecordBatch, deleted: dict[str, int]) -> dict[tuple[str, int], Ints]:
    """The rows that get a queue entry, by the queue; those of a topic that was deleted later get none."""
    rows: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
    queued = np.flatnonzero(is_queued(batch.sysflags)).tolist()
    queue_ids = batch.queue_ids.tolist()
    for row in queued:
        rows[topics[row], queue_ids[row]].append(row)
    for topic, queue_id in [queue for queue in rows if queue[0] in deleted]:
        own = rows[topic, queue_id] = [row for row in rows[topic, queue_id] if row > deleted[topic]]
        if not own:
            del rows[topic, queue_id]
    return {queue: np.array(own, np.int64) for queue, own in rows.items()}
