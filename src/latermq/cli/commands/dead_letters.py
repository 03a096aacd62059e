"""Implements `latermq dlq`: finds dead letters and resends them to their original topics."""

import dataclasses
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

from latermq.cli.commands.message import stored
from latermq.cli.output import counted, print_json, print_line, print_note, progress
from latermq.cli.views.message_rows import body_text, message_row, moment
from latermq.client import Admin, Message, OutgoingMessage, Producer, PullConsumer
from latermq.errors import LaterMQError, QueryNotFound, TopicNotFound
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
)
from latermq.timer.admission import without_scheduling

_READER = "TOOLS_CONSUMER"  # a pull must name a group; this one exists on every broker
_UNKNOWN_REASON = "unknown"
# Properties that brokers and clients added in transit. Only the sender's own properties are sent again.
_NOTED_ON_THE_WAY = frozenset({
    RETRY_TOPIC, WAIT_STORE_OK, UNIQUE_KEY, TAGS, KEYS, MIN_OFFSET, MAX_OFFSET, PRODUCER_GROUP, RECONSUME_TIME,
    TRANSACTION_PREPARED, "MAX_RECONSUME_TIMES", "MSG_REGION", "TRACE_ON", "CLUSTER", "CONSUME_START_TIME",
})  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Selection:
    """Selects dead letters: by id, or all that match the key, the time range and the start position."""

    ids: tuple[str, ...] = ()
    key: str | None = None
    from_ms: int | None = None
    to_ms: int | None = None
    after_id: str | None = None

    def takes(self, message: Message) -> bool:
        in_time = self.to_ms is None or message.store_timestamp_ms < self.to_ms
        return in_time and (self.key is None or self.key in message.properties.get(KEYS, "").split())


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


def dead_letter_row(message: Message) -> dict[str, Any]:
    """A dead letter as a row for tables and JSON."""
    row = message_row(message)
    told = {"original_topic": original_topic(message), "failures": message.reconsume_times}
    return {**row, **told, "reason": reason_of(message), "stored": moment(message.store_timestamp_ms)}


async def counts(admin: Admin) -> list[dict[str, Any]]:
    """Every dead-letter topic with its number of messages."""
    rows = []
    for topic in await admin.topics():
        if topic_of(topic) != topic:
            continue
        queues = (await admin.topic_stats(topic)).values()
        last_ms = max((queue.lastUpdateTimestamp for queue in queues), default=0)
        rows.append({
            "group": topic.removeprefix(DEAD_LETTER_PREFIX),
            "topic": topic,
            "messages": sum(queue.maxOffset - queue.minOffset for queue in queues),
            "last_stored_ms": last_ms,
            "last_stored": moment(last_ms),
        })  # fmt: skip
    return rows


async def find(admin: Admin, topic: str, message_id: str) -> Message:
    """The dead letter with this message id or offset message id."""
    found = await admin.query_by_unique_key(topic, message_id)
    if found:
        return found[-1]
    # An offset message id contains an address. Query it only if it belongs to a broker of this cluster.
    addresses = {address for broker in await admin.brokers() for address in broker.brokerAddrs.values()}
    try:
        ip, port, _ = parse_offset_message_id(message_id)
        if f"{ip}:{port}" in addresses:
            message = await admin.view_message(message_id)
            if message.topic == topic:
                return message
    except QueryNotFound:
        pass
    raise QueryNotFound(f"{topic} has no message {message_id}", hint="`latermq dlq list GROUP` lists its messages")


async def select(
    admin: Admin, consumer: PullConsumer, topic: str, selection: Selection, looked_at: Callable[[int], None]
) -> AsyncIterator[Message]:
    """The selected dead letters, queue by queue in the order in which they were stored."""
    for message_id in selection.ids:
        yield await find(admin, topic, message_id)
    if selection.ids:
        return
    skipping = selection.after_id is not None
    for queue in sorted(await consumer.queues(topic)):
        async for message in stored(consumer, queue, selection.from_ms):
            looked_at(1)
            if skipping:
                skipping = message.message_id != selection.after_id
            elif selection.takes(message):
                yield message
    if skipping:
        raise QueryNotFound(f"{topic} has no message {selection.after_id}", hint="Use an offset message id")


