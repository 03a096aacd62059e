"""What became of a message: scheduled, stored, read by groups, failed, retried, given up as dead letter, sent again.

It is put together from the records that brokers have under the unique key of the message, which all its copies keep,
and from the offsets of the groups. Brokers write nothing extra for it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from typing import Annotated, Literal, NamedTuple, TypeVar

import msgspec

from latermq.access.resources import GET, SUB
from latermq.client import Message, MessageQueue
from latermq.client.dead_letters import find_by_offset_id, original_topic, reason_of
from latermq.errors import InvalidParameter, LaterMQError, QueryNotFound
from latermq.http.api.access_rules import ALL_GROUPS, group_access
from latermq.http.api.timer_history import TimerEvent, TimerHistoryApi
from latermq.http.brokers import Brokers
from latermq.http.endpoint import Answer, Call, Endpoint
from latermq.http.timer_request import time_text
from latermq.message.names import (
    DEAD_LETTER_PREFIX,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    check_topic,
    dead_letter_topic,
    group_of,
    retry_topic,
)
from latermq.message.properties import (
    DUE_MS,
    KEYS,
    ORIGIN_GROUP,
    ORIGIN_MESSAGE_ID,
    REAL_TOPIC,
    TIMER_ID,
    UNIQUE_KEY,
)
from latermq.model.topic_access import topic_access

MAX_TRACED = 10  # messages that one answer traces
MAX_GROUPS = 50  # groups that are asked about them
MAX_RECORDS = 64  # of a message in one topic of one broker
AT_ONCE = 16  # requests to brokers at the same time

Step = Literal[
    "scheduled", "moved", "cancelled", "delivered", "stored", "failed", "retried", "dead-letter", "sent-again"
]
GroupStep = Literal["waiting", "read", "retrying", "dead-letter"]
T = TypeVar("T")


class TraceQuery(msgspec.Struct, forbid_unknown_fields=True):
    """Messages of a topic with a key, or the one with an `id`: the unique key that its sender got, or an offset id."""

    topic: Annotated[str, msgspec.Meta(min_length=1, max_length=255)]
    key: Annotated[str, msgspec.Meta(max_length=16_384)] = ""
    id: Annotated[str, msgspec.Meta(max_length=16_384)] = ""


class TraceStep(msgspec.Struct, omit_defaults=True):
    """One step. `group` is whose step it is, `due_ms` when the next attempt is due, `attempt` counts failures."""

    step: Step
    at: str
    at_ms: int
    broker: str
    topic: str = ""
    group: str = ""
    queue_id: int | None = None
    queue_offset: int | None = None
    due_ms: int = 0
    late_ms: int | None = None
    attempt: int = 0
    reason: str = ""
    message_id: str = ""


class GroupTrace(msgspec.Struct):
    """How far a group is with a message.

    `waiting`: its offset is before the message. `read`: it is behind it, so the message was consumed, or skipped by a
    filter or a reset. `retrying`: it failed, and its next attempt is not read yet. `dead-letter`: the group gave it up.
    """

    group: str
    state: GroupStep
    retries: int


class MessageTrace(msgspec.Struct):
    """A message, its steps in their order, and the groups that consume its topic."""

    message_id: str
    topic: str
    keys: list[str]
    steps: list[TraceStep]
    groups: list[GroupTrace]


class MessageTraces(msgspec.Struct):
    """Traced messages, in the order in which they were stored. `left_out` further ones have the same key.

    If `is_partial`, there may be groups that the user has no right to. They and their steps are not shown.
    """

    messages: list[MessageTrace]
    left_out: int = 0
    is_partial: bool = False


class Found(NamedTuple):
    """A record, and the broker that has it."""

    broker: str
    message: Message


class _Scope(NamedTuple):
    """What all messages of one answer have in common."""

    topic: str
    masters: Mapping[str, str]
    groups: Sequence[str]
    topics: Sequence[str]  # where copies may be
    offsets: Mapping[str, Mapping[MessageQueue, int]]  # by group
    shows: Callable[[str], bool]  # a group


class MessageTraceApi:
    """Answers GET /api/v1/messages/trace."""

    def __init__(self, brokers: Brokers, history: TimerHistoryApi) -> None:
        self._brokers = brokers
        self._history = history

    @property
    def endpoints(self) -> list[Endpoint]:
        path, answers = "/api/v1/messages/trace", {HTTPStatus.OK: MessageTraces}
        summary = "Show what became of messages"
        return [Endpoint("GET", path, self._answer, summary, answers, "messages", query=TraceQuery)]

    async def _answer(self, call: Call) -> Answer:
        query: TraceQuery = call.query
        check_topic(query.topic)
        if bool(query.key) == bool(query.id):
            raise InvalidParameter("exactly one of key and id is required")
        masters = await self._brokers.masters()
        turns = asyncio.Semaphore(AT_ONCE)
        topic, names = await self._names(query, masters, turns)
        if topic != query.topic:  # the one that the message was first sent to
            call.permit(topic_access(topic, (SUB, GET)))
        if not names:
            raise QueryNotFound("no such message is stored", hint="It may be older than store.retention")
        scope = await self._scope(topic, masters, turns, lambda group: call.sees(group_access(group, SUB, GET)))
        traces = await asyncio.gather(*(self._trace(name, scope, turns) for name in names[:MAX_TRACED]))
        found = [one for one in traces if one.steps]
        is_partial = not call.sees(group_access(ALL_GROUPS, SUB, GET))
        return Answer(MessageTraces(found, max(0, len(names) - MAX_TRACED), is_partial))

    async def _names(
        self, query: TraceQuery, masters: Mapping[str, str], turns: asyncio.Semaphore
    ) -> tuple[str, list[str]]:
        """Return the topic that the messages were sent to, and their unique keys."""
        searched = (query.topic, TIMER_TOPIC, SCHEDULE_TOPIC)
        ask = self._brokers.keyed_records_of if query.key else self._brokers.records_of
        found = await _all(
            turns,
            (partial(ask, at, of, query.key or query.id, MAX_RECORDS) for at in masters.values() for of in searched),
        )
        records = [one for part in found for one in part if _belongs(one, query.topic)]
        if not records and query.id:
            try:
                records = [await find_by_offset_id(self._brokers, query.id)]
            except LaterMQError:
                return query.topic, []
            if records[0].topic != query.topic:
                return query.topic, []
        records.sort(key=lambda one: (one.store_timestamp_ms, one.physical_offset))
        topic = query.topic
        if topic.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX)) and records:
            topic = original_topic(records[0]) or topic
        return topic, list(dict.fromkeys(one.properties.get(UNIQUE_KEY, one.message_id) for one in records))

    async def _scope(
        self, topic: str, masters: Mapping[str, str], turns: asyncio.Semaphore, shows: Callable[[str], bool]
    ) -> _Scope:
        """Find the groups of a topic, the topics of their copies, and their offsets."""
        known = set(await self._brokers.topics())
        consuming = set(await self._brokers.groups_of(topic)) if topic in known else set[str]()
        dead = {group_of(name) for name in known if name.startswith(DEAD_LETTER_PREFIX)}
        # Those that consume the topic come first: a group may have dead letters of other topics.
        groups = [name for name in (*sorted(consuming), *sorted(dead - consuming)) if shows(name)][:MAX_GROUPS]
        copies = [
            name
            for group in groups
            for name in (
                retry_topic(group),
                f"{retry_topic(group)}_{topic}",
                f"{retry_topic(group)}+{topic}",
                dead_letter_topic(group),
            )
            if name in known
        ]

        async def offsets(group: str) -> dict[MessageQueue, int]:
            try:
                found = await self._brokers.consume_stats(group)
            except LaterMQError:  # of a group without offsets
                return {}
            return {queue: one.consumerOffset for queue, one in found.items()}

        asked = [group for group in groups if group in consuming]
        read = await _all(turns, (partial(offsets, group) for group in asked))
        return _Scope(topic, masters, groups, list(dict.fromkeys(copies)), dict(zip(asked, read, strict=True)), shows)

    async def _trace(self, unique_key: str, scope: _Scope, turns: asyncio.Semaphore) -> MessageTrace:
        """Ask all brokers for the records of one message."""

        async def ask(broker: str, address: str, topic: str) -> list[Found]:
            found = await self._brokers.records_of(address, topic, unique_key, MAX_RECORDS)
            return [Found(broker, message) for message in found]

        searched = (scope.topic, SCHEDULE_TOPIC, TIMER_TOPIC, *scope.topics)
        parts, events = await asyncio.gather(
            _all(turns, (partial(ask, *of, to) for of in scope.masters.items() for to in searched)),
            self._history.events(scope.topic, unique_key),
        )
        found = [one for part in parts for one in part]
        steps = [step for step in steps_of(scope.topic, events, found) if not step.group or scope.shows(step.group)]
        keys = next((one.message.properties[KEYS] for one in found if one.message.properties.get(KEYS)), "")
        steps += await self._sent_again(unique_key, keys.split(), found, scope, turns)
        steps.sort(key=lambda step: step.at_ms)
        return MessageTrace(unique_key, scope.topic, keys.split(), steps, groups_of(steps, scope.offsets))

    async def _sent_again(
        self, unique_key: str, keys: Sequence[str], found: Sequence[Found], scope: _Scope, turns: asyncio.Semaphore
    ) -> list[TraceStep]:
        """Find the messages that were made of dead letters of this one. They keep its keys, and name a copy of it."""
        ids = {one.message.message_id for one in found} | {
            one.message.properties.get(ORIGIN_MESSAGE_ID, "") for one in found
        }
        if not keys or not any(one.message.topic.startswith(DEAD_LETTER_PREFIX) for one in found):
            return []
        asked = [(broker, address, key) for broker, address in scope.masters.items() for key in keys]
        of_key = self._brokers.keyed_records_of
        parts = await _all(turns, (partial(of_key, at, scope.topic, key, MAX_RECORDS) for _, at, key in asked))
        again = {
            message.message_id: _step("sent-again", broker, message)
            for (broker, _, _), part in zip(asked, parts, strict=True)
            for message in part
            if message.properties.get(UNIQUE_KEY) != unique_key and message.properties.get(ORIGIN_MESSAGE_ID) in ids
        }
        return list(again.values())


async def _all(turns: asyncio.Semaphore, calls: Iterable[Callable[[], Awaitable[T]]]) -> list[T]:
    """Make calls at the same time, but not too many."""

    async def one(call: Callable[[], Awaitable[T]]) -> T:
        async with turns:
            return await call()

    return list(await asyncio.gather(*map(one, calls)))


def _belongs(message: Message, topic: str) -> bool:
    """Whether a record is a message of a topic, or waits to become one."""
    return message.topic == topic or message.properties.get(REAL_TOPIC) == topic


def steps_of(topic: str, events: Sequence[TimerEvent], found: Sequence[Found]) -> list[TraceStep]:
    """Return what the records of one message say. `events` are those of the timer that it was, if it was one."""
    was_timer = any(event.event == "scheduled" for event in events)
    steps = [
        TraceStep(
            "stored" if event.event == "delivered" and not was_timer else event.event,
            event.at,
            event.at_ms,
            event.broker,
            topic,
            queue_id=event.queue_id,
            queue_offset=event.queue_offset,
            due_ms=event.due_ms,
            late_ms=event.late_ms,
        )
        for event in events
    ]
    for broker, message in found:
        to = message.properties.get(REAL_TOPIC, "")
        if message.topic.startswith(DEAD_LETTER_PREFIX):
            step = _step("dead-letter", broker, message)
            step.reason = reason_of(message)
        elif message.topic.startswith(RETRY_PREFIX):
            step = _step("retried", broker, message)
        elif message.topic in (SCHEDULE_TOPIC, TIMER_TOPIC) and to.startswith(RETRY_PREFIX):
            if TIMER_ID in message.properties:  # a renewal
                continue
            step = _step("failed", broker, message)
            step.due_ms = _number(message.properties.get(DUE_MS, ""))
            step.queue_id = step.queue_offset = None
        else:
            continue
        step.attempt = message.reconsume_times
        step.group = _group_of(message)
        steps.append(step)
    return sorted(steps, key=lambda step: step.at_ms)


def groups_of(steps: Sequence[TraceStep], offsets: Mapping[str, Mapping[MessageQueue, int]]) -> list[GroupTrace]:
    """Return how far each group is: those that consume the topic, and those that have failed."""
    stored = [step for step in steps if step.step in ("stored", "delivered")]
    failed = {step.group for step in steps if step.group}
    traces = []
    for group in sorted({*offsets, *failed}):
        own = [step for step in steps if step.group == group]
        retries = sum(step.step == "retried" for step in own)
        last = own[-1] if own else stored[-1] if stored else None
        state: GroupStep = "waiting"
        if last is not None and last.step == "dead-letter":
            state = "dead-letter"
        elif last is not None and _is_read(last, offsets.get(group, {})):
            state = "read"
        elif own:
            state = "retrying"
        traces.append(GroupTrace(group, state, retries))
    return traces


def _is_read(step: TraceStep, offsets: Mapping[MessageQueue, int]) -> bool:
    if step.queue_id is None or step.queue_offset is None:
        return False
    return offsets.get(MessageQueue(step.topic, step.broker, step.queue_id), 0) > step.queue_offset


def _step(step: Step, broker: str, message: Message) -> TraceStep:
    at_ms = message.store_timestamp_ms
    return TraceStep(
        step,
        time_text(at_ms),
        at_ms,
        broker,
        message.topic,
        queue_id=message.queue_id,
        queue_offset=message.queue_offset,
        message_id=message.properties.get(UNIQUE_KEY, message.message_id),
    )


def _group_of(message: Message) -> str:
    properties = message.properties
    topic = properties.get(REAL_TOPIC, "") if message.topic in (SCHEDULE_TOPIC, TIMER_TOPIC) else message.topic
    # A copy of a pop names its group, which cannot be read from the name of its topic.
    return properties.get(ORIGIN_GROUP) or group_of(topic)


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else 0
