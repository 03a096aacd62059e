"""Half messages in the log: finds the open ones at the start, and ends them."""

from collections.abc import Sequence
from itertools import islice

import msgspec
import numpy as np

from latermq.arrays import Ints
from latermq.errors import CorruptStore
from latermq.group.transactions.open_halves import Half, OpenHalves, half_of
from latermq.message.entry_id import FLAG
from latermq.message.names import HALF_TOPIC, OP_HALF_TOPIC
from latermq.message.properties import (
    FIRST_HALF,
    HALF_END,
    TAGS,
    TRANSACTION_CHECKS,
    UNIQUE_KEY,
    encode_properties,
    find_property,
)
from latermq.message.record import decode_record, record_properties, record_store_timestamp_ms
from latermq.model.transaction import COMMITTED, ROLLED_BACK
from latermq.store.checkpoint import PATH, Checkpoint
from latermq.store.commit_log import CommitLog
from latermq.store.log_writer import Appended, Draft
from latermq.store.message_store import MessageStore
from latermq.store.participant import CheckpointParticipant, Part
from latermq.store.queues.consume_queue import ENTRY, ConsumeQueue
from latermq.store.ranges import RangeSet
from latermq.store.replayed_batch import ReplayedBatch

FIELD = "transactions"
_OP_TAG = "d"  # Apache's tag for halves that have ended
_READ_AT_ONCE = 1_024
_MAX_HITS = 100  # of a search in the key index, which may return other records with the same hash


class Ends(msgspec.Struct, frozen=True):
    """The checkpoint field: everything that cannot be read from the half topic."""

    ended: list[tuple[int, int]]  # ranges [start, end) of queue offsets of the half topic
    checks: dict[int, int]  # queue offset → number of checks, of open halves


class TransactionState(CheckpointParticipant):
    """Which halves have ended. A record names the half that it ends in its prepared-transaction field."""

    fields = (FIELD,)

    def __init__(self, halves: OpenHalves) -> None:
        self.halves = halves
        self.ended = RangeSet()
        self.checks: dict[int, int] = {}  # from the checkpoint
        self.is_restored = False  # otherwise only the log, or RocketMQ's own files, can tell which halves have ended
        self._replayed: list[Ints] = []
        self.first_op: int | None = None  # queue offset of the first op record after the checkpoint

    def restore(self, checkpoint: Checkpoint | None, log: CommitLog) -> None:
        own = checkpoint.more.get(FIELD) if checkpoint is not None else None
        if own is None:
            return
        try:
            ends = msgspec.json.decode(own, type=Ends)
        except msgspec.MsgspecError as error:
            raise CorruptStore(f"field {FIELD} of {PATH} does not parse: {error}") from None
        self.is_restored = True
        self.ended = RangeSet(ends.ended)
        self.checks = ends.checks

    def replay(self, batch: ReplayedBatch) -> None:
        references = batch.records.prepared_transaction_offsets
        named = references[(references != 0) & (references & FLAG == 0) | (references == -1)]
        if len(named):
            self._replayed.append(np.where(named == -1, 0, named))
        if self.first_op is None and OP_HALF_TOPIC in batch.topics:
            self.first_op = int(batch.records.queue_offsets[batch.topics.index(OP_HALF_TOPIC)])

    def replayed_ends(self) -> Ints:
        """Return the physical offsets that replayed records name, sorted, and forget them."""
        replayed, self._replayed = self._replayed, []
        return np.unique(np.concatenate([np.empty(0, np.int64), *replayed]))

    def plan(self) -> Part:
        return Part({FIELD: Ends(self.ended.ranges(), dict(self.halves.checks))}, lambda: None)


