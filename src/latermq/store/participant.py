"""What takes part in a checkpoint: whatever is derived from the log, or goes on from where it was, says so here."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from latermq.store.checkpoint import Checkpoint
from latermq.store.commit_log import CommitLog
from latermq.store.replayed_batch import ReplayedBatch


class Part(NamedTuple):
    """What a participant gives to a checkpoint."""

    fields: Mapping[str, Any]  # its state at the log's end, by the names of its fields
    sync: Callable[[], None]  # makes that true on disk. Blocks; runs beside the writer


class Loss(Protocol):
    """Something that a checkpoint speaks of and the files do not hold: it is built again from the log."""

    names: tuple[str, ...]  # what is lost, for operators
    # What the checkpoint says of it until that is done, as fields of `Unfinished`. Where there are none, it leaves out
    # the participant's own fields, and a start that dies on the way finds nothing to go on from.
    unfinished: Mapping[str, Any]

    def clear(self) -> None:
        """Remove what is left of it."""

    def rebuild(self, batch: ReplayedBatch) -> None:
        """Take in records from before the checkpoint, in order."""

    def close(self) -> None:
        """All of them were taken in."""
        return


class CheckpointParticipant(Protocol):
    """One part of the state that a checkpoint describes. Registered with the store when that is opened.

    At a start: `restore`, then `replay` with all of the log behind the checkpoint, then `settle`. Where there is no
    checkpoint, nothing is restored and all of the log is replayed. Later, each time: `plan`, the sync of its part, and
    `note_saved`. Those who inherit from this need to define only what they do otherwise.
    """

    fields: tuple[str, ...]  # the fields of the checkpoint that are its own

    def adopt(self, log: CommitLog) -> str:
        """Open what RocketMQ left, where it alone has worked on the store and stopped cleanly. Nothing is replayed.

        Returns what was lost and is built again, for operators; else nothing.
        """
        return ""

    def restore(self, checkpoint: Checkpoint | None, log: CommitLog) -> Loss | None:
        """Go on from what a checkpoint says, if there is one, and tell what of it is lost."""
        return None

    def replay(self, batch: ReplayedBatch) -> None:
        """Take in records from behind the checkpoint, in order."""
        return

    def settle(self, log: CommitLog) -> None:
        """All records were taken in, and the log ends where it ends."""
        return

    def plan(self) -> Part:
        """Its part of the next checkpoint; called by the thread that appends, and takes no I/O."""
        ...

    def note_saved(self, checkpoint: Checkpoint) -> None:
        """This checkpoint is on disk: no death takes back what it says.

        Called by whichever thread saved it, beside the one that appends; and at a start that resumes from it.
        """
        return
