"""Records that a start reads from the log, with what several participants of a checkpoint want to know of them."""

from functools import cached_property

import numpy as np

from latermq.arrays import Ints
from latermq.message.entry_id import decode_entry_ids
from latermq.message.properties import TOPIC_DELETED, find_property
from latermq.message.record_batch import RecordBatch
from latermq.store.dispatch import EntryCode, IndexKeys, index_keys, is_queued


class ReplayedBatch:
    """Consecutive records of the log. What is derived from them is worked out once, when somebody asks."""

    def __init__(self, records: RecordBatch, entry_code: EntryCode) -> None:
        self.records = records
        self._entry_code = entry_code

    @cached_property
    def topics(self) -> list[str]:
        """The topic of each record."""
        names = {name: name.decode() for name in set(self.records.topics)}
        return [names[name] for name in self.records.topics]

    @cached_property
    def codes(self) -> Ints:
        """What the queue entry of each record holds."""
        records = self.records
        stored_ms = records.store_timestamps_ms.tolist()
        return np.array(list(map(self._entry_code, self.topics, records.properties, stored_ms)), np.int64)

    def code_of(self, row: int) -> int:
        """The same for one of them."""
        records = self.records
        return self._entry_code(self.topics[row], records.properties[row], int(records.store_timestamps_ms[row]))

    @cached_property
    def replaced(self) -> tuple[Ints, Ints]:
        """The level and the entry that each record replaces; the level is below 0 where it replaces none."""
        return decode_entry_ids(self.records.prepared_transaction_offsets)

    @cached_property
    def deleted(self) -> dict[str, int]:
        """The topics that were deleted, and the rows of the records that say so; the last one of each topic."""
        unqueued = np.flatnonzero(~is_queued(self.records.sysflags)).tolist()
        properties = self.records.properties
        return {self.topics[row]: row for row in unqueued if find_property(properties[row], TOPIC_DELETED.encode())}

    @property
    def keys(self) -> IndexKeys:
        """The keys under which the records are found."""
        records = self.records
        return index_keys(self.topics, records.properties, records.offsets, records.store_timestamps_ms)
