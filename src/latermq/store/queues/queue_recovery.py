"""Recovery of the consume queues: opened at the ends in the checkpoint and advanced to the end of the log."""

from collections import defaultdict
from collections.abc import Iterable, Iterator

import numpy as np

from latermq.arrays import Ints
from latermq.message.names import SCHEDULE_TOPIC, TIMER_TOPIC
from latermq.message.timer_code import TIMER, kinds_and_dues, real_queue
from latermq.store.checkpoint import Checkpoint, UnfinishedRebuild
from latermq.store.commit_log import CommitLog
from latermq.store.dispatch import is_queued
from latermq.store.files.disk import Disk
from latermq.store.participant import CheckpointParticipant, Loss, Part
from latermq.store.queues.consume_queue import FOLDER, ConsumeQueue
from latermq.store.queues.queue_table import QueueTable
from latermq.store.replayed_batch import ReplayedBatch
from latermq.store.waiting_state import Delivered

Key = tuple[str, int]


class QueueState(CheckpointParticipant):
    """The checkpoint fields `queue_ends` and `queue_starts`."""

    fields = ("queue_ends", "queue_starts")

    def __init__(self, disk: Disk, queues: QueueTable, delivered: Delivered) -> None:
        """Without a checkpoint, `delivered` gives the minimum length of the queues of waiting messages."""
        self._disk = disk
        self._queues = queues
        self._delivered = delivered
        self._has_checkpoint = False
        self._held: set[Key] = set()  # queues that stay in the table even without an entry

    def adopt(self, log: CommitLog) -> str:
        for queue in self._queues:
            queue.open_below(log.end)
            queue.forget_below(log.start)
        self._queues.bound_deliveries()
        return ""

    def restore(self, checkpoint: Checkpoint | None, log: CommitLog) -> Loss | None:
        self._has_checkpoint = checkpoint is not None
        if checkpoint is None:
            for queue in self._queues:
                queue.restart_at(0)
            return None
        lost = self._open(checkpoint, log.start)
        ends = checkpoint.queue_ends
        # Queues without a file stay in the table because waiting messages will be delivered to them.
        self._hold((topic, queue_id) for topic, own in ends.items() for queue_id, end in own.items() if not end)
        return _LostQueues(self._queues, {key: ends[key[0]][key[1]] for key in sorted(lost)}) if lost else None

    def _open(self, checkpoint: Checkpoint, log_start: int) -> set[Key]:
        """Open every queue at its end in the checkpoint. Return the queues that have lost entries."""
        by_key = self._queues.by_key
        unfinished = checkpoint.unfinished or UnfinishedRebuild()
        lost = {(topic, queue_id) for topic, own in unfinished.queues.items() for queue_id in own}
        for topic, ends in checkpoint.queue_ends.items():
            lost.update((topic, queue_id) for queue_id, end in ends.items() if end and (topic, queue_id) not in by_key)
        for (topic, queue_id), queue in by_key.items():
            end = checkpoint.queue_ends.get(topic, {}).get(queue_id)
            if end is None:
                queue.restart_at(0)  # created after the checkpoint, or its topic was being removed
                continue
            kept_from = checkpoint.queue_starts.get(topic, {}).get(queue_id, 0)
            if not queue.holds(end, kept_from, log_start, checkpoint.log_offset):
                lost.add((topic, queue_id))
            elif (topic, queue_id) not in lost:
                queue.open_at(end)
        return lost

    def _hold(self, keys: Iterable[Key]) -> None:
        """Keep queues in the table because waiting messages will be delivered to them."""
        for topic, queue_id in keys:
            self._held.add((topic, queue_id))
            self._queues.ensure(topic, queue_id)

    def replay(self, batch: ReplayedBatch) -> None:
        for topic in batch.deleted:
            for queue in self._queues.detach(topic):
                queue.restart_at(0)
        self._held = {key for key in self._held if key[0] not in batch.deleted}
        if self._has_checkpoint:  # it covers all earlier waiting messages, and which of them were delivered
            self._hold(_awaited(batch))
        for key, rows in _rows_by_queue(batch).items():
            _enqueue(self._queues.ensure(*key), batch, rows, batch.codes[rows])

    def settle(self, log: CommitLog) -> None:
        if not self._has_checkpoint:
            self._resume_after_delivered()
        by_key = self._queues.by_key
        for key in [key for key, queue in by_key.items() if not queue.next_offset and key not in self._held]:
            by_key.pop(key).close()  # its entries belonged to a deleted topic
        for queue in self._queues:
            for path in queue.forget_below(log.start):
                self._disk.remove(path)
        self._queues.bound_deliveries()

    def _resume_after_delivered(self) -> None:
        """Continue queues of waiting messages after their delivered entries if all their records have left the log."""
        for level, entries in self._delivered.items():
            queue = self._queues.ensure(SCHEDULE_TOPIC, level - 1) if level else self._queues.ensure(TIMER_TOPIC, 0)
            if queue.next_offset < entries.end:
                queue.restart_at(entries.end)

    def plan(self) -> Part:
        ends: dict[str, dict[int, int]] = {}
        starts: dict[str, dict[int, int]] = {}
        for (topic, queue_id), queue in self._queues.by_key.items():
            ends.setdefault(topic, {})[queue_id] = queue.next_offset
            if queue.kept_from:
                starts.setdefault(topic, {})[queue_id] = queue.kept_from
        queues = tuple(self._queues)

        def sync() -> None:
            # Each of thousands of new queues has its own folder. Sync the parent folders only once.
            synced_folders: set[str] = set()
            for queue in queues:
                # Without entries, its folder may be created after this sync.
                has_entries = ends[queue.topic][queue.queue_id] > 0
                queue.sync(synced_folders if has_entries else None)

        return Part({"queue_ends": ends, "queue_starts": starts}, sync)


