"""Timer dead letters: records that can never be delivered, rewritten in slices with the reason."""

from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from latermq.arrays import Ints
from latermq.errors import CorruptStore
from latermq.message.entry_id import encode_entry_id
from latermq.message.ids import pack_host
from latermq.message.names import TIMER_DEAD_LETTER_TOPIC
from latermq.message.properties import (
    DEAD_LETTER_REASON,
    MAX_PROPERTIES_BYTES,
    REAL_TOPIC,
    UNIQUE_KEY,
    encode_properties,
)
from latermq.message.record import decode_record, layout
from latermq.message.record_fields import SYSFLAG_ABRIDGED
from latermq.message.stamp import Stamp
from latermq.store.block import Block
from latermq.store.dispatch import hash_keys, queue_tags_code
from latermq.store.log_writer import Draft

DEAD_LETTER_ENTRY = "LMQ_DEAD_ENTRY"
QUEUE = (TIMER_DEAD_LETTER_TOPIC, 0)
BUILT_AT_ONCE = 250  # each record is decoded and encoded again: about 40 µs, so a slice takes 10 ms


class Undeliverable(NamedTuple):
    """Undeliverable records of one level in due order, with their entries, due times and the reason."""

    level: int
    entries: Ints
    dues: Ints
    data: bytes | bytearray | memoryview  # the records end to end
    sizes: Ints
    reason: str
    is_far: bool = False  # whether these were Spark's timers


class DeadLetters:
    """Records waiting to be rewritten. The resulting blocks are delivered like any other."""

    def __init__(self, encode: Callable[[Draft], bytes], stamp: Stamp, *, block_bytes: int, record_bytes: int) -> None:
        """`encode` encodes a record that has no position yet. No record may take more than `record_bytes`."""
        self._encode = encode
        self._stamp = stamp
        self._block_bytes = block_bytes
        self._record_bytes = record_bytes
        self._waiting: deque[Undeliverable] = deque()
        self.size_bytes = 0

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, ones: Undeliverable) -> None:
        """Add records."""
        if len(ones.entries):
            self._waiting.append(ones)
            self.size_bytes += len(ones.data)

    def pop(self) -> tuple[Block, Ints]:
        """Return the next slice as a block for the dead letters, with the due times of its records."""
        ones = self._waiting.popleft()
        self.size_bytes -= len(ones.data)
        ends = np.cumsum(ones.sizes)
        fitting = int(np.searchsorted(ends, self._block_bytes, side="right"))
        count = max(1, min(BUILT_AT_ONCE, fitting, len(ends)))
        block = self._build(ones, count, ends)
        while block.size > self._record_bytes:  # the added properties made the slice too long
            count //= 2
            block = self._build(ones, count, ends)
        if count < len(ends):
            rest = Undeliverable(
                ones.level,
                ones.entries[count:],
                ones.dues[count:],
                memoryview(ones.data)[int(ends[count - 1]) :],
                ones.sizes[count:],
                ones.reason,
                ones.is_far,
            )
            self._waiting.appendleft(rest)
            self.size_bytes += len(rest.data)
        return block, ones.dues[:count]

    def _build(self, ones: Undeliverable, count: int, ends: Ints) -> Block:
        records: list[bytes] = []
        properties_of: list[bytes] = []
        stamps_at: list[int] = []
        rows = zip(ones.entries[:count].tolist(), ends[:count].tolist(), ones.sizes[:count].tolist(), strict=True)
        for entry, end, size in rows:
            added = {DEAD_LETTER_REASON: ones.reason, DEAD_LETTER_ENTRY: f"{ones.level}:{entry}"}
            waiting = bytes(ones.data[end - size : end])
            record, properties = self._rewrite(waiting, added, encode_entry_id(ones.level, entry))
            parts = layout(record, 0, len(record))
            assert parts is not None
            records.append(record)
            properties_of.append(properties)
            stamps_at.append(parts.store_timestamp_at)
        key_hashes, key_rows = hash_keys([TIMER_DEAD_LETTER_TOPIC] * count, properties_of)
        return Block(
            data=bytearray().join(records),
            sizes=np.fromiter(map(len, records), np.int64, count),
            store_timestamp_at=np.array(stamps_at, np.int64),
            tags=np.fromiter(map(queue_tags_code, properties_of), np.int64, count),
            queues=[QUEUE],
            queue_of=np.zeros(count, np.intp),
            key_hashes=key_hashes,
            key_rows=key_rows,
            level=ones.level,
            entries=ones.entries[:count],
            is_far=ones.is_far,
        )

    def _rewrite(self, record: bytes, added: dict[str, str], entry_id: int) -> tuple[bytes, bytes]:
        """Return a record as its dead letter, with its properties.

        The body is truncated if it does not fit a segment.
        """
        draft = _dead_letter(record, added, entry_id, self._stamp)
        letter = self._encode(draft)
        if len(letter) > self._record_bytes:
            draft = _bare_letter(record, added, entry_id)._replace(body=b"")
            if len(self._encode(draft)) > self._record_bytes:
                draft = draft._replace(properties=encode_properties(added).encode())
            room = self._record_bytes - len(self._encode(draft))
            letter = self._encode(draft._replace(body=record[:room]))
        return letter, draft.properties

    def of_level(self, level: int) -> Iterator[Undeliverable]:
        """Return the waiting records of one level."""
        return (ones for ones in self._waiting if ones.level == level)

    def count(self, *, level: int | None = None) -> int:
        """Number of waiting records, of one level or of all."""
        return sum(len(ones.entries) for ones in self._waiting if level is None or ones.level == level)


def _dead_letter(record: bytes, added: dict[str, str], entry_id: int, stamp: Stamp) -> Draft:
    """Return the message of a record, with these properties added.

    If the record cannot be read, or if the added properties do not fit, the record's bytes become the body.
    """
    try:
        message = decode_record(record)
        known = stamp.completed(message.properties) if message.sysflag & SYSFLAG_ABRIDGED else message.properties
        properties = encode_properties(known | added).encode()
    except (CorruptStore, UnicodeDecodeError):
        return _bare_letter(record, added, entry_id)
    if len(properties) > MAX_PROPERTIES_BYTES:
        return _bare_letter(record, added, entry_id)
    return Draft(
        TIMER_DEAD_LETTER_TOPIC,
        0,
        message.body,
        properties,
        message.born_timestamp_ms,
        pack_host(*message.born_host),
        message.flag,
        message.sysflag & ~SYSFLAG_ABRIDGED,
        message.reconsume_times,
        entry_id,
    )


def _bare_letter(record: bytes, added: dict[str, str], entry_id: int) -> Draft:
    """Return the record itself as a body. Its name is kept, so that the directory finds the timer's fate."""
    try:
        known = decode_record(record).properties
    except (CorruptStore, UnicodeDecodeError):
        known = {}
    for name in (REAL_TOPIC, UNIQUE_KEY):
        value = known.get(name, "")
        if value and len(encode_properties(added | {name: value}).encode()) <= MAX_PROPERTIES_BYTES:
            added = added | {name: value}
    properties = encode_properties(added).encode()
    return Draft(TIMER_DEAD_LETTER_TOPIC, 0, record, properties, 0, bytes(8), prepared_transaction_offset=entry_id)
