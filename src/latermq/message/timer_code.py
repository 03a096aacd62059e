"""The tags code of a queue entry of the timer topic: what the entry is and when it is due, without its record.

Bit 62 says that LaterMQ wrote it, bits 56 to 61 are the kind, bits 0 to 55 the due time. The hash of a tag, which
RocketMQ puts there, is a sign-extended 32-bit number, so it is never mistaken for one of these.
"""

from latermq.arrays import Bools, Ints
from latermq.message.names import is_stored_topic
from latermq.message.properties import CUT as CUT_PROPERTY
from latermq.message.properties import (
    DUE_MS,
    MOVE,
    REAL_QUEUE_ID,
    REAL_TOPIC,
    TIMER_DELETE_KEY,
    TIMER_OUT_MS,
    find_property,
)

FLAG = 1 << 62
KIND_SHIFT = 56
DUE_MASK = (1 << KIND_SHIFT) - 1
TIMER, CANCEL, MOVED, CUT = range(4)  # a roll is a timer again
MAX_DUE_DIGITS = 15  # some 30,000 years: more do not fit beside the kind, and before FOREVER_MS of cut.py
MAX_ENTRY_DIGITS = 18
_MAX_QUEUE_ID_DIGITS = 5
UNKNOWN_DUE_MS = 0  # of a record that tells no due time: it is nobody's to deliver

_DUE_MS, _TIMER_OUT_MS = DUE_MS.encode(), TIMER_OUT_MS.encode()
_CUT, _DELETE_KEY, _MOVE, _REAL_QUEUE_ID, _REAL_TOPIC = (
    CUT_PROPERTY.encode(),
    TIMER_DELETE_KEY.encode(),
    MOVE.encode(),
    REAL_QUEUE_ID.encode(),
    REAL_TOPIC.encode(),
)


def timer_code(kind: int, due_ms: int) -> int:
    """The code of an entry."""
    return FLAG | kind << KIND_SHIFT | due_ms


def is_timer_code(codes: Ints) -> Bools:
    """Which of these codes are ours."""
    ours: Bools = codes >> 62 == 1
    return ours


def kinds_and_dues(codes: Ints) -> tuple[Ints, Ints]:
    """What these entries are, and when they are due."""
    return codes >> KIND_SHIFT & 0x3F, codes & DUE_MASK


def kind_and_due(code: int) -> tuple[int, int]:
    """The same for one code."""
    return code >> KIND_SHIFT & 0x3F, code & DUE_MASK


def timer_kind(properties: bytes) -> int:
    """What a record of the timer topic is."""
    # Nearly all are timers: that a name is nowhere in it is told faster than where it is.
    if _DELETE_KEY in properties and find_property(properties, _DELETE_KEY):
        return CUT if find_property(properties, _CUT) else CANCEL
    return MOVED if _MOVE in properties and find_property(properties, _MOVE) else TIMER


def timer_code_of(properties: bytes, import_precision_ms: int) -> int:
    """The code of a record of the timer topic.

    RocketMQ rounds the due time down before it writes it: a record of its own is due at most so much later.
    """
    due = find_property(properties, _DUE_MS)
    if due and is_due(due):
        return timer_code(timer_kind(properties), int(due))
    rounded = find_property(properties, _TIMER_OUT_MS)
    due_ms = int(rounded) + import_precision_ms if rounded and is_due(rounded) else UNKNOWN_DUE_MS
    return timer_code(timer_kind(properties), due_ms)


def is_due(text: bytes) -> bool:
    """Whether a property's value can be a due time."""
    return text.isdigit() and len(text) <= MAX_DUE_DIGITS


def timer_id_of(text: bytes, entry: int) -> int:
    """The entry that first scheduled a timer, as its property tells; its own where that is missing or no number."""
    return int(text) if text.isdigit() and len(text) <= MAX_ENTRY_DIGITS else entry


def real_topic(properties: bytes) -> str:
    """The topic that a waiting record is for."""
    return (find_property(properties, _REAL_TOPIC) or b"").decode(errors="replace")


def real_queue(properties: bytes) -> tuple[str, int] | None:
    """The same with the queue's id; None where there can be no such queue."""
    topic, queue_id = real_topic(properties), find_property(properties, _REAL_QUEUE_ID) or b""
    if not is_stored_topic(topic) or not queue_id.isdigit() or len(queue_id) > _MAX_QUEUE_ID_DIGITS:
        return None
    return topic, int(queue_id)
