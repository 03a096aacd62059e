"""Messages of 5.x senders: their checks, and what the broker stores of them.

Codes, properties and the defaults of limits are those of RocketMQ's proxy. Delivery times are checked by the broker,
which knows how far ahead they may be.
"""

import re
from typing import NamedTuple

from latermq.message.names import shown
from latermq.message.properties import MAX_PROPERTIES_BYTES
from latermq.message.record_fields import SYSFLAG_COMPRESSED
from latermq.protocol.messaging import messaging_pb2 as pb
from latermq.protocol.messaging.property_names import is_system_name
from latermq.protocol.messaging.refusals import CallRefused
from latermq.protocol.messaging.times import MAX_TIMESTAMP_S, duration_ms, timestamp_ms

SYSFLAG_HALF = 0x4  # the message is part of a transaction that is not yet committed
# Left for what the broker adds: region, cluster, and the properties of a timer with the name of its topic.
_PROPERTIES_RESERVE_BYTES = 1024
_MAX_UTF8_BYTES = 4  # per character
# Properties up to this length need not be encoded to know that they fit.
MAX_PLAIN_CHARS = (MAX_PROPERTIES_BYTES - _PROPERTIES_RESERVE_BYTES) // _MAX_UTF8_BYTES
# Plain numbers: attributes of the module take longer, and each message compares them.
_NORMAL: int = pb.NORMAL
_TRANSACTION: int = pb.TRANSACTION
_LITE: int = pb.LITE  # the types from here on are not supported
_GZIP: int = pb.GZIP
_control_character = re.compile("[\x00-\x1f\x7f-\x9f]").search


class SendLimits(NamedTuple):
    """Limits of one message, which are settings of the proxy."""

    body_bytes: int
    user_properties: int
    user_properties_bytes: int  # with the tag and the keys
    keys: int
    message_group_bytes: int
    recovery_s: int


class SentMessage(NamedTuple):
    """A checked message, ready to be sent to a broker."""

    topic: str
    body: bytes
    properties: str
    sysflag: int
    born_ms: int
    message_id: str
    message_group: str  # empty: any queue will do
    kind: int  # one of pb.MessageType
    delivery_ms: int | None


def sent_message(message: pb.Message, topic: str, remote_host: str, now_ms: int, limits: SendLimits) -> SentMessage:
    """Check a message to a valid topic, and return what to send. Raises CallRefused. Takes 5 µs."""
    body = message.body
    if not body:
        raise CallRefused(pb.MESSAGE_BODY_EMPTY, "the message body is empty")
    if len(body) > limits.body_bytes:
        raise CallRefused(
            pb.MESSAGE_BODY_TOO_LARGE, f"the message body has {len(body)} bytes; the limit is {limits.body_bytes}"
        )
    system = message.system_properties
    message_id = system.message_id
    # `_is_clean` only if its first check fails, which nearly none does: this saves calls.
    if not message_id or message_id.isspace() or not (message_id.isprintable() or _is_clean(message_id)):
        raise CallRefused(pb.ILLEGAL_MESSAGE_ID, "the message id is blank or contains control characters")
    born = system.born_timestamp
    # Inlined `timestamp_ms`, to save the call.
    born_s, nanos = born.seconds, born.nanos
    born_ms = born_s * 1000 + nanos // 1_000_000 if 0 < born_s <= MAX_TIMESTAMP_S and 0 <= nanos < 10**9 else now_ms
    born_host = system.born_host
    if not born_host or not (born_host.isprintable() or _is_clean(born_host)):
        born_host = remote_host
    parts = [own_properties(message_id, topic, born_host), _labels(message, system, limits)]
    sysflag = SYSFLAG_COMPRESSED if system.body_encoding == _GZIP else 0
    delivery_ms = None
    kind, message_type = _NORMAL, system.message_type
    group = system.message_group
    if group:
        kind = pb.FIFO
        parts.append(f"__SHARDINGKEY\x01{_message_group(group, limits.message_group_bytes)}\x02")
    if system.HasField("delivery_timestamp"):
        kind = pb.DELAY
        delivery_ms = _delivery_ms(system)
        parts.append(f"TIMER_DELIVER_MS\x01{delivery_ms}\x02")
    if message_type == _TRANSACTION:
        kind = _TRANSACTION
        sysflag |= SYSFLAG_HALF
        parts.append(f"TRAN_MSG\x01true\x02{_recovery(system, limits.recovery_s)}")
    trace_context = system.trace_context
    if trace_context:
        if not _is_clean(trace_context):
            raise CallRefused(pb.ILLEGAL_MESSAGE_PROPERTY_KEY, "the trace context contains control characters")
        parts.append(f"TRACE_CONTEXT\x01{trace_context}\x02")
    if message_type >= _LITE or system.HasField("priority") or system.HasField("lite_topic"):
        _refuse_unsupported(system)
    properties = "".join(parts)
    if len(properties) > MAX_PLAIN_CHARS:
        _check_size(properties)
    return SentMessage(topic, body, properties, sysflag, born_ms, message_id, group, kind, delivery_ms)


