"""Decoding and validation of commit log records in RocketMQ's byte layout (docs/formats/commitlog.md)."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from latermq.errors import CorruptStore
from latermq.message.ids import offset_message_id, unpack_host
from latermq.message.properties import decode_properties, find_property, well_formed
from latermq.message.record_fields import (
    BODY_CRC_AT,
    BODY_LENGTH_AFTER_HOSTS,
    BODY_LENGTH_BEFORE_BODY,
    BORN_HOST_AT,
    BORN_TIMESTAMP_AT,
    I16,
    I64,
    MAGIC,
    MAGIC_LONG_TOPIC,
    MAX_RECONSUME_TIMES,
    MIN_RECORD_BYTES,
    OFFSETS_AND_SYSFLAG,
    PHYSICAL_OFFSET_AT,
    PREPARED_BEFORE_BODY,
    PROPERTIES_LENGTH_BYTES,
    QUEUE_OFFSET_AT,
    RECONSUME_AND_PREPARED,
    RECONSUME_BEFORE_BODY,
    SIZE_AND_MAGIC,
    SIZE_TO_FLAG,
    SYSFLAG_AT,
    U16,
    U32,
    Buffer,
    body_crc32,
    host_bytes,
)


@dataclass(slots=True)
class Message:
    """A message with all fields of its record."""

    topic: str
    body: bytes
    properties: dict[str, str] = field(default_factory=dict)
    flag: int = 0
    queue_id: int = 0
    queue_offset: int = 0
    physical_offset: int = 0
    sysflag: int = 0
    born_timestamp_ms: int = 0
    born_host: tuple[str, int] = ("0.0.0.0", 0)
    store_timestamp_ms: int = 0
    store_host: tuple[str, int] = ("0.0.0.0", 0)
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
    body_crc: int = 0
    size_bytes: int = 0
    message_id: str = ""

    @property
    def failures(self) -> int:
        """How often it has failed if it fails now. Senders may begin with any number that a record can have."""
        return min(max(0, self.reconsume_times) + 1, MAX_RECONSUME_TIMES)


@dataclass(slots=True)
class Layout:
    """Positions of the parts of one record, relative to its start. No data is copied."""

    size: int
    sysflag: int
    store_timestamp_at: int
    body_at: int
    body_bytes: int
    topic_at: int
    topic_bytes: int
    properties_at: int
    properties_bytes: int


def layout(buffer: Buffer, at: int, limit: int) -> Layout | None:
    """The layout of the record at `at`, or None if there is no complete record before `limit`."""
    if at + MIN_RECORD_BYTES > limit:
        return None
    size, magic = SIZE_AND_MAGIC.unpack_from(buffer, at)
    if magic not in (MAGIC, MAGIC_LONG_TOPIC) or size < MIN_RECORD_BYTES or at + size > limit:
        return None
    (sysflag,) = U32.unpack_from(buffer, at + SYSFLAG_AT)
    born, store = host_bytes(sysflag)
    store_timestamp_at = BORN_HOST_AT + born
    body_length_at = store_timestamp_at + 8 + store + BODY_LENGTH_AFTER_HOSTS
    length_bytes = 1 if magic == MAGIC else 2
    if body_length_at + BODY_LENGTH_BEFORE_BODY + length_bytes + PROPERTIES_LENGTH_BYTES > size:
        return None
    (body_bytes,) = U32.unpack_from(buffer, at + body_length_at)
    body_at = body_length_at + BODY_LENGTH_BEFORE_BODY
    topic_length_at = body_at + body_bytes
    topic_at = topic_length_at + length_bytes
    if topic_at + PROPERTIES_LENGTH_BYTES > size:
        return None
    topic_bytes = (
        buffer[at + topic_length_at] if length_bytes == 1 else U16.unpack_from(buffer, at + topic_length_at)[0]
    )
    properties_at = topic_at + topic_bytes + PROPERTIES_LENGTH_BYTES
    if properties_at > size:
        return None
    (properties_bytes,) = I16.unpack_from(buffer, at + properties_at - PROPERTIES_LENGTH_BYTES)
    if properties_bytes < 0 or properties_at + properties_bytes != size:
        return None
    return Layout(
        size, sysflag, store_timestamp_at, body_at, body_bytes, topic_at, topic_bytes, properties_at, properties_bytes
    )


def check_record(buffer: Buffer, at: int, limit: int, physical_offset: int) -> Layout | None:
    """The layout of the record at `at`, or None unless it is complete, undamaged and belongs at `physical_offset`.

    The CRC covers only the body. The rest is checked for plausibility: the record must contain its own offset, and a
    topic and properties that are well-formed texts and end where the record ends.
    """
    parts = layout(buffer, at, limit)
    if parts is None or I64.unpack_from(buffer, at + PHYSICAL_OFFSET_AT)[0] != physical_offset:
        return None
    body = buffer[at + parts.body_at : at + parts.body_at + parts.body_bytes]
    if body_crc32(body) != U32.unpack_from(buffer, at + BODY_CRC_AT)[0]:
        return None
    end = at + parts.size
    topic_at = at + parts.topic_at
    if not parts.topic_bytes or not well_formed(bytes(buffer[topic_at : topic_at + parts.topic_bytes])):
        return None
    if not well_formed(bytes(buffer[end - parts.properties_bytes : end])):
        return None
    return parts


def record_store_timestamp_ms(buffer: Buffer, at: int) -> int:
    """The store time of the record at `at`."""
    (sysflag,) = U32.unpack_from(buffer, at + SYSFLAG_AT)
    timestamp_ms: int = I64.unpack_from(buffer, at + BORN_HOST_AT + host_bytes(sysflag)[0])[0]
    return timestamp_ms


def record_prepared_transaction_offset(buffer: Buffer, at: int, parts: Layout) -> int:
    """The prepared-transaction field of the record at `at`, which holds the entry id of a delivery."""
    value: int = I64.unpack_from(buffer, at + parts.body_at - PREPARED_BEFORE_BODY)[0]
    return value


def record_properties(record: bytes) -> bytes:
    """The encoded properties of one complete record."""
    parts = layout(record, 0, len(record))
    return record[parts.properties_at :] if parts else b""


def record_property(record: bytes, name: bytes) -> bytes | None:
    """One property of one complete record."""
    return find_property(record_properties(record), name)


def decode_record(buffer: bytes, at: int = 0) -> Message:
    """Decode the record at `at`. The caller must check the CRC."""
    parts = layout(buffer, at, len(buffer))
    if parts is None:
        raise CorruptStore(f"no complete record at byte {at} of {len(buffer)}")
    size, _, crc, queue_id, flag = SIZE_TO_FLAG.unpack_from(buffer, at)
    queue_offset, physical_offset, sysflag = OFFSETS_AND_SYSFLAG.unpack_from(buffer, at + QUEUE_OFFSET_AT)
    store_host_at = at + parts.store_timestamp_at + 8
    reconsume_at = at + parts.body_at - RECONSUME_BEFORE_BODY
    reconsume_times, prepared = RECONSUME_AND_PREPARED.unpack_from(buffer, reconsume_at)
    store_host = buffer[store_host_at:reconsume_at]
    return Message(
        topic=buffer[at + parts.topic_at : at + parts.topic_at + parts.topic_bytes].decode(),
        body=buffer[at + parts.body_at : at + parts.body_at + parts.body_bytes],
        properties=decode_properties(buffer[at + parts.properties_at : at + size].decode()),
        flag=flag,
        queue_id=queue_id,
        queue_offset=queue_offset,
        physical_offset=physical_offset,
        sysflag=sysflag,
        born_timestamp_ms=I64.unpack_from(buffer, at + BORN_TIMESTAMP_AT)[0],
        born_host=unpack_host(buffer[at + BORN_HOST_AT : at + parts.store_timestamp_at]),
        store_timestamp_ms=I64.unpack_from(buffer, at + parts.store_timestamp_at)[0],
        store_host=unpack_host(store_host),
        reconsume_times=reconsume_times,
        prepared_transaction_offset=prepared,
        body_crc=crc,
        size_bytes=size,
        message_id=offset_message_id(store_host, physical_offset),
    )


def decode_records(buffer: bytes) -> Iterator[Message]:
    """Decode concatenated records, as in a pull response."""
    at = 0
    while at < len(buffer):
        message = decode_record(buffer, at)
        yield message
        at += message.size_bytes
