"""The ingest mark: which driver may ingest, and how far the timeline holds the timer topic. One small durable file."""

import threading

import msgspec

from latermq.errors import CorruptStore, IllegalOperation, InvalidParameter
from latermq.handover.checked_file import decode_checked, encode_checked
from latermq.store.files.disk import Disk

PATH = "latermq.ingest"
VERSION = 1


class _State(msgspec.Struct, frozen=True, kw_only=True):
    """What the file holds."""

    epoch: int = 0
    offset: int = 0
    mending_from: int | None = None
    version: int = VERSION


class IngestMark:
    """Changed by the thread that serves; `save` blocks and may run beside it. Nothing is told before it is saved.

    What was accepted and not yet saved counts for who comes next, so that no epoch is handed out twice; only what is
    saved counts for what may be removed.
    """

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._state = self._saved = _load(disk)
        self._saving = threading.Lock()
        self.refused = 0  # requests of drivers that do not know the pipeline's secret

    @property
    def epoch(self) -> int:
        """The epoch of the driver that may ingest; 0 before the first."""
        return self._state.epoch

    @property
    def offset(self) -> int:
        """Entries of the timer topic below it are in the timeline, and no death takes back that we know it.

        One that goes back counts at once: what is needed again must not be removed before it is written down.
        """
        return min(self._saved.offset, self._state.offset)

    def begin(self, table_end: int | None = None, *, min_entry: int = 0, flushed_end: int | None = None) -> int:
        """The next driver's epoch, to be told once `save` has run. From now on those before it are refused.

        `table_end` is the first entry that is not in its table. A table that lost its last commits in a power cut is
        filled again from the log: the offset goes back to where it ends, as long as the log, which begins at
        `min_entry`, holds all that it lacks. Where table and log do not fit each other no epoch is given.
        """
        state = self._state
        if table_end is not None:
            _check_fit(table_end, state.offset, min_entry, flushed_end)
            state = msgspec.structs.replace(state, offset=min(state.offset, table_end))
        self._state = msgspec.structs.replace(state, epoch=state.epoch + 1)
        return self._state.epoch

    def check(self, epoch: int) -> None:
        """Refuse a driver that is not the newest."""
        newest = self._state.epoch
        if epoch < newest:
            raise IllegalOperation(
                f"epoch {epoch} is over, the pipeline that began last has epoch {newest}",
                hint="Another driver has taken over: stop this one, or begin again",
            )
        if epoch > newest:
            raise IllegalOperation(
                f"epoch {epoch} was never handed out here, the last one is {newest}",
                hint="Begin again; if this store was restored from a copy, its timeline may be ahead of it",
            )

    def commit(self, offset: int, epoch: int, flushed_end: int) -> int:
        """Move the offset forward, and return where it then is, to be told once `save` has run.

        An offset that was committed before is taken and changes nothing: what it says is still true.
        """
        self.check(epoch)
        if not 0 <= offset <= flushed_end:
            raise InvalidParameter(
                f"entry {offset} cannot be ingested, the timer topic is flushed up to {flushed_end}",
                hint="If this store was restored from a copy, its timeline is ahead of it",
            )
        if offset > self._state.offset:
            self._state = msgspec.structs.replace(self._state, offset=offset)
        return self._state.offset

    @property
    def mending_from(self) -> int | None:
        """Where the entries begin that this store lacked as an old copy, from `begin_mending` to `end_mending`."""
        return self._state.mending_from

    def begin_mending(self, entry: int) -> int:
        """This is an old copy that lacks the entries from this one on. The first one that was ever said so. Blocks."""
        if self._state.mending_from is None:
            self._state = msgspec.structs.replace(self._state, mending_from=entry)
            self.save()
        return self._state.mending_from or 0

    def end_mending(self) -> None:
        """All of it is in the log, and safe there. Blocks."""
        self._state = msgspec.structs.replace(self._state, mending_from=None)
        self.save()

    def go_on_from(self, offset: int, epoch: int) -> None:
        """This is an old copy: take over from the timeline how far it holds entries, and who wrote it last."""
        state = self._state
        self._state = msgspec.structs.replace(state, offset=max(state.offset, offset), epoch=max(state.epoch, epoch))

    def save(self) -> None:
        """Make durable all that was accepted. Blocks; may run beside who accepts more."""
        with self._saving:
            state = self._state
            if state is self._saved:
                return
            self._disk.replace(PATH, encode_checked(state))
            self._saved = state

    def statistics(self) -> dict[str, int]:
        """Where it stands, for operators."""
        return {"ingest_epoch": self.epoch, "ingest_offset": self.offset, "ingest_refused": self.refused}


def _check_fit(table_end: int, offset: int, min_entry: int, flushed_end: int | None) -> None:
    if table_end < 0:
        raise InvalidParameter(
            f"the timeline cannot end at entry {table_end}", hint="Send where it ends; 0 if it is new"
        )
    if flushed_end is not None and table_end > flushed_end:
        raise InvalidParameter(
            f"the timeline holds the entries below {table_end}, the timer topic is flushed up to {flushed_end}",
            hint="If this store was restored from a copy, start its broker again with the timeline in reach",
        )
    if table_end < offset and table_end < min_entry:
        raise InvalidParameter(
            f"the timeline ends at entry {table_end} and the log begins at {min_entry}: the entries between them, "
            f"which were ingested, are in neither",
            hint="Put back a newer copy of the timeline",
        )


def _load(disk: Disk) -> _State:
    data = disk.read(PATH)
    if data is None:
        return _State()
    hint = f"Stop the pipeline and remove {PATH}: it then goes on from what the timeline holds"
    state = decode_checked(data, _State, PATH, hint)
    if state.version != VERSION:
        raise CorruptStore(f"{PATH} has version {state.version}, this broker writes {VERSION}")
    return state