def own_properties(message_id: str, topic: str, born_host: str) -> str:
    """Return the properties that every message has.

    Without those of RocketMQ's proxy for the born time and attempts, which the record has anyway.
    """
    return f"UNIQ_KEY\x01{message_id}\x02PGROUP\x01{topic}\x02__BORNHOST\x01{born_host}\x02"


def _is_clean(text: str) -> bool:
    """Whether a text has no control characters."""
    return text.isprintable() or _control_character(text) is None


def _labels(message: pb.Message, system: pb.SystemProperties, limits: SendLimits) -> str:
    """Return the properties that the user chose: tag, keys, and those with the user's own names."""
    labels = _user_properties(message, limits.user_properties) if message.user_properties else ""
    tag = system.tag
    if tag:
        if tag.isspace() or "|" in tag or not _is_clean(tag):
            raise CallRefused(pb.ILLEGAL_MESSAGE_TAG, "the tag is blank or contains '|' or control characters")
        labels = f"{labels}TAGS\x01{tag}\x02"
    given = system.keys
    if given:
        if len(given) > limits.keys:
            raise CallRefused(pb.MESSAGE_PROPERTIES_TOO_LARGE, f"{len(given)} keys; the limit is {limits.keys}")
        keys = given[0] if len(given) == 1 else " ".join(given)
        if not _is_clean(keys) or any(map(str.isspace, given)):
            raise CallRefused(pb.ILLEGAL_MESSAGE_KEY, "a key is blank or contains control characters")
        if keys and not keys.isspace():  # empty keys are ignored
            labels = f"{labels}KEYS\x01{keys}\x02"
    if len(labels) * _MAX_UTF8_BYTES > limits.user_properties_bytes:
        _check_labels(message, system, limits.user_properties_bytes)
    return labels


def _user_properties(message: pb.Message, limit: int) -> str:
    user = message.user_properties
    if len(user) > limit:
        raise CallRefused(pb.MESSAGE_PROPERTIES_TOO_LARGE, f"{len(user)} user properties; the limit is {limit}")
    parts = []
    for name, value in user.items():
        if not name or is_system_name(name):
            raise CallRefused(
                pb.ILLEGAL_MESSAGE_PROPERTY_KEY, f"the property name {shown(name)} is reserved", hint="Rename it"
            )
        if not (_is_clean(name) and _is_clean(value)):
            raise CallRefused(
                pb.ILLEGAL_MESSAGE_PROPERTY_KEY, f"the property {shown(name)} contains control characters"
            )
        if value:  # the wire form cannot express an empty value
            parts.append(f"{name}\x01{value}\x02")
    return "".join(parts)


def _check_labels(message: pb.Message, system: pb.SystemProperties, limit_bytes: int) -> None:
    """Count what may be too much: names and values, the tag and the keys."""
    texts = [text for pair in message.user_properties.items() for text in pair]
    size = sum(len(text.encode()) for text in (*texts, system.tag, *system.keys))
    if size > limit_bytes:
        raise CallRefused(
            pb.MESSAGE_PROPERTIES_TOO_LARGE,
            f"user properties, tag and keys have {size} bytes; the limit is {limit_bytes}",
        )


def _message_group(group: str, limit_bytes: int) -> str:
    if group.isspace() or len(group.encode()) > limit_bytes or not _is_clean(group):
        raise CallRefused(
            pb.ILLEGAL_MESSAGE_GROUP,
            f"the message group is blank, longer than {limit_bytes} bytes, or contains control characters",
        )
    return group


def _delivery_ms(system: pb.SystemProperties) -> int:
    delivery_ms = timestamp_ms(system.delivery_timestamp)
    if delivery_ms is None:
        raise CallRefused(pb.ILLEGAL_DELIVERY_TIME, "the delivery timestamp is not a valid time")
    return max(delivery_ms, 1)  # a time in the past means now


def _recovery(system: pb.SystemProperties, limit_s: int) -> str:
    """Return the property that delays the first check of a transaction."""
    if not system.HasField("orphaned_transaction_recovery_duration"):
        return ""
    seconds = duration_ms(system.orphaned_transaction_recovery_duration) // 1000
    if seconds > limit_s:
        raise CallRefused(
            pb.BAD_REQUEST, f"the transaction's recovery duration is {seconds} s; the limit is {limit_s} s"
        )
    return f"CHECK_IMMUNITY_TIME_IN_SECONDS\x01{max(seconds, 0)}\x02"


def _refuse_unsupported(system: pb.SystemProperties) -> None:
    """Refuse the two types of messages that the broker does not have."""
    if system.HasField("priority") or system.message_type == pb.PRIORITY:
        raise CallRefused(pb.NOT_IMPLEMENTED, "messages with a priority are not supported")
    if system.HasField("lite_topic") or system.message_type == pb.LITE:
        raise CallRefused(pb.NOT_IMPLEMENTED, "lite topics are not supported")


def _check_size(properties: str) -> None:
    limit = MAX_PROPERTIES_BYTES - _PROPERTIES_RESERVE_BYTES
    size = len(properties.encode())
    if size > limit:
        raise CallRefused(pb.MESSAGE_PROPERTIES_TOO_LARGE, f"all properties have {size} bytes; the limit is {limit}")
