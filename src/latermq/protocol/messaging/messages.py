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
    BORN_TIMESTAMP_AT,
    I64,
    OFFSETS_AND_SYSFLAG,
    QUEUE_ID_AT,
    QUEUE_OFFSET_AT,
    RECONSUME_AND_PREPARED,
    RECONSUME_BEFORE_BODY,
    SYSFLAG_COMPRESSED,
    SYSFLAG_TRANSACTION_MASK,
    U32,
)
from latermq.protocol.messaging import messaging_pb2 as pb
from latermq.protocol.messaging.property_names import (
    BORN_HOST,
    DEAD_LETTER_ID,
    DEAD_LETTER_TOPIC,
    POP_CK,
    SHARDING_KEY,
    TRACE_CONTEXT,
    is_system_name,
)
from latermq.protocol.messaging.times import set_timestamp

# A body that a 4.x client compressed is decompressed up to this size. A larger one stays compressed: most clients
# can read it.
MAX_BODY_BYTES = 16 << 20
_GZIP_MAGIC = b"\x1f\x8b"
_MAX_TIME_DIGITS = 15


class RecordPlace:
    """Where a record was found: what a receipt handle needs of it."""

    __slots__ = ("check", "end", "physical_offset", "queue_id", "queue_offset")

    def __init__(self, end: int, queue_id: int, queue_offset: int, physical_offset: int, check: str | None) -> None:
        self.end = end
        self.queue_id = queue_id
        self.queue_offset = queue_offset
        self.physical_offset = physical_offset
        self.check = check  # the record's property POP_CK: the handle of a message from a retry topic


def message_of(record: bytes, max_body_bytes: int = MAX_BODY_BYTES) -> pb.Message:
    """Return one complete record as a message."""
    message = pb.Message()
    read_record(record, 0, message, max_body_bytes)
    return message


def read_record(data: bytes, at: int, message: pb.Message, max_body_bytes: int = MAX_BODY_BYTES) -> RecordPlace:
    """Fill a new message from the record at `at`; the caller adds the receipt handle. Takes 7 µs."""
    parts = layout(data, at, len(data))
    if parts is None:
        raise CorruptStore(f"no complete record at byte {at} of {len(data)}")
    end = at + parts.size
    body_at = at + parts.body_at
    queue_offset, physical_offset, sysflag = OFFSETS_AND_SYSFLAG.unpack_from(data, at + QUEUE_OFFSET_AT)
    (queue_id,) = U32.unpack_from(data, at + QUEUE_ID_AT)
    store_host_at = at + parts.store_timestamp_at + 8
    reconsume_at = body_at - RECONSUME_BEFORE_BODY
    reconsume_times, _ = RECONSUME_AND_PREPARED.unpack_from(data, reconsume_at)
    properties = decode_properties(data[at + parts.properties_at : end].decode())

    topic_at = at + parts.topic_at
    message.topic.name = data[topic_at : topic_at + parts.topic_bytes].decode()
    system = message.system_properties
    body = data[body_at : body_at + parts.body_bytes]
    encoding: pb.Encoding = pb.IDENTITY
    if sysflag & SYSFLAG_COMPRESSED:
        body, encoding = _readable(body, sysflag, max_body_bytes)
    message.body = body
    system.body_encoding = encoding
    digest = system.body_digest
    digest.type = pb.MD5
    digest.checksum = md5(body, usedforsecurity=False).hexdigest().upper()
    born_ms = I64.unpack_from(data, at + BORN_TIMESTAMP_AT)[0]
    set_timestamp(system.born_timestamp, born_ms)
    set_timestamp(system.store_timestamp, I64.unpack_from(data, at + parts.store_timestamp_at)[0])
    store_host = data[store_host_at:reconsume_at]
    system.store_host = _host(store_host)
    system.queue_id = queue_id
    system.queue_offset = queue_offset
    system.delivery_attempt = reconsume_times + 1
    system.message_id = properties.get(UNIQUE_KEY) or offset_message_id(store_host, physical_offset)
    system.born_host = properties.get(BORN_HOST) or _host(data[at + BORN_HOST_AT : at + parts.store_timestamp_at])
    _set_properties(message, system, properties, sysflag)
    return RecordPlace(end, queue_id, queue_offset, physical_offset, properties.get(POP_CK))


def _set_properties(message: pb.Message, system: pb.SystemProperties, properties: dict[str, str], sysflag: int) -> None:
    user = message.user_properties
    for name, value in properties.items():
        if name == TAGS:
            system.tag = value
        elif name == KEYS:
            system.keys.extend([key for key in value.split(KEY_SEPARATOR) if key])
        elif name == SHARDING_KEY:
            system.message_group = value
        elif name == TRACE_CONTEXT:
            system.trace_context = value
        elif not is_system_name(name):
            user[name] = value
    due = properties.get(DUE_MS) or properties.get(TIMER_DELIVER_MS)
    is_delayed = due is not None or DELAY_LEVEL in properties
    if due is not None and due.isascii() and due.isdigit() and len(due) <= _MAX_TIME_DIGITS:
        set_timestamp(system.delivery_timestamp, int(due))
    if properties.get(TRANSACTION_PREPARED) == "true" or sysflag & SYSFLAG_TRANSACTION_MASK:
        system.message_type = pb.TRANSACTION
    elif is_delayed:
        system.message_type = pb.DELAY
    elif SHARDING_KEY in properties:
        system.message_type = pb.FIFO
    else:
        system.message_type = pb.NORMAL
    origin_id = properties.get(DEAD_LETTER_ID) or properties.get(ORIGIN_MESSAGE_ID)
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
