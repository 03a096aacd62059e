"""Message properties: the names that the broker uses, and the wire form `name \\x01 value \\x02 …`."""

from collections.abc import Mapping

NAME_END = "\x01"
PROPERTY_END = "\x02"
MAX_PROPERTIES_BYTES = 32_767  # the record's length field is a signed 16-bit number

KEYS = "KEYS"
TAGS = "TAGS"
UNIQUE_KEY = "UNIQ_KEY"
WAIT_STORE_OK = "WAIT"
DELAY_LEVEL = "DELAY"
RETRY_TOPIC = "RETRY_TOPIC"
REAL_TOPIC = "REAL_TOPIC"
REAL_QUEUE_ID = "REAL_QID"
TIMER_DELAY_SEC = "TIMER_DELAY_SEC"
TIMER_DELAY_MS = "TIMER_DELAY_MS"
TIMER_DELIVER_MS = "TIMER_DELIVER_MS"
START_DELIVER_TIME = "__STARTDELIVERTIME"
TIMER_OUT_MS = "TIMER_OUT_MS"
TIMER_ROLL_TIMES = "TIMER_ROLL_TIMES"
TIMER_DELETE_KEY = "TIMER_DEL_UNIQKEY"
PRODUCER_GROUP = "PGROUP"
MIN_OFFSET = "MIN_OFFSET"
MAX_OFFSET = "MAX_OFFSET"
ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
RECONSUME_TIME = "RECONSUME_TIME"
TRANSACTION_PREPARED = "TRAN_MSG"
TRANSACTION_ID = "__transactionId__"
TRANSACTION_CHECKS = "TRANSACTION_CHECK_TIMES"  # in a half that RocketMQ's broker stored again after a check
FIRST_HALF = "TRAN_PREPARED_QUEUE_OFFSET"  # in such a half: the queue offset of the first one
POP_HANDLE = "POP_CK"
FIRST_POP_MS = "1ST_POP_TIME"
ORIGIN_GROUP = "ORIGIN_GROUP"
# Properties that a broker adds to every message that it stores for a client.
CLUSTER = "CLUSTER"
REGION = "MSG_REGION"
TRACE_ON = "TRACE_ON"
DEFAULT_REGION = "DefaultRegion"

# LaterMQ's own properties; the broker drops them from messages of clients.
TIMER_PREFIX = "TIMER_"  # of the properties with which RocketMQ schedules a timer
OWN_PREFIX = "LMQ_"
DUE_MS = "LMQ_DUE_MS"
TIMER_ID = "LMQ_TIMER_ID"  # in renewals and moves: the entry that first scheduled the timer
MOVE = "LMQ_MOVE"
TAKES = "LMQ_TAKES"  # in cancels and moves: the due times of the entries that they end (takes.py)
CUT = "LMQ_CUT"  # in a cut: its number and times
TOPIC_DELETED = "LMQ_TOPIC_DELETED"  # in the record that marks a topic's deletion: its earlier messages are gone
DEAD_LETTER_REASON = "LMQ_DEAD_REASON"
HALF_END = "LMQ_HALF_END"  # in the record that ends a half: how it ended

KEY_SEPARATOR = " "  # between the message keys in a KEYS value


# Besides those with the prefixes TIMER_ and LMQ_.
_SCHEDULING_PROPERTIES = (DELAY_LEVEL, REAL_TOPIC, REAL_QUEUE_ID, START_DELIVER_TIME)


def encode_properties(properties: Mapping[str, str]) -> str:
    """Encode properties in the given order."""
    return "".join([f"{name}\x01{value}\x02" for name, value in properties.items()])


def decode_properties(text: str) -> dict[str, str]:
    """Decode the wire form. Parts without a name or without a value are ignored, as in Java's decoder."""
    properties = {}
    for part in text.split(PROPERTY_END):
        name, _, value = part.partition(NAME_END)
        if name and value:
            properties[name] = value
    return properties


def distinct_properties(text: str) -> dict[str, str] | None:
    """Decode the wire form; None if a name occurs twice, or a part has no name or no value."""
    parts = text.split(PROPERTY_END)
    if not parts[-1]:
        parts.pop()
    properties = {}
    for part in parts:
        name, _, value = part.partition(NAME_END)
        if name and value:
            properties[name] = value
    return properties if len(properties) == len(parts) else None


def with_stamp(text: str, stamp: str) -> str:
    """Append the wire form `stamp` to another one. For names in both, its values count, because the last value does."""
    return text + stamp if not text or text[-1] == PROPERTY_END else f"{text}{PROPERTY_END}{stamp}"


def find_property(wire: bytes, name: bytes) -> bytes | None:
    """Find one value in the wire form without decoding the rest. The last value counts, as in a map."""
    needle = name + b"\x01"
    at = wire.rfind(needle)
    # Skip matches inside a longer name or inside a value.
    while at > 0 and wire[at - 1] != 2:
        at = wire.rfind(needle, 0, at)
    if at < 0:
        return None
    start = at + len(needle)
    end = wire.find(b"\x02", start)
    return wire[start:] if end < 0 else wire[start:end]


def well_formed(wire: bytes) -> bool:
    """Whether these bytes can be properties: UTF-8 without zero bytes, which a torn write leaves.

    The broker refuses messages with zero bytes in their properties, so an accepted message never looks torn.
    """
    if b"\0" in wire:
        return False
    try:
        wire.decode()
    except UnicodeDecodeError:
        return False
    return True


def without_scheduling(properties: dict[str, str]) -> dict[str, str]:
    """Return the properties without those that an earlier wait left, for a message that is stored again."""
    return {
        name: value
        for name, value in properties.items()
        if name not in _SCHEDULING_PROPERTIES and not name.startswith((TIMER_PREFIX, OWN_PREFIX))
    }
