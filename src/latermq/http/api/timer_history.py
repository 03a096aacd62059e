"""What happened to a timer, from its records in the logs of the brokers: scheduled, moved, cancelled, delivered."""

import asyncio
from collections.abc import Sequence
from http import HTTPStatus
from typing import Literal, NamedTuple

import msgspec

from latermq.client import Message
from latermq.http.brokers import Brokers
from latermq.http.endpoint import Answer, Call, Endpoint
from latermq.http.timer_request import time_text
from latermq.message.names import TIMER_TOPIC
from latermq.message.properties import DUE_MS, MOVE, REAL_TOPIC, TIMER_DELETE_KEY, TIMER_ID
from latermq.message.timer_ids import parse_timer_id
from latermq.message.timer_name import timer_name

MAX_RECORDS = 64  # of one name in one topic of one broker; a timer that was moved more often has lost its oldest moves


class TimerEvent(msgspec.Struct, omit_defaults=True):
    """A step in the life of a timer. `due_ms` is its due time from then on; `late_ms` is how late it was delivered."""

    event: Literal["scheduled", "moved", "cancelled", "delivered"]
    at: str
    at_ms: int
    broker: str
    due_ms: int = 0
    late_ms: int | None = None
    queue_id: int | None = None
    queue_offset: int | None = None


class TimerHistory(msgspec.Struct):
    """The steps of a timer in their order, as far as the brokers still have the records."""

    events: list[TimerEvent]


class _Found(NamedTuple):
    """A record, and the broker that has it."""

    broker: str
    message: Message


class TimerHistoryApi:
    """Answers GET /api/v1/timers/{id}/history."""

    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers

    @property
    def endpoints(self) -> list[Endpoint]:
        path, answers = "/api/v1/timers/{id}/history", {HTTPStatus.OK: TimerHistory}
        return [Endpoint("GET", path, self._answer, "Show what happened to a timer", answers, "timers")]

    async def _answer(self, call: Call) -> Answer:
        return Answer(TimerHistory(await self.events(*parse_timer_id(call.path["id"]))))

    async def events(self, topic: str, unique_key: str) -> list[TimerEvent]:
        """Return the steps of a timer. A message that was never a timer has been delivered only."""
        holders = await self._brokers.holders_of(topic)
        names = ((TIMER_TOPIC, unique_key), (TIMER_TOPIC, timer_name(topic, unique_key)), (topic, unique_key))

        async def ask(broker: str, address: str, searched: str, key: str) -> list[_Found]:
            found = await self._brokers.records_of(address, searched, key, MAX_RECORDS)
            return [_Found(broker, message) for message in found]

        parts = await asyncio.gather(*(ask(*holder, *name) for holder in holders.items() for name in names))
        return events_of(topic, [one for part in parts for one in part])


def events_of(topic: str, records: Sequence[_Found]) -> list[TimerEvent]:
    """Return what the records of one timer say, in the order in which they were stored."""
    events: list[TimerEvent] = []
    due_ms = 0
    for broker, message in sorted(records, key=lambda one: (one[1].store_timestamp_ms, one[1].physical_offset)):
        at_ms, properties = message.store_timestamp_ms, message.properties
        if message.topic != topic and properties.get(REAL_TOPIC, topic) != topic:
            continue  # a retry of the message, which waits under the same unique key
        event = TimerEvent("scheduled", time_text(at_ms), at_ms, broker)
        if message.topic == topic:
            event.event = "delivered"
            event.queue_id, event.queue_offset = message.queue_id, message.queue_offset
            event.late_ms = max(0, at_ms - due_ms) if due_ms else None
        elif TIMER_DELETE_KEY in properties:
            event.event = "cancelled"
        else:
            new_due_ms = _number(properties.get(DUE_MS, ""))
            is_copy = TIMER_ID in properties and new_due_ms == due_ms and MOVE in properties
            if is_copy or (TIMER_ID in properties and MOVE not in properties):  # a renewal
                continue
            event.event = "moved" if MOVE in properties else "scheduled"
            event.due_ms = due_ms = new_due_ms
        events.append(event)
    return events


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else 0