class _LostQueues(Loss):
    def __init__(self, queues: QueueTable, ends: dict[Key, int]) -> None:
        self._queues = queues
        self._ends = ends
        self.names = tuple(f"{FOLDER}/{topic}/{queue_id}" for topic, queue_id in ends)
        named: defaultdict[str, list[int]] = defaultdict(list)
        for topic, queue_id in ends:
            named[topic].append(queue_id)
        self.unfinished = {"queues": dict(named)}

    def clear(self) -> None:
        for key in self._ends:
            self._queues.ensure(*key).restart_at(0)

    def rebuild(self, batch: ReplayedBatch) -> None:
        for topic, queue_id in self._ends:
            if topic in batch.deleted:
                self._queues.ensure(topic, queue_id).restart_at(0)
        for key, rows in _rows_by_queue(batch).items():
            if key in self._ends:
                codes = np.array([batch.code_of(row) for row in rows.tolist()], np.int64)
                _enqueue(self._queues.ensure(*key), batch, rows, codes)

    def close(self) -> None:
        for key, end in self._ends.items():
            queue = self._queues.ensure(*key)
            if queue.next_offset != end:  # its records have left the log
                queue.restart_at(end)


def _enqueue(queue: ConsumeQueue, batch: ReplayedBatch, rows: Ints, codes: Ints) -> None:
    records = batch.records
    queue_offsets = records.queue_offsets[rows]
    # An offset that is not the next one means that the topic was deleted and recreated, or that the queue's older
    # entries are gone. In both cases the log is right.
    breaks = np.flatnonzero(np.diff(queue_offsets, prepend=queue.next_offset - 1) != 1)
    for run in np.split(np.arange(len(rows)), breaks):
        if len(run) == 0:
            continue
        if queue_offsets[run[0]] != queue.next_offset:
            queue.restart_at(int(queue_offsets[run[0]]))
        own = rows[run]
        queue.make_room(len(own))
        queue.extend(records.offsets[own], records.sizes[own], codes[run])


def _awaited(batch: ReplayedBatch) -> Iterator[Key]:
    """Yield the target queues of messages that began to wait, except those of topics deleted later.

    A renewed message began to wait earlier, and its topic may have been deleted.
    """
    levels, _ = batch.replaced
    kinds, _ = kinds_and_dues(batch.codes)
    for row in np.flatnonzero(levels < 0).tolist():
        if batch.topics[row] == SCHEDULE_TOPIC or (batch.topics[row] == TIMER_TOPIC and kinds[row] == TIMER):
            queue = real_queue(batch.records.properties[row])
            if queue is not None and row > batch.deleted.get(queue[0], -1):
                yield queue


def _rows_by_queue(batch: ReplayedBatch) -> dict[Key, Ints]:
    """Return the rows that get a queue entry, grouped by queue. Rows of a topic that was deleted later get none."""
    rows: defaultdict[Key, list[int]] = defaultdict(list)
    topics, deleted = batch.topics, batch.deleted
    queue_ids = batch.records.queue_ids.tolist()
    for row in np.flatnonzero(is_queued(batch.records.sysflags)).tolist():
        rows[topics[row], queue_ids[row]].append(row)
    for topic, queue_id in [queue for queue in rows if queue[0] in deleted]:
        own = rows[topic, queue_id] = [row for row in rows[topic, queue_id] if row > deleted[topic]]
        if not own:
            del rows[topic, queue_id]
    return {queue: np.array(own, np.int64) for queue, own in rows.items()}
