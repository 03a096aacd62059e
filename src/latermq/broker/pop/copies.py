"""Copies of popped messages: for their next attempt, for the dead letters, and for a consumer that gets a retry."""

from latermq.group.filters import MessageFilter
from latermq.group.pop.handles import ReceiptHandle, pop_retry_topic
from latermq.message.ids import pack_host
from latermq.message.names import RETRY_PREFIX, dead_letter_topic, retry_topic
from latermq.message.properties import (
    DEAD_LETTER_REASON,
    FIRST_POP_MS,
    MAX_PROPERTIES_BYTES,
    ORIGIN_GROUP,
    ORIGIN_MESSAGE_ID,
    POP_HANDLE,
    RETRY_TOPIC,
    encode_properties,
    without_scheduling,
)
from latermq.message.record import Message, decode_record, record_property
from latermq.message.record_fields import SYSFLAG_FROM_SENDER
from latermq.message.record_writer import encode_record
from latermq.store.log_writer import Draft

_ORIGIN_GROUP, _RETRY_TOPIC = ORIGIN_GROUP.encode(), RETRY_TOPIC.encode()


def base_topic(group: str, message: Message) -> str:
    """Return the topic that a message was sent to, if it is stored there or in a retry topic of this group."""
    topic = message.topic
    if not topic.startswith(RETRY_PREFIX):
        return topic
    # A group and a topic with `_` cannot be told apart in the name, but the group is known.
    for prefix in (f"{retry_topic(group)}_", f"{retry_topic(group)}+"):
        if topic.startswith(prefix):
            return topic.removeprefix(prefix)
    return message.properties.get(RETRY_TOPIC) or topic


def own_retries(group: str, topic: str) -> MessageFilter:
    """Return a filter for a group's retry topic, which another group may share.

    Group `a` and topic `b_c` have the same one as group `a_b` and topic `c`, and as the pulling members of `a_b_c`.
    """
    own, name = group.encode(), topic.encode()

    def is_own(record: bytes) -> bool:
        origin = record_property(record, _ORIGIN_GROUP)
        if origin is None or origin == own:
            return True
        # Senders may set any property. Only a copy of a pop for another group is another group's.
        return name != b"%s%s_%s" % (RETRY_PREFIX.encode(), origin, record_property(record, _RETRY_TOPIC) or b"")

    return MessageFilter(record_matches=is_own, record_work=16, byte_work=0)


def next_attempt_topic(group: str, message: Message) -> str:
    """Return where a message waits for its next attempt."""
    return pop_retry_topic(group, base_topic(group, message))


def retry_copy(group: str, message: Message, pop_ms: int, topic: str, *, is_counted: bool) -> Draft:
    """Return the copy of a message for its next attempt in a retry topic, which is not delayed."""
    properties = _kept_properties(message)
    return _draft(
        message,
        topic,
        properties,
        # The most important ones first: those that do not fit are left out.
        {
            ORIGIN_GROUP: group,
            RETRY_TOPIC: base_topic(group, message),
            FIRST_POP_MS: properties.get(FIRST_POP_MS) or str(pop_ms),
        },
        message.failures if is_counted else message.reconsume_times,
    )


def dead_letter(group: str, message: Message, failures: int, reason: str) -> Draft:
    """Return the dead letter of a message that failed this many times."""
    properties = _kept_properties(message)
    added = {
        RETRY_TOPIC: base_topic(group, message),
        ORIGIN_MESSAGE_ID: properties.get(ORIGIN_MESSAGE_ID) or message.message_id,
        DEAD_LETTER_REASON: reason,
    }
    return _draft(message, dead_letter_topic(group), properties, added, failures)


def _kept_properties(message: Message) -> dict[str, str]:
    properties = without_scheduling(message.properties)
    for name in (POP_HANDLE, ORIGIN_GROUP):  # the sender may have set them
        properties.pop(name, None)
    return properties


def _draft(
    message: Message, topic: str, properties: dict[str, str], added: dict[str, str], reconsume_times: int
) -> Draft:
    encoded = encode_properties(properties).encode()
    for name, value in added.items():
        longer = encode_properties({**properties, name: value}).encode()
        if len(longer) <= MAX_PROPERTIES_BYTES:
            properties, encoded = {**properties, name: value}, longer
    return Draft(
        topic,
        0,
        message.body,
        encoded,
        message.born_timestamp_ms,
        pack_host(*message.born_host),
        message.flag,
        message.sysflag & SYSFLAG_FROM_SENDER,
        reconsume_times,
    )


def as_sent(record: bytes, topic: str, handle: ReceiptHandle) -> bytes:
    """Return a record of a retry topic as its consumer gets it: with its first topic and its handle.

    If the properties have no room for the handle, the record stays as it is stored. Consumers take the retry topic for
    the first one, and compute the handle from the reply and from that topic, as for a record without a handle.
    """
    message = decode_record(record)
    properties = {**message.properties, POP_HANDLE: handle.encode()}
    encoded = encode_properties(properties).encode()
    if len(encoded) > MAX_PROPERTIES_BYTES:
        for name in (FIRST_POP_MS, RETRY_TOPIC, ORIGIN_GROUP):
            properties.pop(name, None)
        encoded = encode_properties(properties).encode()
        if len(encoded) > MAX_PROPERTIES_BYTES:
            return record
    return encode_record(
        topic.encode(),
        message.body,
        encoded,
        queue_id=message.queue_id,
        queue_offset=message.queue_offset,
        physical_offset=message.physical_offset,
        born_timestamp_ms=message.born_timestamp_ms,
        born_host=pack_host(*message.born_host),
        store_timestamp_ms=message.store_timestamp_ms,
        store_host=pack_host(*message.store_host),
        flag=message.flag,
        sysflag=message.sysflag,
        reconsume_times=message.reconsume_times,
        prepared_transaction_offset=message.prepared_transaction_offset,
    )
