"""Stored records as messages of the 5.x protocol."""

from functools import lru_cache
from hashlib import md5

from latermq.errors import CorruptStore
from latermq.message.compression import UnreadableBody, decompress
from latermq.message.ids import offset_message_id, unpack_host
from latermq.message.names import DEAD_LETTER_PREFIX
from latermq.message.properties import (
    DELAY_LEVEL,
    DUE_MS,
    KEY_SEPARATOR,
    KEYS,
    ORIGIN_MESSAGE_ID,
    RETRY_TOPIC,
    TAGS,
    TIMER_DELIVER_MS,
    TRANSACTION_PREPARED,
    UNIQUE_KEY,
    decode_properties,
)
from latermq.message.record import layout
from latermq.message.record_fields import (
    BORN_HOST_AT,
    HEAD,
    I32,
    I64,
    MAGIC,
    MAX_RECONSUME_TIMES,
    MIN_RECORD_BYTES,
    PROPERTIES_LENGTH_BYTES,
    RECONSUME_BEFORE_BODY,
    SYSFLAG_COMPRESSED,
    SYSFLAG_HOSTS,
    SYSFLAG_TRANSACTION_MASK,
)
from latermq.protocol.messaging import messaging_pb2 as pb
from latermq.protocol.messaging.property_names import (
    BORN_HOST,
    DEAD_LETTER_ID,
    DEAD_LETTER_TOPIC,
    POP_CK,
    SHARDING_KEY,
    SYSTEM_NAMES,
    SYSTEM_PREFIXES,
    TRACE_CONTEXT,
)
from latermq.protocol.messaging.times import set_timestamp

# A body that a 4.x client compressed is decompressed up to this size. A larger one stays compressed: most clients
# can read it.
MAX_BODY_BYTES = 16 << 20
_GZIP_MAGIC = b"\x1f\x8b"
_MAX_TIME_DIGITS = 15


# Of a record: its end, queue id, queue offset, physical offset, and its property POP_CK, which is the handle of a
# message from a retry topic. A plain tuple, because a class costs 0.3 µs per message.
RecordPlace = tuple[int, int, int, int, str | None]


def message_of(record: bytes, max_body_bytes: int = MAX_BODY_BYTES) -> pb.Message:
    """Return one complete record as a message."""
    message = pb.Message()
    try:
        read_record(record, 0, message, max_body_bytes)
    except ValueError as error:
        raise CorruptStore(f"a record has a value that no message can have: {error}") from None
    return message


def read_record(data: bytes, at: int, message: pb.Message, max_body_bytes: int = MAX_BODY_BYTES) -> RecordPlace:
    """Fill a new message from the record at `at`; the caller adds the receipt handle. Takes 9 µs.

    Raises CorruptStore if it is torn, and ValueError if a value is not valid.
    """
    if at + MIN_RECORD_BYTES > len(data):
        raise _no_record(data, at)
    # fmt: off
    (
        size, magic, _, queue_id, _, queue_offset, physical_offset, sysflag, born_ms, born_host, store_ms, store_host,
        reconsume_times, _, body_bytes,
    ) = HEAD.unpack_from(data, at)
    # fmt: on
    if magic == MAGIC and not sysflag & SYSFLAG_HOSTS:
        # Nearly all records. The rest of this function takes the same positions from `layout`, which costs 2 µs more.
        body_at, end = at + HEAD.size, at + size
        body_end = body_at + body_bytes
        topic_at = body_end + 1
        if end > len(data) or topic_at > end:
            raise _no_record(data, at)
        topic_end = topic_at + data[body_end]
        properties_at = topic_end + PROPERTIES_LENGTH_BYTES
        if properties_at > end or int.from_bytes(data[topic_end:properties_at], "big") != end - properties_at:
            raise _no_record(data, at)
    else:
        parts = layout(data, at, len(data))
        if parts is None:
            raise _no_record(data, at)
        end, body_at = at + parts.size, at + parts.body_at
        body_end = body_at + parts.body_bytes
        topic_at = at + parts.topic_at
        topic_end = topic_at + parts.topic_bytes
        properties_at = at + parts.properties_at
        store_at = at + parts.store_timestamp_at
        born_host, (store_ms,) = data[at + BORN_HOST_AT : store_at], I64.unpack_from(data, store_at)
        store_host = data[store_at + 8 : body_at - RECONSUME_BEFORE_BODY]
        (reconsume_times,) = I32.unpack_from(data, body_at - RECONSUME_BEFORE_BODY)
    properties = decode_properties(data[properties_at:end].decode())

    message.topic.name = data[topic_at:topic_end].decode()
    system = message.system_properties
    body = data[body_at:body_end]
    if sysflag & SYSFLAG_COMPRESSED:
        body, system.body_encoding = _readable(body, sysflag, max_body_bytes)
    else:
        system.body_encoding = pb.IDENTITY
    message.body = body
    digest = system.body_digest
    digest.type = pb.MD5
    digest.checksum = md5(body, usedforsecurity=False).hexdigest().upper()
    set_timestamp(system.born_timestamp, born_ms)
    set_timestamp(system.store_timestamp, store_ms)
    system.store_host = _host(store_host)
    system.queue_id = queue_id
    system.queue_offset = queue_offset
    system.delivery_attempt = min(reconsume_times, MAX_RECONSUME_TIMES - 1) + 1
    get = properties.get
    system.message_id = get(UNIQUE_KEY) or offset_message_id(store_host, physical_offset)
    system.born_host = get(BORN_HOST) or _host(born_host)
    _set_properties(message, system, properties, sysflag)
    return end, queue_id, queue_offset, physical_offset, get(POP_CK)


