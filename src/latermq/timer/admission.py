"""Admission: whether a message arrives now or later, told from its properties."""

from typing import NamedTuple

from latermq.errors import IllegalMessage
from latermq.message.names import SCHEDULE_TOPIC
from latermq.message.properties import (
    DELAY_LEVEL,
    DUE_MS,
    OWN_PREFIX,
    REAL_QUEUE_ID,
    REAL_TOPIC,
    decode_properties,
    encode_properties,
)
from latermq.timer.levels import LevelTable

TIMER_OUT_MS = "TIMER_OUT_MS"
# Ways to name a due time that this version does not know yet; they are refused, since delivering now would be early.
TIMER_PROPERTIES = (
    "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS", "__STARTDELIVERTIME", "TIMER_DEL_UNIQKEY",
)  # fmt: skip
# What makes a message that is put again start clean: nothing of an earlier wait may delay it once more.
_SCHEDULING_PROPERTIES = (DELAY_LEVEL, REAL_TOPIC, REAL_QUEUE_ID, "__STARTDELIVERTIME")


class Admitted(NamedTuple):
    """Where a message goes: its own topic and queue, or those where it waits."""

    topic: str
    queue_id: int
    properties: str
    level: int  # 0: not delayed
    due_ms: int


class Admission:
    """Sorts messages into those for now and those for later."""

    def __init__(self, levels: LevelTable) -> None:
        self._levels = levels

    def admit(self, topic: str, queue_id: int, encoded: str, now_ms: int) -> Admitted:
        """Decide for one message."""
        properties = decode_properties(encoded)
        for name in [name for name in properties if name.startswith(OWN_PREFIX) or name == TIMER_OUT_MS]:
            del properties[name]
        level = self._level(properties)
        if level:
            for name in TIMER_PROPERTIES:
                properties.pop(name, None)
            due_ms = now_ms + self._levels.delay_ms(level)
            properties |= {
                DELAY_LEVEL: str(level), REAL_TOPIC: topic, REAL_QUEUE_ID: str(queue_id), DUE_MS: str(due_ms),
            }  # fmt: skip
            return Admitted(SCHEDULE_TOPIC, level - 1, encode_properties(properties), level, due_ms)
        for name in TIMER_PROPERTIES:
            if name in properties:
                raise IllegalMessage(
                    f"the message asks for a timer ({name}), which this version cannot give",
                    hint="Use a delay level; delivering it at once would be early",
                )
        return Admitted(topic, queue_id, encode_properties(properties), 0, now_ms)

    def _level(self, properties: dict[str, str]) -> int:
        text = properties.get(DELAY_LEVEL)
        if text is None:
            return 0
        if not (text.isascii() and text.isdigit() and len(text) < 10):
            raise IllegalMessage(
                f"{DELAY_LEVEL} is {text[:40]!r}, which is no delay level", hint=f"Levels are 0 to {len(self._levels)}"
            )
        return self._levels.clamp(int(text))


def without_scheduling(properties: dict[str, str]) -> dict[str, str]:
    """The properties without anything an earlier wait left: what is put again starts clean."""
    return {
        name: value
        for name, value in properties.items()
        if name not in _SCHEDULING_PROPERTIES and not name.startswith(("TIMER_", OWN_PREFIX))
    }
