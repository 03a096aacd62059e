"""The CommitLog record: RocketMQ's byte layout, encoded, decoded and checked (docs/formats/commitlog.md)."""

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from mmap import mmap

from latermq.errors import CorruptStore, IllegalMessage
from latermq.message.ids import offset_message_id, unpack_host
from latermq.message.properties import MAX_PROPERTIES_BYTES, decode_properties, find_property, well_formed

Buffer = bytes | bytearray | memoryview | mmap

MAGIC = 0xDAA320A7
MAGIC_LONG_TOPIC = 0xDAA320AB  # "V2": the topic's length takes two bytes
BLANK_MAGIC = 0xCBD43194
BLANK = struct.Struct(">II")  # size of the rest of the segment, BLANK_MAGIC

SYSFLAG_COMPRESSED = 0x1
SYSFLAG_TRANSACTION_MASK = 0xC
SYSFLAG_ROLLED_BACK = 0xC  # a record that no queue has
# What a sender may say of its body: compressed, how, and that it has several tags. The rest is the broker's to say.
SYSFLAG_FROM_SENDER = 0x703
SYSFLAG_BORN_V6 = 0x10
SYSFLAG_STORE_V6 = 0x20

# Everything up to the body's length, for IPv4 hosts: the shape of nearly every record.
HEAD = struct.Struct(">IIIIiqqIq8sq8siqI")
# Where the fields lie that are patched or looked at in place; the last four move by 12 for each IPv6 host.
BODY_CRC_AT = 8
QUEUE_ID_AT = 12
FLAG_AT = 16
QUEUE_OFFSET_AT = 20
PHYSICAL_OFFSET_AT = 28
SYSFLAG_AT = 36
BORN_TIMESTAMP_AT = 40
BORN_HOST_AT = 48
MIN_RECORD_BYTES = HEAD.size + 1 + 2
MAX_SHORT_TOPIC_BYTES = 127

_U16 = struct.Struct(">H")
_I16 = struct.Struct(">h")
_U32 = struct.Struct(">I")
SIZE_AND_MAGIC = struct.Struct(">II")
_OFFSETS = struct.Struct(">qqI")  # queue offset, physical offset, system flag, from QUEUE_OFFSET_AT
_LONG = struct.Struct(">q")


@dataclass(slots=True)
class Message:
    """A message with everything that its record tells of it."""

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


def body_crc32(body: bytes) -> int:
    """The CRC as Java's side stores it: without its sign bit."""
    return zlib.crc32(body) & 0x7FFFFFFF


def encode_record(
    topic: bytes,
    body: bytes,
    properties: bytes,
    *,
    queue_id: int,
    queue_offset: int,
    physical_offset: int,
    born_timestamp_ms: int,
    born_host: bytes,
    store_timestamp_ms: int,
    store_host: bytes,
    flag: int = 0,
    sysflag: int = 0,
    reconsume_times: int = 0,
    prepared_transaction_offset: int = 0,
) -> bytes:
    """One record, ready to be appended at `physical_offset`."""
    if len(topic) <= MAX_SHORT_TOPIC_BYTES:
        magic, topic_length = MAGIC, bytes((len(topic),))
    else:
        magic, topic_length = MAGIC_LONG_TOPIC, _U16.pack(len(topic))
    sysflag &= ~(SYSFLAG_BORN_V6 | SYSFLAG_STORE_V6)
    if len(born_host) == 8 and len(store_host) == 8:
        size = HEAD.size + len(body) + len(topic_length) + len(topic) + 2 + len(properties)
        # fmt: off
        head = HEAD.pack(
            size, magic, zlib.crc32(body) & 0x7FFFFFFF, queue_id, flag, queue_offset, physical_offset,
            sysflag, born_timestamp_ms, born_host, store_timestamp_ms, store_host,
            reconsume_times, prepared_transaction_offset, len(body),
        )
        # fmt: on
    else:
        if len(born_host) == 20:
            sysflag |= SYSFLAG_BORN_V6
        if len(store_host) == 20:
            sysflag |= SYSFLAG_STORE_V6
        size = 72 + len(born_host) + len(store_host) + len(body) + len(topic_length) + len(topic) + 2 + len(properties)
        head = (
            struct.pack(
                ">IIIIiqqIq", size, magic, body_crc32(body), queue_id, flag, queue_offset, physical_offset,
                sysflag, born_timestamp_ms,
            )
            + born_host
            + _LONG.pack(store_timestamp_ms)
            + store_host
            + struct.pack(">iqI", reconsume_times, prepared_transaction_offset, len(body))
        )  # fmt: skip
    if len(properties) > MAX_PROPERTIES_BYTES:
        raise IllegalMessage(
            f"the properties take {len(properties)} bytes, the limit is {MAX_PROPERTIES_BYTES}",
            hint="Move large values into the body",
        )
    return b"".join((head, body, topic_length, topic, _U16.pack(len(properties)), properties))


def host_bytes(sysflag: int) -> tuple[int, int]:
    """How long born host and store host are in a record with this system flag."""
    return 20 if sysflag & SYSFLAG_BORN_V6 else 8, 20 if sysflag & SYSFLAG_STORE_V6 else 8


