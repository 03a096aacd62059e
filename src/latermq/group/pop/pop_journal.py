"""The topic of the POP journal: appends the operations of a turn, and replays them at the start."""

from collections.abc import Sequence

from latermq.group.pop.journal import JournalReader
from latermq.group.pop.operations import PopOperations
from latermq.group.pop.snapshot import PopSnapshot
from latermq.group.pop.snapshot_file import PATH
from latermq.group.pop.table import Due, InFlightTable
from latermq.message.names import POP_TOPIC
from latermq.message.record import decode_record
from latermq.store.log_writer import Draft
from latermq.store.message_store import MessageStore
from latermq.store.queues.consume_queue import ENTRY, ConsumeQueue

_READ_AT_ONCE = 1_024
MAX_BODY_BYTES = 1 << 20  # an eighth of a segment if that is less; more operations are in several records


class PopJournal:
    """Queue 0 of the topic. Each record has the operations of one turn of the event loop, or as many as fit."""

    def __init__(
        self, store: MessageStore, operations: PopOperations, snapshot: PopSnapshot, *, born_host: bytes
    ) -> None:
        """Replay the journal from the snapshot's mark to its end. The table is then that of the last record."""
        self._store = store
        self._operations = operations
        self._snapshot = snapshot
        self._born_host = born_host
        # Copies of messages share a block with a body. They take a quarter of a segment, and one message more.
        self._max_body_bytes = min(MAX_BODY_BYTES, store.writer.max_block_bytes // 8)
        self.bytes = 0  # replayed or written since the start
        self.replayed = 0
        self.skipped = 0  # operations that refer to missing records
        self.loss = ""  # what could not be recovered, for operators
        queue = store.queues.find(POP_TOPIC, 0)
        self.next_record = queue.next_offset if queue is not None else 0
        first = queue.min_offset if queue is not None else 0
        if snapshot.mark > self.next_record:
            # The log was restored from an older copy, or its checkpoint is lost and no journal record is left. The
            # snapshot is the newest state that is known; `clamp` below removes what refers to lost messages.
            self.loss = f"{PATH} is at {snapshot.mark} of its journal, which ends at {self.next_record}"
        elif snapshot.mark < first:
            self.loss = snapshot.loss or f"{PATH} is at {snapshot.mark} of its journal, which begins at {first}"
        if queue is not None and snapshot.mark < self.next_record:
            self._replay(queue, max(first, snapshot.mark), operations.table)
        if operations.clamp(self._queue_end):
            self.append()
        snapshot.attach(self._position, lambda: self.bytes, self._pinned_bytes)
        if self.loss:
            # The file must not be combined with records that are written from now on.
            store.flush()
            snapshot.save(self.next_record)

    def _replay(self, queue: ConsumeQueue, offset: int, table: InFlightTable) -> None:
        reader = JournalReader(table, is_partial=bool(self.loss))
        log = self._store.log
        while entries := queue.entries(offset, _READ_AT_ONCE):
            for at, size, _ in ENTRY.iter_unpack(entries):
                reader.apply(decode_record(log.read(at, size)).body)
                self.bytes += size
                self.replayed += 1
            offset += len(entries) // ENTRY.size
        self.skipped = reader.skipped

    def _queue_end(self, topic: str, queue_id: int) -> int:
        queue = self._store.queues.find(topic, queue_id)
        return queue.next_offset if queue is not None else 0

    def _position(self) -> int | None:
        return self.next_record if self._operations.journal.is_empty else None

    def _pinned_bytes(self) -> int:
        queue = self._store.queues.find(POP_TOPIC, 0)
        entry = queue.entry(self._snapshot.mark) if queue is not None else None
        return self._store.log.end - entry[0] if entry is not None else 0

    def append(self, drafts: Sequence[Draft] = (), gone: Sequence[Due] = (), now_ms: int = 0) -> None:
        """Append the operations of this turn. The answers of the turn may be written afterwards.

        `drafts` are copies of messages that are `gone`: after a crash of the process all of it exists or nothing.
        Raises StoreError if there is no space. The operations are then kept for the next turn, whose answers also
        cover them, and nothing is gone.
        """
        writer, journal = self._store.writer, self._operations.journal
        now_ms = now_ms or writer.last_store_timestamp_ms
        body = journal.body(gone)
        if len(body) > self._max_body_bytes:
            self._append_first(now_ms)
            body = journal.body(gone)
        assert body or not drafts, "copies come with the messages that they replace"
        if not body:
            return
        if drafts:
            own = Draft(POP_TOPIC, 0, body, b"", now_ms, self._born_host)
            last: tuple[int, int, int] = writer.append_all([*drafts, own], now_ms)[-1]
        else:
            last = writer.append(POP_TOPIC, 0, body, b"", now_ms, self._born_host, now_ms=now_ms)
        if gone:
            self._operations.note_journalled(gone)
        else:
            journal.clear()
        self._note_written(last)

    def _append_first(self, now_ms: int) -> None:
        """Append all but the last operations, if they do not fit in one record.

        Each record leaves a valid table behind, and no answer is sent before the last one is written.
        """
        journal = self._operations.journal
        while True:
            first = journal.split(self._max_body_bytes)
            if journal.is_empty:
                journal.put_back(first)
                return
            try:
                self._note_written(
                    self._store.writer.append(POP_TOPIC, 0, first.body(), b"", now_ms, self._born_host, now_ms=now_ms)
                )
            except BaseException:
                journal.put_back(first)
                raise

    def _note_written(self, appended: tuple[int, int, int]) -> None:
        physical_offset, queue_offset, end_offset = appended
        self.next_record = queue_offset + 1
        self.bytes += end_offset - physical_offset

    def needed_from(self) -> int:
        """Return the log offset from which records are needed, for retention: the journal and messages in flight."""
        needed = [self._store.log.end]
        floors = self._operations.table.held_floors()
        for (topic, queue_id), offset in [*floors.items(), ((POP_TOPIC, 0), self._snapshot.mark)]:
            queue = self._store.queues.find(topic, queue_id)
            entry = queue.entry(offset) if queue is not None else None
            if entry is not None:
                needed.append(entry[0])
        return min(needed)

    def statistics(self) -> dict[str, int]:
        """Positions, for operators."""
        return {
            "journal_records": self.next_record,
            "journal_bytes": self.bytes,
            "snapshot_mark": self._snapshot.mark,
            "replayed_records": self.replayed,
        }
