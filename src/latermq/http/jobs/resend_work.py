"""Dead letters that match, sent again as timers. Their names depend on the job, so a repetition sends none twice."""

import hashlib
import time
from collections.abc import AsyncIterator, Sequence

from latermq.client import Message, MessageQueue, PullConsumer, UnreadableBody
from latermq.client.dead_letters import as_sent, original_topic, reason_of, topic_of
from latermq.client.scheduling.rows import Row as TimerRow
from latermq.client.scheduling.scheduler import TimerScheduler
from latermq.errors import LaterMQError, TopicNotFound
from latermq.http.brokers import Brokers
from latermq.http.jobs.job import NOT_FOUND, REFUSED, SENT, Job, JobPreview, MatchedLetter, Order
from latermq.http.jobs.work import Done, Row
from latermq.message.names import check_topic
from latermq.message.properties import KEYS, TAGS, encode_properties

PULL_MESSAGES = 256
SAMPLE_ROWS = 10
PREVIEW_S = 5.0
MAX_HELD_BYTES = 8 << 20  # bodies that are read before they are sent
_KEY_BYTES = 16


class ResendWork:
    """Reads dead letters from their queues, and schedules them for now or later."""

    rows_at_once = 500

    def __init__(self, brokers: Brokers, reader: PullConsumer, scheduler: TimerScheduler) -> None:
        self._brokers = brokers
        self._reader = reader
        self._scheduler = scheduler

    async def preview(self, order: Order) -> JobPreview:
        end_s = time.monotonic() + PREVIEW_S
        preview = JobPreview(0, True, [], [])
        async for messages in self._matching(order):
            preview.matched += len(messages)
            for _, message in messages[: SAMPLE_ROWS - len(preview.dead_letters)]:
                letter = MatchedLetter(
                    message.message_id, original_topic(message), reason_of(message), message.store_timestamp_ms
                )
                preview.dead_letters.append(letter)
            if time.monotonic() > end_s:
                preview.is_exact = False
                break
        return preview

    async def plan(self, order: Order) -> AsyncIterator[list[Row]]:
        async for messages in self._matching(order):
            yield [[queue.brokerName, queue.queueId, one.queue_offset, one.message_id] for queue, one in messages]

    async def _matching(self, order: Order) -> AsyncIterator[list[tuple[MessageQueue, Message]]]:
        topic = topic_of(order.group)
        check_topic(topic)
        try:
            queues = sorted(await self._reader.queues(topic))
        except TopicNotFound:  # the first dead letter creates the topic
            return
        for queue in queues:
            offset = await self._reader.min_offset(queue)
            if order.from_ms:
                offset = max(offset, await self._reader.search_offset(queue, order.from_ms))
            end = await self._reader.max_offset(queue)
            while offset < end:
                messages, offset = await self._read(queue, offset)
                yield [(queue, one) for one in messages if one.queue_offset < end and _matches(one, order)]

    async def _read(self, queue: MessageQueue, offset: int) -> tuple[list[Message], int]:
        """Return messages, and the next offset, which is always a later one."""
        try:
            result = await self._reader.pull(queue, offset, PULL_MESSAGES)
        except UnreadableBody as error:
            return [], error.offset + 1
        return list(result.messages), max(offset + 1, result.next_offset)

    def merged(self, rows: Sequence[Row]) -> list[Row]:
        return list(rows)

    async def change(self, job: Job, rows: Sequence[Row]) -> list[Done]:
        topic = topic_of(job.order.group)
        queues = {(queue.brokerName, queue.queueId): queue for queue in await self._reader.queues(topic)}
        if any((row[0], row[1]) not in queues for row in rows):
            await self._brokers.check_all_online()
        done: list[Done | None] = [None] * len(rows)
        sent: list[tuple[int, TimerRow]] = []
        known: dict[str, LaterMQError | None] = {}
        read: dict[int, Message] = {}
        of_queue: MessageQueue | None = None
        held_bytes = 0
        for number, (broker, queue_id, offset, message_id) in enumerate(rows):
            queue = queues.get((broker, queue_id))
            if queue != of_queue:
                read, of_queue = {}, queue
            if queue is not None and offset not in read:
                read = {one.queue_offset: one for one in (await self._read(queue, offset))[0]}
            message = read.get(offset)
            if message is None or message.message_id != message_id:
                done[number] = Done(NOT_FOUND, message_id, topic, "it is older than store.retention")
                continue
            to = job.order.to_topic or original_topic(message)
            if not to:
                done[number] = Done(REFUSED, message_id, topic, "it does not name its original topic; set to_topic")
                continue
            if (refused := await self._refusal(to, known)) is not None:
                done[number] = Done(REFUSED, message_id, to, refused.message)
                continue
            sent.append((number, _timer_row(job, message, to)))
            held_bytes += len(message.body)
            if held_bytes >= MAX_HELD_BYTES:
                await self._send(sent, rows, done)
                sent, held_bytes = [], 0
        await self._send(sent, rows, done)
        return [one for one in done if one is not None]

    async def _send(self, sent: Sequence[tuple[int, TimerRow]], rows: Sequence[Row], done: list[Done | None]) -> None:
        results = await self._scheduler.schedule([row for _, row in sent])
        for (number, row), result in zip(sent, results, strict=True):
            if not isinstance(result, LaterMQError):
                done[number] = Done(SENT, rows[number][3], row.topic)
            elif result.retriable:
                raise result  # those that were accepted are known when they come again
            else:
                done[number] = Done(REFUSED, rows[number][3], row.topic, result.message)

    async def _refusal(self, topic: str, known: dict[str, LaterMQError | None]) -> LaterMQError | None:
        """Return why a topic is no place to send to: a send would auto-create it, and no group would consume it."""
        if topic not in known:
            try:
                await self._brokers.route(topic)
                known[topic] = None
            except LaterMQError as error:
                if error.retriable:
                    raise
                known[topic] = error
        return known[topic]


def _matches(message: Message, order: Order) -> bool:
    stored_ms = message.store_timestamp_ms
    if stored_ms < order.from_ms or (order.to_ms and stored_ms >= order.to_ms):
        return False
    if order.topic and original_topic(message) != order.topic:
        return False
    return order.matches(message.properties.get(KEYS, ""), message.properties.get(TAGS, ""))


def _timer_row(job: Job, message: Message, topic: str) -> TimerRow:
    sent = as_sent(message, topic)
    name = f"{job.id} {message.topic} {message.message_id} {message.queue_id} {message.queue_offset}"
    unique_key = hashlib.blake2b(name.encode(), digest_size=_KEY_BYTES).hexdigest().upper()
    tag, keys = message.properties.get(TAGS, ""), message.properties.get(KEYS, "")
    properties = encode_properties(sent.properties).encode()
    due_ms = job.order.due_ms if job.order.due_ms is not None else job.created_ms
    return TimerRow(topic, unique_key, message.body, keys.encode(), tag.encode(), properties, due_ms, False)
