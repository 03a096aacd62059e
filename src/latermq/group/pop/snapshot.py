"""The snapshot of the in-flight table as a part of the store's checkpoint."""

from collections.abc import Callable

import msgspec

from latermq.group.pop.snapshot_file import PATH, TableImage, copy_table, decode_snapshot, encode_snapshot
from latermq.group.pop.table import InFlightTable
from latermq.store.checkpoint import Checkpoint
from latermq.store.commit_log import CommitLog
from latermq.store.files.disk import Disk
from latermq.store.participant import CheckpointParticipant, Part

FIELD = "pop"
MIN_GROWTH_BYTES = 8 << 20
MAX_PINNED_BYTES = 256 << 20


class PopSnapshot(CheckpointParticipant):
    """Saves the table with a checkpoint when the journal has grown enough, and loads it at the start.

    It is also saved if the first journal record that a start would replay is far from the end of the log: the log must
    be kept from there on, however rarely messages are popped.

    The file contains its own position in the journal, so it is valid whichever checkpoint it meets. It is written when
    the log is flushed up to that position: no crash can take back a record that it covers. The checkpoint has a copy of
    the position, which shows that a file is lost or is an old copy.
    """

    fields = (FIELD,)

    def __init__(
        self,
        disk: Disk,
        table: InFlightTable,
        min_growth_bytes: int = MIN_GROWTH_BYTES,
        max_pinned_bytes: int = MAX_PINNED_BYTES,
    ) -> None:
        self._disk = disk
        self._table = table
        self._min_growth_bytes = min_growth_bytes
        self._max_pinned_bytes = max_pinned_bytes
        self.mark = 0  # the position of the file on disk: the journal is needed from here on
        self.is_saved = False  # whether there is a file
        self.loss = ""  # what is wrong with the file, for operators
        self._position: Callable[[], int | None] = lambda: None
        self._journal_bytes: Callable[[], int] = lambda: 0
        self._pinned_bytes: Callable[[], int] = lambda: 0
        self._saved_bytes = 0  # of the journal, at the last snapshot

    def attach(
        self, position: Callable[[], int | None], journal_bytes: Callable[[], int], pinned_bytes: Callable[[], int]
    ) -> None:
        """Connect the journal, once it is replayed.

        `position` returns the journal's end if the table has exactly its content, otherwise None. `journal_bytes`
        returns how much of the journal was replayed or written, and `pinned_bytes` how much of the log there is from
        the first record after the mark on.
        """
        self._position, self._journal_bytes, self._pinned_bytes = position, journal_bytes, pinned_bytes

    def restore(self, checkpoint: Checkpoint | None, log: CommitLog) -> None:
        promised = _mark_in(checkpoint)
        data = self._disk.read(PATH)
        if data is not None:
            self.is_saved = True
            self.mark = decode_snapshot(data, self._table)
        if self.mark < promised:
            self.loss = f"{PATH} is at {self.mark} of its journal, the checkpoint says {promised}"

    def plan(self) -> Part:
        mark = self._position()
        journal_bytes = self._journal_bytes()
        has_grown = journal_bytes - self._saved_bytes >= self._min_growth_bytes
        if mark is None or not (has_grown or self._pinned_bytes() >= self._max_pinned_bytes):
            return Part({FIELD: self.mark}, lambda: None)
        image = copy_table(self._table, mark)

        def sync() -> None:
            if image.mark > self.mark:  # otherwise a later plan was saved first
                self._replace(image, journal_bytes)

        return Part({FIELD: mark}, sync)

    def save(self, mark: int) -> None:
        """Replace the file in the thread that changes the table. The journal must be flushed up to the mark."""
        self._replace(copy_table(self._table, mark), self._journal_bytes())

    def _replace(self, image: TableImage, journal_bytes: int) -> None:
        self._disk.replace(PATH, encode_snapshot(image))
        self.mark, self._saved_bytes, self.is_saved = image.mark, journal_bytes, True


def _mark_in(checkpoint: Checkpoint | None) -> int:
    own = checkpoint.more.get(FIELD) if checkpoint is not None else None
    if own is None:
        return 0
    return msgspec.json.decode(own, type=int) if isinstance(own, msgspec.Raw) else int(own)
