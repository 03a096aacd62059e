"""Admission: whether a message arrives now or later, told from its properties."""

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

# How a timer's time can be named, the first that is there counts: by how much one is multiplied to be milliseconds,
# and whether it counts from now.
TIMES = {
    TIMER_DELAY_SEC: (1_000, True),
    TIMER_DELAY_MS: (1, True),
    TIMER_DELIVER_MS: (1, False),
    START_DELIVER_TIME: (1, False),
}
_BROKERS_OWN = (TIMER_OUT_MS, TIMER_ROLL_TIMES)  # what comes from outside under these names is dropped
# What no ordinary timer has: these change where it goes or are taken out of it.
NOT_ORDINARY = frozenset((*_BROKERS_OWN, DELAY_LEVEL, TIMER_DELETE_KEY, REAL_TOPIC, REAL_QUEUE_ID))
# What makes a message that is put again start clean: nothing of an earlier wait may delay it once more.
_SCHEDULING_PROPERTIES = (DELAY_LEVEL, REAL_TOPIC, REAL_QUEUE_ID, START_DELIVER_TIME)


class Wait(IntEnum):
    """How a message waits."""

    NOT = 0
    LEVEL = 1
    TIMER = 2
    CANCEL = 3  # it is not a message, but cancels one


class Admitted(NamedTuple):
    """Where a message goes: its own topic and queue, or those where it waits."""

    topic: str
    queue_id: int
    properties: str
    wait: Wait
    level: int
    due_ms: int


class OrdinaryTimer(NamedTuple):
    """A timer with a name, a time ahead, and properties that stay as they are."""

    properties: str  # of the record that waits
    due_ms: int
    unique_key: str


class Admission:
    """Sorts messages into those for now and those for later."""

    def __init__(self, levels: LevelTable, max_delay_ms: int, next_name: Callable[[], str]) -> None:
        """`next_name` is a unique key for a timer whose sender gave none: only what has a name can be cancelled."""
        self.levels = levels
        self._max_delay_ms = max_delay_ms
        self.next_name = next_name

    def admit(self, topic: str, queue_id: int, encoded: str, now_ms: int) -> Admitted:
        """Decide for one message."""
        properties = decode_properties(encoded)
        for name in [name for name in properties if name.startswith(OWN_PREFIX) or name in _BROKERS_OWN]:
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
            return Admitted(topic, queue_id, encode_properties(properties), Wait.NOT, 0, now_ms)
        if not properties.get(UNIQUE_KEY):
            properties[UNIQUE_KEY] = self.next_name()
        waiting = waiting_properties(properties, topic, queue_id, named_ms)
        return Admitted(TIMER_TOPIC, 0, encode_properties(waiting), Wait.TIMER, 0, named_ms)

    def ordinary_timer(self, topic: str, queue_id: int, encoded: str, now_ms: int) -> OrdinaryTimer | None:
        """What `admit` makes of an ordinary timer, as nearly all are, in a quarter of the time; None for any other."""
        properties = distinct_properties(encoded)
        if properties is None or OWN_PREFIX in encoded or not NOT_ORDINARY.isdisjoint(properties):
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
            f"{encoded}{end}{TIMER_OUT_MS}\x01{slot_of(due_ms)}\x02{REAL_TOPIC}\x01{topic}\x02"
            f"{REAL_QUEUE_ID}\x01{queue_id}\x02{DUE_MS}\x01{due_ms}\x02",
            due_ms,
            unique_key,
        )

    def _admit_cancel(
        self, topic: str, queue_id: int, properties: dict[str, str], now_ms: int, named_ms: int | None
    ) -> Admitted:
        """RocketMQ's way to cancel: a message beside the one it cancels. When that is due does not matter here."""
        if named_ms is not None and named_ms <= now_ms:
            raise IllegalMessage(
                f"{TIMER_DELETE_KEY} with a time that has passed cancels nothing", hint="Name the time of the timer"
            )
        due_ms = named_ms or now_ms
        waiting = waiting_properties(properties, topic, queue_id, due_ms)
        return Admitted(TIMER_TOPIC, 0, encode_properties(waiting), Wait.CANCEL, 0, due_ms)

    def level(self, properties: dict[str, str]) -> int:
        """The delay level of a message, 0 where it has none."""
        text = properties.get(DELAY_LEVEL)
        if text is None:
            return 0
        if not (text.isascii() and text.isdigit() and len(text) < 10):
            raise IllegalMessage(
                f"{DELAY_LEVEL} is {text[:40]!r}, which is no delay level", hint=f"Levels are 0 to {len(self.levels)}"
            )
        return self.levels.clamp(int(text))

    def due_ms(self, properties: dict[str, str], now_ms: int) -> int | None:
        """When a message wants to arrive, None where it does not say."""
        for name, (factor, from_now) in TIMES.items():
            text = properties.get(name)
            if text is None:
                continue
            if not (text.isascii() and text.isdigit()):
                what = "negative" if text[:1] == "-" and text[1:].isdigit() else "no whole number"
                raise IllegalMessage(f"{name} is {text[:40]!r}, which is {what}", hint=self._limit_hint(from_now))
            # Nobody waits for more than 19 digits; longer ones are not even looked at.
            value_ms = int(text) * factor if len(text) <= 19 else 1 << 63
            due_ms = now_ms + value_ms if from_now else value_ms
            if due_ms - now_ms > self._max_delay_ms:
                self.check_due(due_ms, now_ms, f"{name} is {text[:40]!r}", from_now)
            return due_ms
        return None

    def check_due(self, due_ms: int, now_ms: int, what: str, from_now: bool = False) -> None:
        """Refuse a time that is too far ahead; `what` says where it comes from."""
        if due_ms - now_ms > self._max_delay_ms:
            raise IllegalMessage(
                f"{what}, which is more than {self._max_delay_ms} ms ahead (timer.max_delay)",
                hint=self._limit_hint(from_now),
            )

    def _limit_hint(self, from_now: bool) -> str:
        unit = "a delay" if from_now else "a time in milliseconds since 1970"
        return f"Give {unit} of at most {self._max_delay_ms // 1000} s from now, or raise timer.max_delay"


def waiting_properties(properties: dict[str, str], topic: str, queue_id: int, due_ms: int) -> dict[str, str]:
    """The properties of a record that waits in the timer topic."""
    waiting = {name: value for name, value in properties.items() if name not in (REAL_TOPIC, REAL_QUEUE_ID)}
    return waiting | {
        TIMER_OUT_MS: str(slot_of(due_ms)), REAL_TOPIC: topic, REAL_QUEUE_ID: str(queue_id), DUE_MS: str(due_ms),
    }  # fmt: skip


def cancel_properties(encoded: str, name: str, *, is_effective: bool) -> str:
    """The properties of the record of a cancel that `admit` let in, once it is clear what it means.

    The index finds a cancel by the name it cancels. One that cancels nothing is not to be found: it says nothing
    about that name, and whoever looks the name up would read it in vain.
    """
    properties = decode_properties(encoded) | {TIMER_DELETE_KEY: name}
    return encode_properties(properties | {UNIQUE_KEY: name} if is_effective else properties)


def without_scheduling(properties: dict[str, str]) -> dict[str, str]:
    """The properties without anything an earlier wait left: what is put again starts clean."""
    return {
        name: value
        for name, value in properties.items()
        if name not in _SCHEDULING_PROPERTIES and not name.startswith(("TIMER_", OWN_PREFIX))
    }
