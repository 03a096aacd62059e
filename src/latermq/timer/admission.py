"""Admission: decides from a message's properties whether it is delivered now or later."""

from collections.abc import Callable
from enum import IntEnum
from typing import NamedTuple

from latermq.errors import IllegalMessage
from latermq.message.names import SCHEDULE_TOPIC, TIMER_TOPIC
from latermq.message.properties import (
    DELAY_LEVEL,
    DUE_MS,
    OWN_PREFIX,
    PROPERTY_END,
    REAL_QUEUE_ID,
    REAL_TOPIC,
    START_DELIVER_TIME,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELETE_KEY,
    TIMER_DELIVER_MS,
    TIMER_OUT_MS,
    TIMER_ROLL_TIMES,
    UNIQUE_KEY,
    decode_properties,
    distinct_properties,
    encode_properties,
)
from latermq.message.slots import slot_of
from latermq.timer.levels import LevelTable

# The properties that set a timer's time; the first one present counts. Values: the factor to milliseconds, and whether
# the time is relative to now.
TIMES = {
    TIMER_DELAY_SEC: (1_000, True),
    TIMER_DELAY_MS: (1, True),
    TIMER_DELIVER_MS: (1, False),
    START_DELIVER_TIME: (1, False),
}
_BROKER_PROPERTIES = (TIMER_OUT_MS, TIMER_ROLL_TIMES)  # removed from incoming messages
# Properties that no ordinary timer has: they change its destination or are removed from it.
SPECIAL_PROPERTIES = frozenset((*_BROKER_PROPERTIES, DELAY_LEVEL, TIMER_DELETE_KEY, REAL_TOPIC, REAL_QUEUE_ID))
# Removed from a message that is stored again, so that nothing of an earlier wait delays it a second time.


class Wait(IntEnum):
    """How a message waits."""

    NONE = 0
    LEVEL = 1
    TIMER = 2
    CANCEL = 3  # not a message, but the cancel of one


class Admitted(NamedTuple):
    """Where a message is stored: its own topic and queue, or those in which it waits."""

    topic: str
    queue_id: int
    properties: str
    wait: Wait
    level: int
    due_ms: int


class OrdinaryTimer(NamedTuple):
    """A timer with a name, a future due time, and properties that stay unchanged."""

    properties: str  # of the waiting record
    due_ms: int
    unique_key: str


