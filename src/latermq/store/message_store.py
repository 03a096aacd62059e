"""The message store: the log, and the queues and key index derived from it, opened, saved and closed together."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock
from types import MappingProxyType

from latermq.clock import Clock
from latermq.config import StoreConfig
from latermq.errors import CorruptStore, StoreError
from latermq.message.names import is_file_name
from latermq.store.checkpoint import KNOWN_FIELDS, Checkpoint, load_checkpoint, save_checkpoint
from latermq.store.commit_log import CommitLog
from latermq.store.dispatch import WaitingCodes, entry_code_of
from latermq.store.files.disk import Disk
from latermq.store.index.index_recovery import IndexState
from latermq.store.index.key_index import KeyIndex
from latermq.store.index.pending_keys import PendingKeys
from latermq.store.log_reader import LogReader
from latermq.store.log_writer import LogWriter
from latermq.store.participant import CheckpointParticipant, Part
from latermq.store.queues.consume_queue import FOLDER, ConsumeQueue
from latermq.store.queues.queue_recovery import QueueState
from latermq.store.queues.queue_table import QueueTable
from latermq.store.recovery import Recovery, recover
from latermq.store.waiting_state import WaitingState

ABORT_PATH = "abort"
STORE_ID_PATH = "latermq.storeid"


@dataclass(frozen=True)
class CheckpointPlan:
    """The content of a checkpoint, valid once everything it covers is synced."""

    log_offset: int
    store_timestamp_ms: int
    parts: tuple[Part, ...]

    def checkpoint(self) -> Checkpoint:
        """Return the checkpoint to save."""
        fields = {name: value for part in self.parts for name, value in part.fields.items()}
        more = {name: fields.pop(name) for name in [name for name in fields if name not in KNOWN_FIELDS]}
        return Checkpoint(log_offset=self.log_offset, store_timestamp_ms=self.store_timestamp_ms, more=more, **fields)


class MessageStore:
    """The store. The constructor opens and recovers it.

    One thread writes and reads. `flush` and `save` may run concurrently in other threads.
    """

    def __init__(
        self,
        disk: Disk,
        config: StoreConfig,
        clock: Clock,
        *,
        store_host: bytes,
        new_store_id: str,
        on_low_space: Callable[[], None] = lambda: None,
        waiting_codes: WaitingCodes = MappingProxyType({}),
        participants: Sequence[CheckpointParticipant] = (),
    ) -> None:
        """`participants` join checkpoints and recovery after the store's own parts, in this order.

        `on_low_space` is called when half of the log's reserved space is used. It must not block.
        """
        self._disk = disk
        disk.lock()
        foreign = disk.read(STORE_ID_PATH) is None
        self.store_id = self._load_store_id(new_store_id)
        checkpoint = load_checkpoint(disk)
        self.log = CommitLog(
            disk,
            segment_bytes=config.segment,
            reserve_step_bytes=config.reserve_step,
            resident_bytes=config.resident,
            promised_end=checkpoint.log_offset if checkpoint else None,
            on_low_space=on_low_space,
        )
        self.index = KeyIndex(disk, slots=config.index_slots, max_entries=config.index_entries)
        self.pending_keys = PendingKeys(self.index)
        self.queues = QueueTable(disk, config, checkpoint.queue_ends if checkpoint else None)
        self.checkpoint_offset = 0
        self._plan_lock = Lock()
        self._removals_plan: CheckpointPlan | None = None
        crashed = disk.read(ABORT_PATH) is not None
        disk.replace(ABORT_PATH, b"")
        self.waiting = WaitingState()
        # The index comes first: a start that rejects its files because of their size has then changed nothing.
        self._participants: tuple[CheckpointParticipant, ...] = (
            IndexState(self.index),
            QueueState(disk, self.queues, self.waiting.delivered),
            self.waiting,
            *participants,
        )
        _check_fields(self._participants)
        entry_code = entry_code_of(waiting_codes)
        self.recovery: Recovery = recover(
            disk, self.log, checkpoint, self._participants, entry_code, crashed=crashed, foreign=foreign
        )
        if self.recovery.resumed is not None:
            self._note_saved(self.recovery.resumed)
        self.reader = LogReader(self.log, self.queues, self.index, self.pending_keys, entry_code)
        self.writer = LogWriter(
            self.reader,
            self.pending_keys,
            self.waiting.delivered,
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
            if not is_file_name(store_id):  # the id is also a folder name in the pipeline
                raise CorruptStore(
                    f"{STORE_ID_PATH} holds {store_id[:40]!r}, which is not a store id",
                    hint="Restore the original id: the timeline's windows and claims are stored under it",
                )
            return store_id
        self._disk.replace(STORE_ID_PATH, new_store_id.encode() + b"\n")
        return new_store_id

    def remove_topic(self, topic: str) -> Callable[[], None]:
        """Forget a topic's queues. Its records stay in the log until retention removes them.

        The log gets a record that marks the topic as deleted, so that the queues do not reappear when they are rebuilt
        from the log. Raises StoreError if there is no space for this record; then nothing has changed.

        The returned function removes the queues from disk. It blocks and may run concurrently with the writer, but not
        with `save`. Until it has run, nothing may be appended to the topic.
        """
        detached: list[ConsumeQueue] = []
        if any(queue.topic == topic for queue in self.queues):
            self.pending_keys.put()
            self.writer.append_deletion(topic)
            detached = self.queues.detach(topic)
            plan = self.plan_checkpoint()
            with self._plan_lock:
                self._removals_plan = plan

        def remove() -> None:
            # Save the checkpoint first: after a crash at this point the next start removes every queue that it does not
            # name.
            if detached:
                self._save_removals()
            for queue in detached:
                queue.close()
            self._disk.remove(f"{FOLDER}/{topic}")

        return remove

    def _save_removals(self) -> None:
        """Save a checkpoint that includes every removal so far, unless another call has already done so.

        The newest of the pending plans covers all of them. With many queues each checkpoint takes megabytes.
        """
        with self._plan_lock:
            plan, self._removals_plan = self._removals_plan, None
        if plan is None:
            return
        try:
            self.save(plan)
        except BaseException:
            with self._plan_lock:
                self._removals_plan = self._removals_plan or plan
            raise

    # Syncing

    def flush(self) -> int:
        """Sync the log and return F. Blocks; may run concurrently with the writer."""
        # If no space can be reserved ahead, the writer gets the error when it needs the space. Sync the written data
        # anyway.
        with suppress(StoreError):
            self.log.prepare_ahead()
        flushed = self.log.flush()
        self.log.forget_pages_behind()
        return flushed

    def prepare_ahead(self) -> None:
        """Reserve disk space and memory for the next writes. Blocks; may run concurrently with the writer."""
        self.log.prepare_ahead()
        self.log.prefetch_ahead()

    def plan_checkpoint(self) -> CheckpointPlan:
        """Plan the next checkpoint. The writer's thread calls this; `save` then syncs and saves the plan."""
        self.pending_keys.put()
        parts = tuple(participant.plan() for participant in self._participants)
        return CheckpointPlan(self.log.end, self.writer.last_store_timestamp_ms, parts)

    @property
    def bytes_since_checkpoint(self) -> int:
        """How much of the log recovery would read after a crash."""
        return self.log.end - self.checkpoint_offset

    def save(self, plan: CheckpointPlan) -> None:
        """Sync what the plan covers, then replace the checkpoint. Blocks; may run concurrently with the writer."""
        if plan.log_offset < self.checkpoint_offset:
            return  # the removal of a topic has already saved a later plan
        flushed = self.log.flush()
        assert plan.log_offset <= flushed, f"nothing runs ahead of F (invariant 2): {plan.log_offset} > {flushed}"
        for part in plan.parts:
            part.sync()
        checkpoint = plan.checkpoint()
        save_checkpoint(self._disk, checkpoint)
        self._note_saved(checkpoint)

    def _note_saved(self, checkpoint: Checkpoint) -> None:
        self.checkpoint_offset = checkpoint.log_offset
        for participant in self._participants:
            participant.note_saved(checkpoint)

    def close(self) -> None:
        """Stop cleanly: sync everything and remove the marker of an unclean stop."""
        self.save(self.plan_checkpoint())
        self._disk.remove(ABORT_PATH)
        self.release()

    def release(self) -> None:
        """Close all files without writing anything, as if the process had crashed."""
        self.queues.close()
        self.index.close()
        self.log.close()
        self._disk.unlock()

    def used_ratio(self) -> float:
        """How full the disk is, from 0 to 1."""
        return self._disk.used_ratio()

    def statistics(self) -> dict[str, int]:
        """Sizes and positions for operators."""
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


def _check_fields(participants: Sequence[CheckpointParticipant]) -> None:
    """Check that each field of a checkpoint has exactly one owner."""
    fields = [field for participant in participants for field in participant.fields]
    assert len(fields) == len(set(fields)), f"two participants have the same field: {sorted(fields)}"
