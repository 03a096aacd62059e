"""Records that a start reads from the log, with derived data that several checkpoint participants share."""

from functools import cached_property

import numpy as np

from latermq.arrays import Ints
from latermq.message.entry_id import decode_entry_ids
from latermq.message.properties import TOPIC_DELETED, find_property
from latermq.message.record_batch import RecordBatch
from latermq.store.dispatch import EntryCode, IndexKeys, index_keys, is_queued


class ReplayedBatch:
    """Consecutive records of the log. Derived data is computed once, on first use."""

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
        """The code in the queue entry of each record."""
        records = self.records
        stored_ms = records.store_timestamps_ms.tolist()
        return np.array(list(map(self._entry_code, self.topics, records.properties, stored_ms)), np.int64)

    def code_of(self, row: int) -> int:
        """Return the code of one record."""
        records = self.records
        return self._entry_code(self.topics[row], records.properties[row], int(records.store_timestamps_ms[row]))

    @cached_property
    def replaced(self) -> tuple[Ints, Ints]:
        """The level and the entry that each record replaces. The level is negative if it replaces none."""
        return decode_entry_ids(self.records.prepared_transaction_offsets)

    @cached_property
    def deleted(self) -> dict[str, int]:
        """The deleted topics, and for each the row of its last deletion record."""
        unqueued = np.flatnonzero(~is_queued(self.records.sysflags)).tolist()
        properties = self.records.properties
        return {self.topics[row]: row for row in unqueued if find_property(properties[row], TOPIC_DELETED.encode())}

    @property
    def keys(self) -> IndexKeys:
        """The index keys of the records."""
        records = self.records
        return index_keys(self.topics, records.properties, records.offsets, records.store_timestamps_ms)
