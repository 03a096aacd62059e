"""Known names: names of timers that are pending, or were delivered or cancelled within retention."""

from collections.abc import Callable, Sequence

import numpy as np

from latermq.arrays import Bools, Indices
from latermq.message.entry_id import decode_entry_id
from latermq.message.names import TIMER_DEAD_LETTER_TOPIC, TIMER_TOPIC
from latermq.message.properties import REAL_TOPIC, TAGS, TIMER_DELETE_KEY, UNIQUE_KEY, find_property
from latermq.message.record import layout, record_prepared_transaction_offset
from latermq.message.timer_code import CANCEL, timer_kind
from latermq.message.timer_name import SEPARATOR
from latermq.store.dispatch import HashedKeys
from latermq.store.log_reader import LogReader
from latermq.timer.directory import RECALL_TAG
from latermq.timer.far.far_names import FarNames
from latermq.timer.steps import too_many_steps

_REAL_TOPIC, _UNIQUE_KEY = REAL_TOPIC.encode(), UNIQUE_KEY.encode()
_DELETE_KEY, _TAGS, _RECALL_TAG = TIMER_DELETE_KEY.encode(), TAGS.encode(), RECALL_TAG.encode()
_TIMER_TOPIC = TIMER_TOPIC.encode()
# Limits on the records read for one batch. A known name usually needs one read and a new name none. Plain messages with
# these names as message keys cause more reads, and the broker serves no other request meanwhile.
READS_PER_NAME = 4
EXTRA_READS = 2_000


class KnownNames:
    """Looks up many names in the key index together, and reads a record only if its hash matches.

    One record is enough to make a name known. Whether its timer is pending, cancelled or delivered, it must not be
    scheduled again. So no history is needed, which would take 0.2 ms per name.
    """

    def __init__(self, reader: LogReader, far_names: FarNames, wake_from_ms: Callable[[], int]) -> None:
        """`far_names` are names of timers that have left the log; `wake_from_ms` returns T."""
        self._reader = reader
        self._far_names = far_names
        self._wake_from_ms = wake_from_ms

    def known(self, topics: Sequence[str], topic_of: Indices, keys: Sequence[bytes], hashed: HashedKeys) -> Bools:
        """Return for each key whether it is known in its topic."""
        known = np.zeros(len(keys), bool)
        names = [topic.encode() for topic in topics]
        limit = reads_left = READS_PER_NAME * len(keys) + EXTRA_READS
        for prefixes, prefix_of in self._index_prefixes(topics, topic_of):
            rows, offsets = self._reader.find_hashes(hashed.under(prefixes, prefix_of))
            for row, offset in zip(rows.tolist(), offsets.tolist(), strict=True):
                if not known[row]:
                    reads_left -= 1
                    if not reads_left:
                        raise too_many_steps(limit)
                    known[row] = self._has_name(offset, names[topic_of[row]], keys[row])
        self._add_far_names(topics, topic_of, keys, known)
        return known

    def _add_far_names(
        self,
        topics: Sequence[str],
        topic_of: Indices,
        keys: Sequence[bytes],
        known: Bools,
    ) -> None:
        """Mark the names that only `far_names` has."""
        rows = np.flatnonzero(~known)
        names = [(topics[topic_of[row]], keys[row]) for row in rows.tolist()]
        known[rows] = self._far_names.known(names, self._wake_from_ms())

    def _index_prefixes(self, topics: Sequence[str], topic_of: Indices) -> list[tuple[list[str], Indices]]:
        """Return the key index prefixes of a name's records: timers, delivered messages, cancels and dead letters."""
        same = np.zeros_like(topic_of)
        prefixes = [
            ([f"{TIMER_TOPIC}#"], same),
            ([f"{topic}#" for topic in topics], topic_of),
            ([f"{TIMER_TOPIC}#{topic}{SEPARATOR}" for topic in topics], topic_of),
        ]
        if self._reader.queues.find(TIMER_DEAD_LETTER_TOPIC, 0) is not None:
            prefixes.append(([f"{TIMER_DEAD_LETTER_TOPIC}#"], same))
        return prefixes

    def _has_name(self, offset: int, topic: bytes, unique_key: bytes) -> bool:
        """Whether the record at this log offset belongs to a timer of this name."""
        log = self._reader.log
        record = log.read(offset, int.from_bytes(log.read(offset, 4), "big"))
        parts = layout(record, 0, len(record))
        if parts is None:
            return False
        own_topic = record[parts.topic_at : parts.topic_at + parts.topic_bytes]
        properties = record[parts.properties_at :]
        if own_topic == _TIMER_TOPIC and timer_kind(properties) == CANCEL:
            # A cancel sent as a message may precede its timer. The broker's own cancels always ended a pending timer.
            is_recall = find_property(properties, _TAGS) == _RECALL_TAG
            return is_recall and find_property(properties, _DELETE_KEY) == topic + SEPARATOR.encode() + unique_key
        if find_property(properties, _UNIQUE_KEY) != unique_key:
            return False
        if own_topic != topic and find_property(properties, _REAL_TOPIC) != topic:
            return False
        replaced_id = decode_entry_id(record_prepared_transaction_offset(record, 0, parts))
        return own_topic == _TIMER_TOPIC or (replaced_id is not None and replaced_id[0] == 0)