class Resending:
    """One run of `dlq resend`. It keeps the dead letters, so an interrupted run loses nothing."""

    def __init__(self, name: str, selection: Selection, *, topic: str | None, dry_run: bool, as_json: bool) -> None:
        self._name = name
        self._source = topic_of(name)
        self._selection = selection
        self._topic = topic
        self._dry_run = dry_run
        self._as_json = as_json
        self._sent: Counter[str] = Counter()
        self._last: Message | None = None
        self._known_topics: set[str] = set()

    async def run(self, namesrv: str) -> None:
        async with Admin(namesrv) as admin, PullConsumer(namesrv, group=_READER) as consumer, Producer(namesrv) as out:
            total = len(self._selection.ids) or await _held(consumer, self._source)
            with progress(f"resending {self._source}", total, prints_rows=self._as_json) as advance:
                try:
                    async for message in select(admin, consumer, self._source, self._selection, advance):
                        await self._resend(admin, out, message)
                        self._last = message
                except BaseException:
                    self._tell_how_far()
                    raise
        if not self._sent:
            raise QueryNotFound(f"{self._source} has no such message", hint=f"Try `latermq dlq list {self._name}`")
        if not self._as_json:
            done = "would be resent" if self._dry_run else "resent"
            for topic, count in sorted(self._sent.items()):
                print_line(f"{counted(count, 'message')} {done} to {topic}")

    async def _resend(self, admin: Admin, producer: Producer, message: Message) -> None:
        topic = self._topic or original_topic(message)
        await self._check_topic(admin, topic, message)
        row: dict[str, Any] = {"dead_letter_id": message.message_id, "topic": topic}
        if self._dry_run:
            row |= {"status": "DRY_RUN", "reason": reason_of(message), "body": body_text(message.body)}
        else:
            result = await producer.send(_fresh(message, topic))
            row |= {
                "status": result.status,
                "message_id": result.message_id,
                "offset_message_id": result.offset_message_id,
            }
        self._sent[topic] += 1
        if self._as_json:
            print_json(row)

    async def _check_topic(self, admin: Admin, topic: str, message: Message) -> None:
        """Refuse a topic that does not exist: the send would auto-create it, and no group would consume it."""
        if topic in self._known_topics:
            return
        hint = "Create the topic, or choose another one with --topic"
        if not topic:
            raise LaterMQError(f"message {message.message_id} has no record of its original topic", hint=hint)
        try:
            await admin.route(topic)
        except TopicNotFound:
            raise TopicNotFound(f"topic {topic} of message {message.message_id} does not exist", hint=hint) from None
        self._known_topics.add(topic)

    def _tell_how_far(self) -> None:
        if self._dry_run or self._selection.ids:
            return
        sent = counted(self._sent.total(), "message")
        print_note(f"stopped after {sent}; all dead letters are still in {self._source}")
        if self._last is not None:
            print_note(f"to continue, add --after {self._last.message_id}")


async def _held(consumer: PullConsumer, topic: str) -> int:
    held = 0
    for queue in await consumer.queues(topic):
        held += await consumer.max_offset(queue) - await consumer.min_offset(queue)
    return held


def _fresh(message: Message, topic: str) -> OutgoingMessage:
    """The message as originally sent, with a new unique key and the original id as a property."""
    given = message.properties
    properties = {
        name: value for name, value in without_scheduling(given).items() if name not in _NOTED_ON_THE_WAY
    }  # fmt: skip
    properties.setdefault(ORIGIN_MESSAGE_ID, message.message_id)
    return OutgoingMessage(topic, message.body, given.get(TAGS, ""), given.get(KEYS, ""), properties, message.flag)
