"""Timer codes: the kind and due time of an entry of the timer topic, in the tags code of its queue entry.

They are available without reading the record. Bit 62 marks a code of LaterMQ, bits 56 to 61 are the kind, and bits 0 to
55 the due time. RocketMQ stores the hash of a tag there, which is a sign-extended 32-bit number and is never mistaken
for a timer code.
"""

import numpy as np

from latermq.arrays import Bools, Ints, Ints8
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
TIMER, CANCEL, MOVED, CUT = range(4)  # a renewal is a TIMER too
MAX_DUE_DIGITS = 15  # about 30,000 years: more do not fit next to the kind, or below FOREVER_MS of cut.py
MAX_ENTRY_DIGITS = 18
_MAX_QUEUE_ID_DIGITS = 5
UNKNOWN_DUE_MS = 0  # of a record without a due time, which is never delivered

_DUE_MS, _TIMER_OUT_MS = DUE_MS.encode(), TIMER_OUT_MS.encode()
_CUT, _DELETE_KEY, _MOVE, _REAL_QUEUE_ID, _REAL_TOPIC = (
    CUT_PROPERTY.encode(),
    TIMER_DELETE_KEY.encode(),
    MOVE.encode(),
    REAL_QUEUE_ID.encode(),
    REAL_TOPIC.encode(),
)


def timer_code(kind: int, due_ms: int) -> int:
    """Encode kind and due time."""
    return FLAG | kind << KIND_SHIFT | due_ms


def is_timer_code(codes: Ints) -> Bools:
    """Which of these codes are LaterMQ's."""
    ours: Bools = codes >> 62 == 1
    return ours


def kinds_and_dues(codes: Ints) -> tuple[Ints, Ints]:
    """The kinds and due times in many codes."""
    return codes >> KIND_SHIFT & 0x3F, codes & DUE_MASK


def kind_and_due(code: int) -> tuple[int, int]:
    """The kind and due time in one code."""
    return code >> KIND_SHIFT & 0x3F, code & DUE_MASK


def schedules(kinds: Ints | Ints8) -> Bools:
    """Which kinds schedule a timer: timers and moves."""
    return np.equal(kinds, TIMER) | np.equal(kinds, MOVED)


def cancels(kinds: Ints | Ints8) -> Bools:
    """Which kinds end the earlier timers of a name: cancels and moves."""
    return np.equal(kinds, CANCEL) | np.equal(kinds, MOVED)


def timer_kind(properties: bytes) -> int:
    """The kind of a record of the timer topic."""
    # Nearly all are timers, and `in` detects a missing name faster than `find_property` does.
    if _DELETE_KEY in properties and find_property(properties, _DELETE_KEY):
        return CUT if find_property(properties, _CUT) else CANCEL
    return MOVED if _MOVE in properties and find_property(properties, _MOVE) else TIMER


def timer_code_of(properties: bytes, import_precision_ms: int) -> int:
    """The code of a record of the timer topic.

    RocketMQ rounds due times down by up to `import_precision_ms` before it writes them. This is added to the due time
    of a record that RocketMQ wrote, so that it is not delivered early.
    """
    due = find_property(properties, _DUE_MS)
    if due and is_due(due):
        return timer_code(timer_kind(properties), int(due))
    rounded = find_property(properties, _TIMER_OUT_MS)
    due_ms = int(rounded) + import_precision_ms if rounded and is_due(rounded) else UNKNOWN_DUE_MS
    return timer_code(timer_kind(properties), due_ms)


def is_due(text: bytes) -> bool:
    """Whether the value of a property is a valid due time."""
    return text.isdigit() and len(text) <= MAX_DUE_DIGITS


def timer_id_of(text: bytes, entry: int) -> int:
    """The entry that first scheduled a timer, from its property; `entry` if that is missing or not valid."""
    return int(text) if text.isdigit() and len(text) <= MAX_ENTRY_DIGITS else entry


def real_topic(properties: bytes) -> str:
    """The destination topic of a waiting record."""
    return (find_property(properties, _REAL_TOPIC) or b"").decode(errors="replace")


def real_queue(properties: bytes) -> tuple[str, int] | None:
    """The destination topic and queue id of a waiting record; None if they are not valid."""
    topic, queue_id = real_topic(properties), find_property(properties, _REAL_QUEUE_ID) or b""
    if not is_stored_topic(topic) or not queue_id.isdigit() or len(queue_id) > _MAX_QUEUE_ID_DIGITS:
        return None
    return topic, int(queue_id)
