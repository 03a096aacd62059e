"""Fast admission of the ordinary delayed messages of a batch: the same result as `Admission.admit`, but faster.

Nearly all delayed messages are ordinary. The messages of a batch share topic, queue and time, so most of the added
properties are the same for all.
"""

from latermq.errors import IllegalMessage
from latermq.message.names import SCHEDULE_TOPIC, TIMER_TOPIC
from latermq.message.properties import (
    DELAY_LEVEL,
    DUE_MS,
    OWN_PREFIX,
    PROPERTY_END,
    REAL_QUEUE_ID,
    REAL_TOPIC,
    TIMER_OUT_MS,
    UNIQUE_KEY,
    distinct_properties,
)
from latermq.message.slots import slot_of
from latermq.timer.admission import SPECIAL_PROPERTIES, TIMES, Admission, Wait

_SPECIAL_FOR_LEVELS = (SPECIAL_PROPERTIES | TIMES.keys()) - {DELAY_LEVEL}

# The fields of Admitted: topic, queue id, properties, how it waits, level, due time. A named tuple would cost 0.3 µs.
Waiting = tuple[str, int, str, Wait, int, int]


class OrdinaryWaits:
    """Ordinary delayed messages of one batch."""

    def __init__(self, admission: Admission, topic: str, queue_id: int, now_ms: int) -> None:
        self._admission = admission
        self._now_ms = now_ms
        self._real_queue = f"{REAL_TOPIC}\x01{topic}\x02{REAL_QUEUE_ID}\x01{queue_id}\x02{DUE_MS}\x01"
        self._levels: dict[str, tuple[int, int] | None] = {}  # level and due time, by the text in the message

    def find(self, encoded: str) -> Waiting | None:
        """Return where a message with these properties waits; None if they are not ordinary, or invalid."""
        properties = distinct_properties(encoded)
        if properties is None or OWN_PREFIX in encoded:
            return None
        end = "" if encoded[-1] == PROPERTY_END else PROPERTY_END
        if DELAY_LEVEL in properties:
            known = self._level(properties[DELAY_LEVEL])
            if known is None or not _SPECIAL_FOR_LEVELS.isdisjoint(properties):
                return None
            level, due_ms = known
            waiting = f"{encoded}{end}{self._real_queue}{due_ms}\x02"
            return SCHEDULE_TOPIC, level - 1, waiting, Wait.LEVEL, level, due_ms
        if not SPECIAL_PROPERTIES.isdisjoint(properties):
            return None
        try:
            named_ms = self._admission.due_ms(properties, self._now_ms)
        except IllegalMessage:
            return None
        if named_ms is None or named_ms <= self._now_ms:
            return None
        if UNIQUE_KEY not in properties:
            end = f"{end}{UNIQUE_KEY}\x01{self._admission.next_name()}\x02"
        waiting = f"{encoded}{end}{TIMER_OUT_MS}\x01{slot_of(named_ms)}\x02{self._real_queue}{named_ms}\x02"
        return TIMER_TOPIC, 0, waiting, Wait.TIMER, 0, named_ms

    def _level(self, text: str) -> tuple[int, int] | None:
        """Return level and due time for this text; None if `admit` rewrites the level or rejects it."""
        if text not in self._levels:
            try:
                level = self._admission.level({DELAY_LEVEL: text})
            except IllegalMessage:
                return None
            is_kept = level and text == str(level)
            self._levels[text] = (level, self._now_ms + self._admission.levels.delay_ms(level)) if is_kept else None
        return self._levels[text]