class HalfTopic:
    """Queue 0 of Apache's half topic, and the op topic for rollbacks."""

    def __init__(
        self, store: MessageStore, state: TransactionState, *, born_host: bytes, now_ms: int, apache_offset: int = 0
    ) -> None:
        """Find the open halves. Checks that were missed while the broker was down are made now.

        `apache_offset` is the consumer offset of RocketMQ's own group in the half topic. It counts in a store whose
        last broker was RocketMQ's. So do the bodies of op records, which RocketMQ's broker writes without naming a
        half in the prepared-transaction field.
        """
        self._store = store
        self._state = state
        self._halves = state.halves
        self._born_host = born_host
        if not state.is_restored:
            state.ended.add(0, apache_offset)
            state.first_op = 0
        if state.first_op is not None:
            self._read_ops(state.first_op)
        queue = store.queues.find(HALF_TOPIC, 0)
        if queue is not None:
            self._load(queue, now_ms)

    def _read_ops(self, first: int) -> None:
        queue = self._store.queues.find(OP_HALF_TOPIC, 0)
        offset = max(queue.min_offset, first) if queue is not None else 0
        while queue is not None and (entries := queue.entries(offset, _READ_AT_ONCE)):
            for at, size, _ in ENTRY.iter_unpack(entries):
                parts = decode_record(self._store.log.read(at, size)).body.split(b",")
                ended = np.array([int(part) for part in parts if _is_number(part)], np.int64)
                self._state.ended.add_all(ended)
            offset += len(entries) // ENTRY.size

    def _load(self, queue: ConsumeQueue, now_ms: int) -> None:
        state, named = self._state, self._state.replayed_ends()
        # What has left the log has ended, or has been given up.
        state.ended.add(0, queue.min_offset)
        offset = queue.min_offset
        while entries := queue.entries(offset, _READ_AT_ONCE):
            numbers = np.arange(offset, offset + len(entries) // ENTRY.size)
            array = queue.array(offset, len(numbers))
            physical = array["offset"].astype(np.int64)
            is_new = ~state.ended.covers(numbers)
            is_named = np.isin(physical, named)
            state.ended.add_all(numbers[is_new & is_named])
            for row in np.flatnonzero(is_new & ~is_named).tolist():
                self._add(int(physical[row]), offset + row, int(array["size"][row]), now_ms)
            offset += len(numbers)
        state.checks = {}

    def _add(self, physical_offset: int, queue_offset: int, size: int, now_ms: int) -> None:
        record = self._store.log.read(physical_offset, size)
        stored_ms, properties = record_store_timestamp_ms(record, 0), record_properties(record)
        first = find_property(properties, FIRST_HALF.encode()) or b""
        if _is_number(first) and self._state.ended.covers(np.array([int(first)]))[0]:
            self._state.ended.add(queue_offset, queue_offset + 1)  # RocketMQ's copy of a half that has ended
            return
        half = half_of(physical_offset, queue_offset, size, stored_ms, properties, self._halves.schedule)
        counted = find_property(properties, TRANSACTION_CHECKS.encode()) or b""
        is_copy = _is_number(counted) and queue_offset not in self._state.checks
        checks = int(counted) if is_copy else self._state.checks.get(queue_offset, 0)
        self._halves.add(half, checks, now_ms, is_copy=is_copy)

    def note_stored(self, appended: Appended, stored_ms: int, properties: bytes) -> Half:
        """Add a half that was just stored. The caller has checked that there is room."""
        size = appended.end_offset - appended.physical_offset
        half = half_of(
            appended.physical_offset, appended.queue_offset, size, stored_ms, properties, self._halves.schedule
        )
        self._halves.add(half)
        return half

    def end(
        self,
        drafts: Sequence[Draft],
        committed: Sequence[Half],
        rolled_back: Sequence[Half],
        now_ms: int,
        *,
        outcome: str = COMMITTED,
    ) -> list[Appended]:
        """End halves in one block: after a crash of the process all of them have ended or none.

        `drafts` are the final messages of the committed halves, in the same order, or the messages of halves that are
        given up, if `outcome` says so. The positions of the records are returned: those of the drafts come first.
        Raises StoreError if there is no space; then nothing has ended.
        """
        block = [
            draft._replace(prepared_transaction_offset=half.reference)
            for draft, half in zip(drafts, committed, strict=True)
        ]
        block += [self._op(half, now_ms, ROLLED_BACK, half.reference) for half in rolled_back]
        # For RocketMQ's broker, which does not look for halves in final messages, and for `ending`.
        block += [self._op(half, now_ms, outcome) for half in committed]
        appended = self._store.writer.append_all(block, now_ms)
        for half in (*committed, *rolled_back):
            self._halves.end(half)
            self._state.ended.add(half.queue_offset, half.queue_offset + 1)
        return appended

    def _op(self, half: Half, now_ms: int, outcome: str, reference: int = 0) -> Draft:
        """Return Apache's record for a half that has ended, with the outcome. The key index finds it by the half."""
        body = b"%d," % half.queue_offset
        properties = encode_properties({TAGS: _OP_TAG, UNIQUE_KEY: str(half.queue_offset), HALF_END: outcome}).encode()
        return Draft(OP_HALF_TOPIC, 0, body, properties, now_ms, self._born_host, prepared_transaction_offset=reference)

    def is_half(self, physical_offset: int, queue_offset: int) -> bool:
        """Whether these are the offsets of a half in the log, open or not. Clients may send any numbers."""
        queue = self._store.queues.find(HALF_TOPIC, 0)
        entry = queue.entry(queue_offset) if queue is not None and queue_offset >= 0 else None
        return entry is not None and entry[0] == physical_offset

    def ending(self, queue_offset: int) -> str:
        """Return how a half ended; empty if the log does not say so, because another broker ended the half."""
        key, reader = str(queue_offset), self._store.reader
        for offset in islice(reader.find_by_key(OP_HALF_TOPIC, key, 0, 1 << 62), _MAX_HITS):
            message = reader.read_message(offset)
            if message is not None and message.topic == OP_HALF_TOPIC and message.properties.get(UNIQUE_KEY) == key:
                return message.properties.get(HALF_END, "")
        return ""

    def needed_from(self) -> int:
        """Return the log offset from which records are needed, for retention."""
        first = self._halves.first_offset()
        return self._store.log.end if first is None else first


def _is_number(text: bytes) -> bool:
    return text.isdigit() and len(text) < 19
