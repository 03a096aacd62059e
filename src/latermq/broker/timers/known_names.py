"""Which of many names are known already: those that wait, and those delivered or cancelled within retention."""

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
# Records that are read for so many names: one is enough for a name that is known, and none has the hash of another.
# Only where plain messages have them as message keys there are more, and nobody else is served meanwhile.
READS_A_NAME = 4
READS_BESIDES = 2_000


class KnownNames:
    """Looks names up in the key index, all at once; a record is read only where a hash is there.

    A name is known as soon as one record of it is: whether its timer waits, was cancelled or was delivered, it is not
    to be scheduled again. So there is no history to be told, which would take 0.2 ms a name.
    """

    def __init__(self, reader: LogReader, far_names: FarNames, wake_from_ms: Callable[[], int]) -> None:
        """`far_names` are those that have left the log; `wake_from_ms` is T."""
        self._reader = reader
        self._far_names = far_names
        self._wake_from_ms = wake_from_ms

    def known(self, topics: Sequence[str], topic_of: Indices, keys: Sequence[bytes], hashed: HashedKeys) -> Bools:
        """For each of these keys whether it is known under its topic."""
        known = np.zeros(len(keys), bool)
        names = [topic.encode() for topic in topics]
        limit = left = READS_A_NAME * len(keys) + READS_BESIDES
        for prefixes, prefix_of in self._places(topics, topic_of):
            rows, offsets = self._reader.find_hashes(hashed.under(prefixes, prefix_of))
            for row, offset in zip(rows.tolist(), offsets.tolist(), strict=True):
                if not known[row]:
                    left -= 1
                    if not left:
                        raise too_many_steps(limit)
                    known[row] = self._is_of(offset, names[topic_of[row]], keys[row])
        self._look_far(topics, topic_of, keys, known)
        return known

    def _look_far(
        self,
        topics: Sequence[str],
        topic_of: Indices,
        keys: Sequence[bytes],
        known: Bools,
    ) -> None:
        """Add the names that only the names of far timers tell of."""
        rows = np.flatnonzero(~known)
        names = [(topics[topic_of[row]], keys[row]) for row in rows.tolist()]
        known[rows] = self._far_names.known(names, self._wake_from_ms())

    def _places(self, topics: Sequence[str], topic_of: Indices) -> list[tuple[list[str], Indices]]:
        """Under what a name's records are indexed: as a timer, as delivered, as cancelled, as buried."""
        same = np.zeros_like(topic_of)
        places = [
            ([f"{TIMER_TOPIC}#"], same),
            ([f"{topic}#" for topic in topics], topic_of),
            ([f"{TIMER_TOPIC}#{topic}{SEPARATOR}" for topic in topics], topic_of),
        ]
        if self._reader.queues.find(TIMER_DEAD_LETTER_TOPIC, 0) is not None:
            places.append(([f"{TIMER_DEAD_LETTER_TOPIC}#"], same))
        return places

    def _is_of(self, offset: int, topic: bytes, unique_key: bytes) -> bool:
        """Whether the record at this log offset tells of a timer of this name."""
        log = self._reader.log
        record = log.read(offset, int.from_bytes(log.read(offset, 4), "big"))
        parts = layout(record, 0, len(record))
        if parts is None:
            return False
        own_topic = record[parts.topic_at : parts.topic_at + parts.topic_bytes]
        properties = record[parts.properties_at :]
        if own_topic == _TIMER_TOPIC and timer_kind(properties) == CANCEL:
            # Others send cancels that may have come before their timer; ours are written where something was taken.
            is_ours = find_property(properties, _TAGS) == _RECALL_TAG
            return is_ours and find_property(properties, _DELETE_KEY) == topic + SEPARATOR.encode() + unique_key
        if find_property(properties, _UNIQUE_KEY) != unique_key:
            return False
        if own_topic != topic and find_property(properties, _REAL_TOPIC) != topic:
            return False
        replaced = decode_entry_id(record_prepared_transaction_offset(record, 0, parts))
        return own_topic == _TIMER_TOPIC or (replaced is not None and replaced[0] == 0)