class Admission:
    """Separates messages to be delivered now from delayed ones."""

    def __init__(self, levels: LevelTable, max_delay_ms: int, next_name: Callable[[], str]) -> None:
        """`next_name` returns a unique key for a timer sent without one: only a named timer can be cancelled."""
        self.levels = levels
        self._max_delay_ms = max_delay_ms
        self.next_name = next_name

    def admit(self, topic: str, queue_id: int, encoded: str, now_ms: int, *, is_abridged: bool = False) -> Admitted:
        """Decide where one message is stored. With `is_abridged`, the record of a timer has SYSFLAG_ABRIDGED."""
        properties = decode_properties(encoded)
        for name in [name for name in properties if name.startswith(OWN_PREFIX) or name in _BROKER_PROPERTIES]:
            del properties[name]
        level = self.level(properties)
        if level:
            for name in (*TIMES, TIMER_DELETE_KEY):
                properties.pop(name, None)
            due_ms = now_ms + self.levels.delay_ms(level)
            properties |= {
                DELAY_LEVEL: str(level), REAL_TOPIC: topic, REAL_QUEUE_ID: str(queue_id), DUE_MS: str(due_ms),
            }  # fmt: skip
            return Admitted(SCHEDULE_TOPIC, level - 1, encode_properties(properties), Wait.LEVEL, level, due_ms)
        named_ms = self.due_ms(properties, now_ms)
        if properties.get(TIMER_DELETE_KEY):
            return self._admit_cancel(topic, queue_id, properties, now_ms, named_ms)
        if named_ms is None or named_ms <= now_ms:
            return Admitted(topic, queue_id, encode_properties(properties), Wait.NONE, 0, now_ms)
        if not properties.get(UNIQUE_KEY):
            properties[UNIQUE_KEY] = self.next_name()
        waiting = waiting_properties(properties, topic, queue_id, named_ms, is_abridged=is_abridged)
        return Admitted(TIMER_TOPIC, 0, encode_properties(waiting), Wait.TIMER, 0, named_ms)

    def ordinary_timer(self, topic: str, queue_id: int, encoded: str, now_ms: int) -> OrdinaryTimer | None:
        """Return the same as `admit` for an ordinary timer, abridged and four times as fast; None for others.

        Nearly all are ordinary.
        """
        properties = distinct_properties(encoded)
        if properties is None or OWN_PREFIX in encoded or not SPECIAL_PROPERTIES.isdisjoint(properties):
            return None
        try:
            due_ms = self.due_ms(properties, now_ms)
        except IllegalMessage:
            return None
        unique_key = properties.get(UNIQUE_KEY)
        if due_ms is None or due_ms <= now_ms or unique_key is None:
            return None
        end = "" if encoded[-1] == PROPERTY_END else PROPERTY_END
        return OrdinaryTimer(
            f"{encoded}{end}{REAL_TOPIC}\x01{topic}\x02{REAL_QUEUE_ID}\x01{queue_id}\x02{DUE_MS}\x01{due_ms}\x02",
            due_ms,
            unique_key,
        )

    def _admit_cancel(
        self, topic: str, queue_id: int, properties: dict[str, str], now_ms: int, named_ms: int | None
    ) -> Admitted:
        """Admit RocketMQ's form of a cancel, which is a message. The due time of the timer does not matter here."""
        if named_ms is not None and named_ms <= now_ms:
            raise IllegalMessage(
                f"a cancel ({TIMER_DELETE_KEY}) needs a time in the future", hint="Set the due time of the timer"
            )
        due_ms = named_ms or now_ms
        waiting = waiting_properties(properties, topic, queue_id, due_ms)
        return Admitted(TIMER_TOPIC, 0, encode_properties(waiting), Wait.CANCEL, 0, due_ms)

    def level(self, properties: dict[str, str]) -> int:
        """Return the delay level of a message; 0 if it has none."""
        text = properties.get(DELAY_LEVEL)
        if text is None:
            return 0
        if not (text.isascii() and text.isdigit() and len(text) < 10):
            raise IllegalMessage(
                f"{DELAY_LEVEL} is {text[:40]!r}, which is not a delay level",
                hint=f"Levels are 0 to {len(self.levels)}",
            )
        return self.levels.clamp(int(text))

    def due_ms(self, properties: dict[str, str], now_ms: int) -> int | None:
        """Return the due time that a message requests; None if it requests none."""
        for name, (factor, from_now) in TIMES.items():
            text = properties.get(name)
            if text is None:
                continue
            if not (text.isascii() and text.isdigit()):
                what = "negative" if text[:1] == "-" and text[1:].isdigit() else "not an integer"
                raise IllegalMessage(f"{name} is {text[:40]!r}, which is {what}", hint=self._limit_hint(from_now))
            # No valid time has more than 19 digits. Longer values are not parsed.
            value_ms = int(text) * factor if len(text) <= 19 else 1 << 63
            due_ms = now_ms + value_ms if from_now else value_ms
            if due_ms - now_ms > self._max_delay_ms:
                self.check_due(due_ms, now_ms, f"{name} is {text[:40]!r}", from_now)
            return due_ms
        return None

    def check_due(self, due_ms: int, now_ms: int, what: str, from_now: bool = False) -> None:
        """Raise if a time is too far ahead; `what` says where it comes from."""
        if due_ms - now_ms > self._max_delay_ms:
            raise IllegalMessage(
                f"{what}, which is more than {self._max_delay_ms} ms ahead (timer.max_delay)",
                hint=self._limit_hint(from_now),
            )

    def _limit_hint(self, from_now: bool) -> str:
        unit = "a delay" if from_now else "a time in milliseconds since 1970"
        return f"Set {unit}, at most {self._max_delay_ms // 1000} s from now, or raise timer.max_delay"


def waiting_properties(
    properties: dict[str, str], topic: str, queue_id: int, due_ms: int, *, is_abridged: bool = False
) -> dict[str, str]:
    """Return the properties of a record that waits in the timer topic."""
    waiting = {name: value for name, value in properties.items() if name not in (REAL_TOPIC, REAL_QUEUE_ID)}
    if not is_abridged:
        waiting[TIMER_OUT_MS] = str(slot_of(due_ms))
    return waiting | {REAL_TOPIC: topic, REAL_QUEUE_ID: str(queue_id), DUE_MS: str(due_ms)}


def cancel_properties(encoded: str, name: str, *, is_effective: bool) -> str:
    """Return the final properties of an admitted cancel, once its effect is known.

    The index finds a cancel by the name it cancels. A cancel without effect is not indexed: it says nothing about the
    name, and every look-up of the name would read it for nothing.
    """
    properties = decode_properties(encoded) | {TIMER_DELETE_KEY: name}
    return encode_properties(properties | {UNIQUE_KEY: name} if is_effective else properties)