def _no_record(data: bytes, at: int) -> CorruptStore:
    return CorruptStore(f"no complete record at byte {at} of {len(data)}")


def _set_properties(message: pb.Message, system: pb.SystemProperties, properties: dict[str, str], sysflag: int) -> None:
    for name in properties:
        if name not in SYSTEM_NAMES and not name.startswith(SYSTEM_PREFIXES):
            message.user_properties[name] = properties[name]
    get = properties.get
    tag, keys, group = get(TAGS), get(KEYS), get(SHARDING_KEY)
    if tag is not None:
        system.tag = tag
    if keys is not None:
        system.keys.extend([key for key in keys.split(KEY_SEPARATOR) if key])
    if group is not None:
        system.message_group = group
    trace_context = get(TRACE_CONTEXT)
    if trace_context is not None:
        system.trace_context = trace_context
    due = get(DUE_MS) or get(TIMER_DELIVER_MS)
    if due is not None and due.isascii() and due.isdigit() and len(due) <= _MAX_TIME_DIGITS:
        set_timestamp(system.delivery_timestamp, int(due))
    if sysflag & SYSFLAG_TRANSACTION_MASK or get(TRANSACTION_PREPARED) == "true":
        system.message_type = pb.TRANSACTION
    elif due is not None or DELAY_LEVEL in properties:
        system.message_type = pb.DELAY
    else:
        system.message_type = pb.NORMAL if group is None else pb.FIFO
    origin_id = get(DEAD_LETTER_ID) or get(ORIGIN_MESSAGE_ID)
    if origin_id:
        _set_origin(message, properties, origin_id)


def _set_origin(message: pb.Message, properties: dict[str, str], origin_id: str) -> None:
    """Set the origin of a dead letter. The broker's own dead letters have the properties of a retry."""
    origin_topic = properties.get(DEAD_LETTER_TOPIC)
    if origin_topic is None and message.topic.name.startswith(DEAD_LETTER_PREFIX):
        origin_topic = properties.get(RETRY_TOPIC)
    if origin_topic:
        origin = message.system_properties.dead_letter_queue
        origin.topic = origin_topic
        origin.message_id = origin_id


def _readable(body: bytes, sysflag: int, max_bytes: int) -> tuple[bytes, pb.Encoding]:
    """Return a compressed body in a form that all clients can read, with its encoding.

    GZIP only says that a body is compressed: Java's client recognizes other compressions, Node's reads gzip alone.
    """
    if body.startswith(_GZIP_MAGIC):
        return body, pb.GZIP
    try:
        return decompress(body, sysflag, max_bytes), pb.IDENTITY
    except UnreadableBody:
        return body, pb.GZIP


@lru_cache(1024)  # the same few occur in nearly all records
def _host(packed: bytes) -> str:
    ip, port = unpack_host(packed)
    return f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"
