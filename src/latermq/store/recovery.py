"""Recovery: finds the log's true end after a stop or a crash, and brings all checkpoint participants to it."""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from latermq.errors import CorruptStore
from latermq.store.checkpoint import PATH as CHECKPOINT_PATH
from latermq.store.checkpoint import Checkpoint, UnfinishedRebuild, save_checkpoint
from latermq.store.commit_log import CommitLog
from latermq.store.dispatch import EntryCode
from latermq.store.files.disk import Disk
from latermq.store.participant import CheckpointParticipant, Loss
from latermq.store.replayed_batch import ReplayedBatch


@dataclass(frozen=True)
class Recovery:
    """The result of opening the store."""

    crashed: bool
    scanned_from: int
    log_end: int
    records: int
    last_store_timestamp_ms: int
    had_checkpoint: bool
    resumed: Checkpoint | None  # the checkpoint that recovery started from, still valid after the next crash
    rebuilt: tuple[str, ...]  # lost data that was rebuilt from the log


def recover(
    disk: Disk,
    log: CommitLog,
    checkpoint: Checkpoint | None,
    participants: Sequence[CheckpointParticipant],
    entry_code: EntryCode,
    *,
    crashed: bool,
    foreign: bool,
) -> Recovery:
    """Open the log and all participants at the same position.

    The checkpoint names a log offset below which all derived data was synced. Recovery reads the log from there. The
    first incomplete record ends the log, and the records before it are dispatched again. After a clean stop there is
    nothing to read.

    If data that the checkpoint covers is lost, it is first rebuilt from the log before the checkpoint. It then
    continues at the position in the checkpoint, even if some of its records have left the log.

    Without a checkpoint the whole log is read, unless only RocketMQ has used the store and stopped cleanly.
    """
    if checkpoint is None and foreign and not crashed:
        return _open_foreign(log, participants)
    if checkpoint is not None and checkpoint.log_offset > log.files_end:
        raise CorruptStore(
            f"the log ends at {log.files_end}, but its checkpoint says {checkpoint.log_offset}: a segment is missing",
            hint="Restore the missing files of commitlog/ from a backup",
        )
    start = log.start if checkpoint is None else max(log.start, checkpoint.log_offset)
    last_ms = 0 if checkpoint is None else checkpoint.store_timestamp_ms
    losses = {one: loss for one in participants if (loss := one.restore(checkpoint, log)) is not None}
    if losses:
        assert checkpoint is not None, "without a checkpoint there are no losses"
        _rebuild(disk, log, checkpoint, losses, entry_code)
    records = 0
    for batch in log.scan(start):
        replayed = ReplayedBatch(batch, entry_code)
        for participant in participants:
            participant.replay(replayed)
        last_ms = int(batch.store_timestamps_ms[-1])
        records += len(batch)
    end = log.scan_end if log.has_files else start
    assert end >= start, f"recovery never cuts the log below the checkpoint (invariant 2): {end} < {start}"
    log.open_at(end, flushed=start)
    for participant in participants:
        participant.settle(log)
    is_resumed = checkpoint is not None and start == checkpoint.log_offset and not losses
    return Recovery(
        crashed,
        start,
        end,
        records,
        last_ms,
        had_checkpoint=checkpoint is not None,
        resumed=checkpoint if is_resumed else None,
        rebuilt=tuple(name for loss in losses.values() for name in loss.names),
    )


def _rebuild(
    disk: Disk,
    log: CommitLog,
    checkpoint: Checkpoint,
    losses: dict[CheckpointParticipant, Loss],
    entry_code: EntryCode,
) -> None:
    """Rebuild lost data that the checkpoint covers.

    The checkpoint first records what is being rebuilt, so that a start that crashes midway leaves no partial data that
    looks complete.
    """
    unfinished = UnfinishedRebuild(
        **{name: value for loss in losses.values() for name, value in loss.unfinished.items()}
    )
    unnamed = {field for one, loss in losses.items() if not loss.unfinished for field in one.fields}
    more = {field: value for field, value in checkpoint.more.items() if field not in unnamed}
    save_checkpoint(disk, msgspec.structs.replace(checkpoint, unfinished=unfinished, more=more))
    for loss in losses.values():
        loss.clear()
    until = checkpoint.log_offset
    for batch in log.scan(log.start, until):
        replayed = ReplayedBatch(batch, entry_code)
        for loss in losses.values():
            loss.rebuild(replayed)
    if log.start < until and log.scan_end < until:
        raise CorruptStore(
            f"the log is damaged at {log.scan_end}, and queues or index must be rebuilt from it",
            hint=f"Restore commitlog/ from a backup, or remove {CHECKPOINT_PATH}, which ends the log before the damage",
        )
    for loss in losses.values():
        loss.close()


def _open_foreign(log: CommitLog, participants: Sequence[CheckpointParticipant]) -> Recovery:
    """Open a store that RocketMQ stopped cleanly: its queues are complete, and only the log's end must be found."""
    start = log.last_used_segment() if log.has_files else log.start
    records = 0
    last_ms = 0
    for batch in log.scan(start):
        last_ms = int(batch.store_timestamps_ms[-1])
        records += len(batch)
    end = log.scan_end if log.has_files else start
    log.open_at(end, flushed=start)
    rebuilt = tuple(filter(None, [participant.adopt(log) for participant in participants]))
    return Recovery(False, start, end, records, last_ms, had_checkpoint=False, resumed=None, rebuilt=rebuilt)
