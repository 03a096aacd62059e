"""The ingest mark: which driver may ingest, and how much of the timer topic is in the timeline. A durable file."""

import threading

import msgspec

from latermq.errors import CorruptStore, IllegalOperation, InvalidParameter
from latermq.handover.checked_file import decode_checked, encode_checked
from latermq.store.files.disk import Disk

PATH = "latermq.ingest"
VERSION = 1


class _State(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the file."""

    epoch: int = 0
    offset: int = 0
    repair_from: int | None = msgspec.field(name="mending_from", default=None)
    version: int = VERSION


class IngestMark:
    """Changed by the serving thread. `save` blocks and may run off the event loop; replies are sent after it.

    New requests see accepted values that are not saved yet, so no epoch is issued twice. Retention sees only saved
    values.
    """

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._state = self._saved = _load(disk)
        self._saving = threading.Lock()
        self.refused = 0  # requests from drivers without the pipeline's secret

    @property
    def epoch(self) -> int:
        """The epoch of the driver that may ingest; 0 before the first driver."""
        return self._state.epoch

    @property
    def offset(self) -> int:
        """Entries of the timer topic below it are in the timeline, and a crash does not lose this value.

        A decrease applies at once: entries that are needed again must not be removed before it is saved.
        """
        return min(self._saved.offset, self._state.offset)

    def begin(self, table_end: int | None = None, *, min_entry: int = 0, flushed_end: int | None = None) -> int:
        """Return the next driver's epoch, to be sent after `save`. Earlier drivers are rejected from now on.

        `table_end` is the first entry that is not in the driver's table. A table that lost its last commits in a power
        failure is filled again from the log: the offset goes back to the table's end. This requires that the log, which
        begins at `min_entry`, contains all missing entries. If table and log do not match, no epoch is issued.
        """
        state = self._state
        if table_end is not None:
            _check_table_end(table_end, state.offset, min_entry, flushed_end)
            state = msgspec.structs.replace(state, offset=min(state.offset, table_end))
        self._state = msgspec.structs.replace(state, epoch=state.epoch + 1)
        return self._state.epoch

    def check(self, epoch: int) -> None:
        """Reject every driver but the newest."""
        newest = self._state.epoch
        if epoch < newest:
            raise IllegalOperation(
                f"epoch {epoch} is over: a newer driver has epoch {newest}",
                hint="Another driver is active: stop this one, or restart it to take over",
            )
        if epoch > newest:
            raise IllegalOperation(
                f"epoch {epoch} was never issued by this broker, the newest is {newest}",
                hint="Restart the driver; if this store was restored from a backup, its timeline may be ahead of it",
            )

    def commit(self, offset: int, epoch: int, flushed_end: int) -> int:
        """Advance the offset and return the new one, to be sent after `save`.

        A lower offset is accepted and changes nothing, because it is still true.
        """
        self.check(epoch)
        if not 0 <= offset <= flushed_end:
            raise InvalidParameter(
                f"entry {offset} cannot be ingested, the timer topic is flushed up to {flushed_end}",
                hint="If this store was restored from a backup, its timeline is ahead of it",
            )
        if offset > self._state.offset:
            self._state = msgspec.structs.replace(self._state, offset=offset)
        return self._state.offset

    @property
    def repair_from(self) -> int | None:
        """The first entry that a restored store lacks, from `begin_repair` to `end_repair`; otherwise None."""
        return self._state.repair_from

    def begin_repair(self, entry: int) -> int:
        """Note that a store restored from an old backup lacks the entries from this one on. Blocks.

        Return the first missing entry, which an earlier, interrupted repair may have noted.
        """
        if self._state.repair_from is None:
            self._state = msgspec.structs.replace(self._state, repair_from=entry)
            self.save()
        return self._state.repair_from or 0

    def end_repair(self) -> None:
        """Note that all missing entries are in the log and flushed. Blocks."""
        self._state = msgspec.structs.replace(self._state, repair_from=None)
        self.save()

    def advance_to(self, offset: int, epoch: int) -> None:
        """Advance a restored store to the timeline's end, and to the epoch of the driver that wrote it last."""
        state = self._state
        self._state = msgspec.structs.replace(state, offset=max(state.offset, offset), epoch=max(state.epoch, epoch))

    def save(self) -> None:
        """Write all accepted values to disk. Blocks; may run off the event loop while more are accepted."""
        with self._saving:
            state = self._state
            if state is self._saved:
                return
            self._disk.replace(PATH, encode_checked(state))
            self._saved = state

    def statistics(self) -> dict[str, int]:
        """Return the current values, for operators."""
        return {"ingest_epoch": self.epoch, "ingest_offset": self.offset, "ingest_refused": self.refused}


def _check_table_end(table_end: int, offset: int, min_entry: int, flushed_end: int | None) -> None:
    if table_end < 0:
        raise InvalidParameter(
            f"the timeline cannot end at entry {table_end}", hint="Send the timeline's end; 0 if it is new"
        )
    if flushed_end is not None and table_end > flushed_end:
        raise InvalidParameter(
            f"the timeline ends at entry {table_end}, but the timer topic is flushed up to {flushed_end}",
            hint="If this store was restored from a backup, restart its broker while the timeline is reachable",
        )
    if table_end < offset and table_end < min_entry:
        raise InvalidParameter(
            f"the timeline ends at entry {table_end} and the log begins at {min_entry}: "
            "the ingested entries between them are in neither",
            hint="Restore a newer backup of the timeline",
        )


def _load(disk: Disk) -> _State:
    data = disk.read(PATH)
    if data is None:
        return _State()
    hint = f"Stop the pipeline and remove {PATH}: ingestion then resumes at the timeline's end"
    state = decode_checked(data, _State, PATH, hint)
    if state.version != VERSION:
        raise CorruptStore(f"{PATH} has version {state.version}, not {VERSION}")
    return state
