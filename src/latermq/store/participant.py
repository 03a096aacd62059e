"""Checkpoint participants: the interface of everything that is derived from the log or resumes from a checkpoint."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from latermq.store.checkpoint import Checkpoint
from latermq.store.commit_log import CommitLog
from latermq.store.replayed_batch import ReplayedBatch


class Part(NamedTuple):
    """A participant's part of a checkpoint."""

    fields: Mapping[str, Any]  # its state at the log's end, by field name
    sync: Callable[[], None]  # makes that state durable. Blocks; may run concurrently with the writer


class Loss(Protocol):
    """Data that a checkpoint covers but the files do not hold. It is rebuilt from the log."""

    names: tuple[str, ...]  # the lost data, for operators
    # The entry in the checkpoint until the rebuild is complete, as fields of `UnfinishedRebuild`. If it is empty, the
    # checkpoint omits the participant's own fields, so that a start after a crash midway has nothing to resume from.
    unfinished: Mapping[str, Any]

    def clear(self) -> None:
        """Remove what remains of the data."""

    def rebuild(self, batch: ReplayedBatch) -> None:
        """Process records from before the checkpoint, in order."""

    def close(self) -> None:
        """Finish the rebuild after all records were processed."""
        return


class CheckpointParticipant(Protocol):
    """One part of the state in a checkpoint. It is registered with the store when the store is opened.

    A start calls `restore`, then `replay` with all of the log after the checkpoint, then `settle`. Without a
    checkpoint, nothing is restored and the whole log is replayed. Each later checkpoint calls `plan`, the sync of the
    part, and `note_saved`. Subclasses define only the methods in which they differ.
    """

    fields: tuple[str, ...]  # its own fields in the checkpoint

    def adopt(self, log: CommitLog) -> str:
        """Open RocketMQ's data if only RocketMQ has used the store and stopped cleanly. Nothing is replayed.

        Returns what was lost and rebuilt, for operators, or an empty string.
        """
        return ""

    def restore(self, checkpoint: Checkpoint | None, log: CommitLog) -> Loss | None:
        """Resume from the checkpoint, if there is one, and return what is lost."""
        return None

    def replay(self, batch: ReplayedBatch) -> None:
        """Process records from after the checkpoint, in order."""
        return

    def settle(self, log: CommitLog) -> None:
        """Finish the start: all records were processed, and the log's end is known."""
        return

    def plan(self) -> Part:
        """Return the part for the next checkpoint. The appending thread calls this; it must not do I/O."""
        ...

    def note_saved(self, checkpoint: Checkpoint) -> None:
        """Note that this checkpoint is on disk: no crash can undo its content.

        The thread that saved it calls this, concurrently with the appending thread. A start that resumes from the
        checkpoint calls it too.
        """
        return
