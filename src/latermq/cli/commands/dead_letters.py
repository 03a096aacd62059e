"""Finds dead letters, and describes them for `latermq dlq`."""

import dataclasses
from collections.abc import AsyncIterator, Callable
from typing import Any

from latermq.cli.commands.message_reader import stored_messages
from latermq.cli.views.message_rows import message_row, moment, readable_row
from latermq.client import Admin, Message, PullConsumer
from latermq.client.dead_letters import find_dead_letter, original_topic, reason_of, topic_of
from latermq.errors import QueryNotFound, TopicNotFound
from latermq.message.names import DEAD_LETTER_PREFIX
from latermq.message.properties import KEYS


@dataclasses.dataclass(frozen=True)
class Selection:
    """Selects dead letters: by id, or all that match the key, the time range and the start position."""

    ids: tuple[str, ...] = ()
    key: str | None = None
    from_ms: int | None = None
    until_ms: int | None = None
    after_id: str | None = None

    def matches(self, message: Message) -> bool:
        in_time = self.until_ms is None or message.store_timestamp_ms < self.until_ms
        return in_time and (self.key is None or self.key in message.properties.get(KEYS, "").split())


def dead_letter_row(message: Message) -> dict[str, Any]:
    """All fields of a dead letter, for JSON."""
    return {**message_row(message), **_dead_letter_fields(message), "stored": moment(message.store_timestamp_ms)}


def readable_dead_letter_row(message: Message) -> dict[str, Any]:
    """The same in readable form, for tables."""
    return {**readable_row(message), **_dead_letter_fields(message)}


def _dead_letter_fields(message: Message) -> dict[str, Any]:
    return {
        "original_topic": original_topic(message),
        "failures": message.reconsume_times,
        "reason": reason_of(message),
    }


async def dead_letter_counts(admin: Admin) -> list[dict[str, Any]]:
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


async def dead_letters(
    admin: Admin, consumer: PullConsumer, topic: str, selection: Selection, on_read: Callable[[int], None]
) -> AsyncIterator[Message]:
    """The selected dead letters, queue by queue in the order in which they were stored."""
    for message_id in selection.ids:
        yield await find_dead_letter(admin, topic, message_id)
    if selection.ids:
        return
    try:
        queues = sorted(await consumer.queues(topic))
    except TopicNotFound:  # the first dead letter creates the topic
        queues = []
    is_before_start = selection.after_id is not None
    for queue in queues:
        async for message in stored_messages(consumer, queue, selection.from_ms):
            on_read(1)
            if is_before_start:
                is_before_start = message.message_id != selection.after_id
            elif selection.matches(message):
                yield message
    if is_before_start:
        raise QueryNotFound(f"{topic} has no message {selection.after_id}", hint="Use an offset message id")


async def count_dead_letters(consumer: PullConsumer, topic: str) -> int:
    """The number of dead letters in a topic. A topic that does not exist has none."""
    count = 0
    try:
        for queue in await consumer.queues(topic):
            count += await consumer.max_offset(queue) - await consumer.min_offset(queue)
    except TopicNotFound:
        pass
    return count
