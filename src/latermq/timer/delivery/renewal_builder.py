"""Renewals: waiting records written into the timer topic again, as the same timer under a new entry."""

import numpy as np

from latermq.arrays import Ints
from latermq.errors import CorruptStore
from latermq.message.entry_id import encode_entry_id
from latermq.message.ids import pack_host
from latermq.message.names import TIMER_TOPIC
from latermq.message.properties import (
    MAX_PROPERTIES_BYTES,
    MOVE,
    TAKES,
    TIMER_ID,
    TIMER_ROLL_TIMES,
    encode_properties,
)
from latermq.message.record import decode_record, layout
from latermq.message.record_writer import encode_record
from latermq.message.timer_code import timer_code_of
from latermq.store.block import Block
from latermq.store.dispatch import hash_keys
from latermq.timer.delivery.block_builder import Built


def build_renewals(entries: Ints, raw: bytes, sizes: Ints, import_precision_ms: int) -> Built:
    """Build the records that replace these entries of the timer topic. `raw` holds the entries' records end to end.

    Due time, name and timer id do not change. A move becomes a plain timer: it has already cancelled the timer it
    replaces, and must not cancel timers scheduled under its name since then.
    """
    records: list[bytes] = []
    properties_of: list[bytes] = []
    stamps_at: list[int] = []
    rows: list[int] = []
    unusable: list[int] = []
    ends = np.cumsum(sizes)
    for row, (end, size, entry) in enumerate(zip(ends.tolist(), sizes.tolist(), entries.tolist(), strict=True)):
        try:
            message = decode_record(raw[end - size : end])
        except (CorruptStore, UnicodeDecodeError):
            unusable.append(row)
            continue
        properties = message.properties
        properties.pop(MOVE, None)
        properties.pop(TAKES, None)
        properties.setdefault(TIMER_ID, str(entry))
        times = properties.get(TIMER_ROLL_TIMES, "0")
        properties[TIMER_ROLL_TIMES] = str(
            int(times) + 1 if times.isascii() and times.isdigit() and len(times) < 10 else 1
        )
        encoded = encode_properties(properties).encode()
        if len(encoded) > MAX_PROPERTIES_BYTES:
            unusable.append(row)
            continue
        record = encode_record(
            TIMER_TOPIC.encode(),
            message.body,
            encoded,
            queue_id=0,
            queue_offset=0,
            physical_offset=0,
            born_timestamp_ms=message.born_timestamp_ms,
            born_host=pack_host(*message.born_host),
            store_timestamp_ms=0,
            store_host=pack_host(*message.store_host),
            flag=message.flag,
            sysflag=message.sysflag,
            reconsume_times=message.reconsume_times,
            prepared_transaction_offset=encode_entry_id(0, entry),
        )
        parts = layout(record, 0, len(record))
        assert parts is not None
        records.append(record)
        properties_of.append(encoded)
        stamps_at.append(parts.store_timestamp_at)
        rows.append(row)
    if not rows:
        return Built(None, rows, unusable)
    key_hashes, key_rows = hash_keys([TIMER_TOPIC] * len(rows), properties_of)
    block = Block(
        data=bytearray().join(records),
        sizes=np.fromiter(map(len, records), np.int64, len(records)),
        store_timestamp_at=np.array(stamps_at, np.int64),
        tags=np.array([timer_code_of(properties, import_precision_ms) for properties in properties_of], np.int64),
        queues=[(TIMER_TOPIC, 0)],
        queue_of=np.zeros(len(rows), np.intp),
        key_hashes=key_hashes,
        key_rows=key_rows,
        level=0,
        entries=entries[rows],
    )
    return Built(block, rows, unusable)
