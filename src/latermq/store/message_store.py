"""The message store: one log, and the queues and the key index derived from it, opened, saved and closed together."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock
from types import MappingProxyType

from latermq.clock import Clock
from latermq.config import StoreConfig
from latermq.errors import CorruptStore, StoreError
from latermq.message.names import is_file_name
from latermq.store.checkpoint import Checkpoint, TimerMarks, load_checkpoint, save_checkpoint
from latermq.store.commit_log import CommitLog
from latermq.store.consume_queue import FOLDER, ConsumeQueue
from latermq.store.dispatch import WaitingCodes, entry_code_of
from latermq.store.files.disk import Disk
from latermq.store.key_index import KeyIndex
from latermq.store.log_reader import LogReader
from latermq.store.log_writer import LogWriter
from latermq.store.pending_keys import PendingKeys
from latermq.store.queue_table import QueueTable
from latermq.store.recovery import Delivered, Recovery, recover

ABORT_PATH = "abort"
STORE_ID_PATH = "latermq.storeid"


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
    """Opened by the constructor, which recovers it. One thread writes and reads; `flush` and `save` may run beside."""

    def __init__(
        self,
        disk: Disk,
        config: StoreConfig,
        clock: Clock,
        *,
        store_host: bytes,
        new_store_id: str,
        waiting_codes: WaitingCodes = MappingProxyType({}),
    ) -> None:
        self._disk = disk
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
        self.pending_keys = PendingKeys(self.index)
        self.queues = QueueTable(disk, config, checkpoint.queue_ends if checkpoint else None)
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
        entry_code = entry_code_of(waiting_codes)
        self.recovery: Recovery = recover(
            disk,
            self.log,
            self.queues.by_key,
            self.index,
            self.queues.ensure,
            entry_code,
            self.delivered,
            crashed=crashed,
            foreign=foreign,
        )
        self.queues.bound_deliveries()
        if (resumed := self.recovery.resumed) is not None:
            self.checkpoint_offset = resumed.log_offset
            self.safely_delivered = resumed.delivered
            self.saved_timer_marks = resumed.timers
        self.reader = LogReader(self.log, self.queues, self.index, self.pending_keys, entry_code)
        self.writer = LogWriter(
            self.reader,
            self.pending_keys,
            self.delivered,
            clock,
            waiting_codes,
            store_host=store_host,
            segment_bytes=config.segment,
            last_store_timestamp_ms=self.recovery.last_store_timestamp_ms,
        )

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

    def remove_topic(self, topic: str) -> Callable[[], None]:
        """Forget a topic's queues; its records stay in the log until it is their time.

        So that they do not come back when queues are built again from the log, the log itself says that they are gone,
        in a record behind them. Raises StoreError where there is no space for it; nothing has changed then.

        What is returned removes them from disk. It blocks and may run beside the writer, one after the other with
        `save`; until it has run, nothing may be appended to the topic.
        """
        going: list[ConsumeQueue] = []
        if any(queue.topic == topic for queue in self.queues):
            self.pending_keys.put()
            self.writer.append_deletion(topic)
            going = self.queues.take_out(topic)
            plan = self.plan_checkpoint()
            with self._planning:
                self._removals_plan = plan

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
        self.pending_keys.put()
        index_file, next_entry = self.index.mark
        ends: dict[str, dict[int, int]] = {}
        starts: dict[str, dict[int, int]] = {}
        for (topic, queue_id), queue in self.queues.by_key.items():
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
            self.writer.last_store_timestamp_ms,
            delivered,
            ends,
            starts,
            tuple(self.queues),
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
        self.queues.close()
        self.index.close()
        self.log.close()
        self._disk.unlock()

    def used_ratio(self) -> float:
        """How full the disk is, 0 to 1."""
        return self._disk.used_ratio()

    def statistics(self) -> dict[str, int]:
        """Sizes and positions, for operators."""
        return {
            "log_start": self.log.start,
            "log_end": self.log.end,
            "log_flushed": self.log.flushed,
            "queues": len(self.queues),
            "max_queues": self.queues.max_queues,
            "mapped_queue_files": len(self.queues.pool),
            "max_mapped_queue_files": self.queues.pool.max_mapped,
            "unindexed": len(self.pending_keys),
        }
