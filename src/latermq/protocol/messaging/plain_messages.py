"""The usual request of a 5.x sender, read without protobuf: one normal or delayed message, perhaps with tag and keys.

It only ever decides to accept. For every other request it returns None, also for those that must be refused: they are
decoded by protobuf and checked by `sent_message`. Both return the same (tests/unit/protocol/messaging). Protobuf writes
fields in the order of their numbers, so a few comparisons show what a request contains: less than half the time.
"""

from google.protobuf.message import DecodeError
from google.protobuf.timestamp_pb2 import Timestamp

from latermq.protocol.messaging import messaging_pb2 as pb
from latermq.protocol.messaging.sent_messages import MAX_PLAIN_CHARS, SendLimits, SentMessage, own_properties
from latermq.protocol.messaging.times import MAX_TIMESTAMP_S, timestamp_ms

# The first bytes of fields: their number and type.
_MESSAGES = _TOPIC = _TAG = 0x0A
_NAME = _CHECKSUM = _KEY = 0x12
_SYSTEM_PROPERTIES = _MESSAGE_ID = 0x1A
_BODY = _DIGEST = 0x22
_DIGEST_TYPE = 0x08
_BODY_ENCODING = 0x28
_MESSAGE_TYPE = 0x30
_BORN_TIMESTAMP = 0x3A
_BORN_HOST = 0x42
_DELIVERY_TIMESTAMP = 0x5A
_QUEUE_ID = 0x68
_LONG = 0x80  # a size from here on takes more than one byte

_IDENTITY: int = pb.IDENTITY
_NORMAL: int = pb.NORMAL
_DELAY: int = pb.DELAY
_timestamp = Timestamp.FromString


def plain_message(data: bytes, limits: SendLimits) -> SentMessage | None:
    """Return what to send for a SendMessageRequest, if it is a usual one."""
    try:
        return _plain_message(data, limits)
    except (IndexError, UnicodeDecodeError, DecodeError):
        return None


def _plain_message(data: bytes, limits: SendLimits) -> SentMessage | None:
    end = len(data)
    size, at = _size(data, 1)
    if data[0] != _MESSAGES or at + size != end:
        return None
    name_bytes = data[at + 3]
    if data[at] != _TOPIC or data[at + 1] != name_bytes + 2 or name_bytes + 2 >= _LONG or data[at + 2] != _NAME:
        return None
    name_at = at + 4
    at = name_at + name_bytes
    topic = data[name_at:at].decode()
    if data[at] != _SYSTEM_PROPERTIES:
        return None
    size, at = _size(data, at + 1)
    system_end = at + size

    labels = ""
    if data[at] == _TAG or data[at] == _KEY:
        labels, at = _labels(data, at, limits)
    id_bytes = data[at + 1]
    if data[at] != _MESSAGE_ID or id_bytes >= _LONG:
        return None
    id_at = at + 2
    at = id_at + id_bytes
    message_id = data[id_at:at].decode()
    if data[at] == _DIGEST:
        digest_bytes = data[at + 1]
        checksum_at = at + 6
        if (
            digest_bytes >= _LONG or data[at + 2] != _DIGEST_TYPE or data[at + 3] >= _LONG or data[at + 4] != _CHECKSUM
            or data[at + 5] != digest_bytes - 4
        ):  # fmt: skip
            return None
        at += 2 + digest_bytes
        if not data[checksum_at:at].isascii():
            return None
    if data[at] == _BODY_ENCODING:
        if data[at + 1] != _IDENTITY:
            return None
        at += 2
    if data[at] == _MESSAGE_TYPE:
        if data[at + 1] != _NORMAL and data[at + 1] != _DELAY:
            return None
        at += 2
    time_bytes = data[at + 1]
    if data[at] != _BORN_TIMESTAMP or time_bytes >= _LONG:
        return None
    time_at = at + 2
    at = time_at + time_bytes
    born = _timestamp(data[time_at:at])
    born_s, nanos = born.seconds, born.nanos
    host_bytes = data[at + 1]
    if data[at] != _BORN_HOST or host_bytes >= _LONG:
        return None
    host_at = at + 2
    at = host_at + host_bytes
    born_host = data[host_at:at].decode()
    kind, delivery_ms = _NORMAL, None
    if data[at] == _DELIVERY_TIMESTAMP:
        time_bytes = data[at + 1]
        if time_bytes >= _LONG:
            return None
        time_at = at + 2
        at = time_at + time_bytes
        delivery_ms = timestamp_ms(_timestamp(data[time_at:at]))
        if delivery_ms is None or delivery_ms <= 0:
            return None
        kind = _DELAY
        labels = f"{labels}TIMER_DELIVER_MS\x01{delivery_ms}\x02"
    if data[at] == _QUEUE_ID:  # which Java's client sends; the proxy chooses the queue
        if data[at + 1] >= _LONG:
            return None
        at += 2

    if at != system_end or data[at] != _BODY:
        return None
    body_bytes, at = _size(data, at + 1)
    properties = own_properties(message_id, topic, born_host) + labels
    if (
        at + body_bytes != end
        or not 0 < body_bytes <= limits.body_bytes
        or not message_id or message_id.isspace() or not message_id.isprintable()
        or not born_host or not born_host.isprintable()
        or not 0 < born_s <= MAX_TIMESTAMP_S or not 0 <= nanos < 10**9
        or len(properties) > MAX_PLAIN_CHARS
    ):  # fmt: skip
        return None
    born_ms = born_s * 1000 + nanos // 1_000_000
    return SentMessage(topic, data[at:], properties, 0, born_ms, message_id, "", kind, delivery_ms)


def _labels(data: bytes, at: int, limits: SendLimits) -> tuple[str, int]:
    """Return the properties of tag and keys, and the position after them. Unusual ones raise IndexError."""
    labels = ""
    if data[at] == _TAG:
        tag, at = _label(data, at)
        if "|" in tag:
            raise IndexError("the tag is invalid")
        labels = f"TAGS\x01{tag}\x02"
    if data[at] == _KEY:
        keys = []
        while data[at] == _KEY:
            key, at = _label(data, at)
            keys.append(key)
        if len(keys) > limits.keys:
            raise IndexError("too many keys")
        labels = f"{labels}KEYS\x01{' '.join(keys)}\x02"
    if len(labels) * 4 > limits.user_properties_bytes:  # a character takes at most four bytes
        raise IndexError("the tag and the keys may be too long")
    return labels, at


def _label(data: bytes, at: int) -> tuple[str, int]:
    size = data[at + 1]
    start = at + 2
    text = data[start : start + size].decode()
    if size >= _LONG or text.isspace() or not text.isprintable() or not text:
        raise IndexError("the tag or key is unusual")
    return text, start + size


def _size(data: bytes, at: int) -> tuple[int, int]:
    """Return a size of up to four bytes at `at`, and the position after it. Longer ones raise IndexError."""
    size = data[at]
    if size < _LONG:
        return size, at + 1
    size = size & 0x7F | data[at + 1] << 7
    if size < _LONG << 7:
        return size, at + 2
    size = size & 0x3FFF | data[at + 2] << 14
    if size < _LONG << 14:
        return size, at + 3
    size = size & 0x1FFFFF | data[at + 3] << 21
    if size < _LONG << 21:
        return size, at + 4
    raise IndexError("the size is too long")
