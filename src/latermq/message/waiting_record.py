"""Validation of timer records that were returned from outside the log: complete, and of the expected timer."""

from latermq.message.names import TIMER_TOPIC
from latermq.message.properties import DUE_MS, REAL_TOPIC, UNIQUE_KEY
from latermq.message.record import check_record, decode_record
from latermq.message.record_fields import I64, MIN_RECORD_BYTES, PHYSICAL_OFFSET_AT


def waiting_name(record: bytes, entry: int, due_ms: int) -> tuple[str, str] | None:
    """Topic and unique key of a record; None unless it is complete and belongs to this timer."""
    if len(record) < MIN_RECORD_BYTES:
        return None
    (physical_offset,) = I64.unpack_from(record, PHYSICAL_OFFSET_AT)
    if check_record(record, 0, len(record), physical_offset) is None:
        return None
    message = decode_record(record)
    properties = message.properties
    is_own = message.topic == TIMER_TOPIC and message.queue_offset == entry
    if not is_own or properties.get(DUE_MS) != str(due_ms):
        return None
    return properties.get(REAL_TOPIC, ""), properties.get(UNIQUE_KEY, "")
