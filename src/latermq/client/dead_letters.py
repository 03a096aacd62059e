"""Dead letters: where a group's are, what became of each message, and the message as it was sent."""

from latermq.client.admin import Admin
from latermq.client.producer.outgoing import OutgoingMessage
from latermq.errors import QueryNotFound, TopicNotFound
from latermq.message.ids import parse_offset_message_id
from latermq.message.names import DEAD_LETTER_PREFIX, TIMER_DEAD_LETTER_TOPIC, dead_letter_topic
from latermq.message.properties import (
    DEAD_LETTER_REASON,
    KEYS,
    MAX_OFFSET,
    MIN_OFFSET,
    ORIGIN_MESSAGE_ID,
    PRODUCER_GROUP,
    REAL_TOPIC,
    RECONSUME_TIME,
    RETRY_TOPIC,
    TAGS,
    TRANSACTION_PREPARED,
    UNIQUE_KEY,
    WAIT_STORE_OK,
    without_scheduling,
)
from latermq.message.record import Message

_UNKNOWN_REASON = "unknown"
# Properties that clients and brokers add. Only the sender's own properties are sent again.
_TRANSIT_PROPERTIES = frozenset({
    RETRY_TOPIC, WAIT_STORE_OK, UNIQUE_KEY, TAGS, KEYS, MIN_OFFSET, MAX_OFFSET, PRODUCER_GROUP, RECONSUME_TIME,
    TRANSACTION_PREPARED, "MAX_RECONSUME_TIMES", "MSG_REGION", "TRACE_ON", "CLUSTER", "CONSUME_START_TIME",
})  # fmt: skip


def topic_of(name: str) -> str:
    """The dead-letter topic of a group. The name of a dead-letter topic is returned unchanged."""
    is_topic = name == TIMER_DEAD_LETTER_TOPIC or name.startswith(DEAD_LETTER_PREFIX)
    return name if is_topic else dead_letter_topic(name)


def reason_of(message: Message) -> str:
    """Why the message is a dead letter. Only LaterMQ brokers record it."""
    return message.properties.get(DEAD_LETTER_REASON, _UNKNOWN_REASON)


def original_topic(message: Message) -> str:
    """The topic that a dead letter was sent to, or an empty string if it has no record of it."""
    # The real topic of a message that waited for a retry is the retry topic.
    properties = message.properties
    return properties.get(RETRY_TOPIC) or properties.get(REAL_TOPIC, "")


def as_sent(message: Message, topic: str) -> OutgoingMessage:
    """The message as originally sent, with a new unique key and the original id as a property."""
    original = message.properties
    properties = {
        name: value for name, value in without_scheduling(original).items() if name not in _TRANSIT_PROPERTIES
    }  # fmt: skip
    properties.setdefault(ORIGIN_MESSAGE_ID, message.message_id)
    tag, keys = original.get(TAGS, ""), original.get(KEYS, "")
    return OutgoingMessage(topic, message.body, tag, keys, properties, message.flag)


async def find_dead_letter(admin: Admin, topic: str, message_id: str) -> Message:
    """The dead letter with this message id or offset message id."""
    try:
        found = await admin.query_by_unique_key(topic, message_id)
        if found:
            return found[-1]
        message = await find_by_offset_id(admin, message_id)
        if message.topic == topic:
            return message
    except (QueryNotFound, TopicNotFound):
        pass
    raise QueryNotFound(f"{topic} has no message {message_id}", hint="`latermq dlq list GROUP` lists its messages")


async def find_by_offset_id(admin: Admin, message_id: str) -> Message:
    """The message with this offset message id. Raise QueryNotFound if no broker of the cluster has it."""
    # The id contains an address, which may be of any machine. Connect to it only if it is a broker's. An ordinary
    # message id has the same form, with an address that means nothing.
    addresses = {address for broker in await admin.brokers() for address in broker.brokerAddrs.values()}
    try:
        ip, port, _ = parse_offset_message_id(message_id)
    except QueryNotFound:
        ip, port = "", 0
    if (f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}") not in addresses:
        raise QueryNotFound(
            f"{message_id} is not an offset message id of this cluster", hint="For a message id, add --topic TOPIC"
        )
    return await admin.view_message(message_id)