@dataclass(slots=True)
class Layout:
    """Where the parts of one record lie, relative to its start; nothing is copied yet."""

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
    """The layout of the record at `at`, or None where no complete record lies before `limit`."""
    if at + MIN_RECORD_BYTES > limit:
        return None
    size, magic = SIZE_AND_MAGIC.unpack_from(buffer, at)
    if magic not in (MAGIC, MAGIC_LONG_TOPIC) or size < MIN_RECORD_BYTES or at + size > limit:
        return None
    (sysflag,) = _U32.unpack_from(buffer, at + SYSFLAG_AT)
    born, store = host_bytes(sysflag)
    store_timestamp_at = BORN_HOST_AT + born
    body_length_at = store_timestamp_at + 8 + store + 12
    length_bytes = 1 if magic == MAGIC else 2
    if body_length_at + 4 + length_bytes + 2 > size:
        return None
    (body_bytes,) = _U32.unpack_from(buffer, at + body_length_at)
    body_at = body_length_at + 4
    topic_length_at = body_at + body_bytes
    topic_at = topic_length_at + length_bytes
    if topic_at + 2 > size:
        return None
    topic_bytes = (
        buffer[at + topic_length_at] if length_bytes == 1 else _U16.unpack_from(buffer, at + topic_length_at)[0]
    )
    properties_at = topic_at + topic_bytes + 2
    if properties_at > size:
        return None
    (properties_bytes,) = _I16.unpack_from(buffer, at + properties_at - 2)
    if properties_bytes < 0 or properties_at + properties_bytes != size:
        return None
    return Layout(
        size, sysflag, store_timestamp_at, body_at, body_bytes, topic_at, topic_bytes, properties_at, properties_bytes
    )


def check_record(buffer: Buffer, at: int, limit: int, physical_offset: int) -> Layout | None:
    """The layout of a whole and undamaged record that belongs at `physical_offset`, else None.

    The CRC covers the body only, so the rest is checked by what it must say: its own offset, and a topic and properties
    that can be texts and end where the record ends.
    """
    parts = layout(buffer, at, limit)
    if parts is None or _LONG.unpack_from(buffer, at + PHYSICAL_OFFSET_AT)[0] != physical_offset:
        return None
    body = buffer[at + parts.body_at : at + parts.body_at + parts.body_bytes]
    if zlib.crc32(body) & 0x7FFFFFFF != _U32.unpack_from(buffer, at + 8)[0]:
        return None
    end = at + parts.size
    topic_at = at + parts.topic_at
    if not parts.topic_bytes or not well_formed(bytes(buffer[topic_at : topic_at + parts.topic_bytes])):
        return None
    if not well_formed(bytes(buffer[end - parts.properties_bytes : end])):
        return None
    return parts


def record_store_timestamp_ms(buffer: Buffer, at: int) -> int:
    """The store time in the record at `at`."""
    (sysflag,) = _U32.unpack_from(buffer, at + SYSFLAG_AT)
    timestamp_ms: int = _LONG.unpack_from(buffer, at + BORN_HOST_AT + (20 if sysflag & SYSFLAG_BORN_V6 else 8))[0]
    return timestamp_ms


def record_prepared_transaction_offset(buffer: Buffer, at: int, parts: Layout) -> int:
    """The prepared-transaction field of the record at `at`, where deliveries keep their entry id."""
    value: int = _LONG.unpack_from(buffer, at + parts.body_at - 12)[0]
    return value


def record_properties(record: bytes) -> bytes:
    """The encoded properties of one whole record."""
    parts = layout(record, 0, len(record))
    return record[parts.properties_at :] if parts else b""


def record_property(record: bytes, name: bytes) -> bytes | None:
    """One property of one whole record."""
    return find_property(record_properties(record), name)


def decode_record(buffer: bytes, at: int = 0) -> Message:
    """The record at `at` as a Message; its CRC is the reader's to check."""
    parts = layout(buffer, at, len(buffer))
    if parts is None:
        raise CorruptStore(f"no whole record at byte {at} of {len(buffer)}")
    size, _, crc, queue_id, flag = struct.unpack_from(">IIIIi", buffer, at)
    queue_offset, physical_offset, sysflag = _OFFSETS.unpack_from(buffer, at + QUEUE_OFFSET_AT)
    store_host_at = at + parts.store_timestamp_at + 8
    reconsume_at = at + parts.body_at - 16
    reconsume_times, prepared = struct.unpack_from(">iq", buffer, reconsume_at)
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
        born_timestamp_ms=_LONG.unpack_from(buffer, at + BORN_TIMESTAMP_AT)[0],
        born_host=unpack_host(buffer[at + BORN_HOST_AT : at + parts.store_timestamp_at]),
        store_timestamp_ms=_LONG.unpack_from(buffer, at + parts.store_timestamp_at)[0],
        store_host=unpack_host(store_host),
        reconsume_times=reconsume_times,
        prepared_transaction_offset=prepared,
        body_crc=crc,
        size_bytes=size,
        message_id=offset_message_id(store_host, physical_offset),
    )


def decode_records(buffer: bytes) -> Iterator[Message]:
    """Records laid end to end, as a pull response carries them."""
    at = 0
    while at < len(buffer):
        message = decode_record(buffer, at)
        yield message
        at += message.size_bytes
