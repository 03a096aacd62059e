"""The newest messages of a topic, and messages sent by hand."""

import asyncio
from http import HTTPStatus

import msgspec

from latermq.client import MessageQueue, OutgoingMessage, Producer, PullConsumer, UnreadableBody
from latermq.client.consumer.pull import FOUND
from latermq.config import HttpConfig
from latermq.http.api.topics import Limit, MessageInfo, message_info
from latermq.http.brokers import Brokers
from latermq.http.endpoint import Answer, Call, Endpoint
from latermq.http.paging import page_limit
from latermq.http.timer_request import body_of, check_key_and_tag, check_property
from latermq.message.names import check_sendable_topic, check_topic
from latermq.message.record import Message

QUEUES_AT_ONCE = 8  # read at the same time
MAX_PULLS = 4  # of one queue: a pull has a bounded size, so that large messages need several
BODY_CHARS = 256  # a multiple of four, so that base64 stays valid


class NewestQuery(msgspec.Struct, forbid_unknown_fields=True):
    """How many messages."""

    limit: Limit = None


class NewestMessages(msgspec.Struct):
    """Messages with the start of their bodies, those stored last first."""

    messages: list[MessageInfo]


class NewMessage(msgspec.Struct, forbid_unknown_fields=True):
    """A message to be delivered at once, with `body` or `body_base64`."""

    topic: str
    body: str | None = None
    body_base64: str | None = None
    key: str = ""
    tag: str = ""
    properties: dict[str, str] = {}


class SentMessage(msgspec.Struct):
    """Where a message was stored."""

    message_id: str
    offset_message_id: str
    topic: str
    broker: str
    queue_id: int
    queue_offset: int


class TopicMessageApi:
    """The requests that read the end of a topic and add to it."""

    def __init__(self, brokers: Brokers, reader: PullConsumer, producer: Producer, config: HttpConfig) -> None:
        self._brokers = brokers
        self._reader = reader
        self._producer = producer
        self._max_page = config.max_page

    @property
    def endpoints(self) -> list[Endpoint]:
        newest, found = "/api/v1/topics/{topic}/messages", {HTTPStatus.OK: NewestMessages}
        sent = {HTTPStatus.CREATED: SentMessage}
        return [
            Endpoint("GET", newest, self._newest, "Show the newest messages", found, "messages", query=NewestQuery),
            Endpoint("POST", "/api/v1/messages", self._send, "Send a message", sent, "messages", body=NewMessage),
        ]

    async def _newest(self, call: Call) -> Answer:
        topic = call.path["topic"]
        check_topic(topic)
        limit = page_limit(call.query.limit, self._max_page)
        turns = asyncio.Semaphore(QUEUES_AT_ONCE)

        async def read(queue: MessageQueue) -> list[MessageInfo]:
            async with turns:
                return await self._end_of(queue, limit)

        parts = await asyncio.gather(*map(read, await self._reader.queues(topic)))
        newest = sorted(
            (message for part in parts for message in part),
            key=lambda message: (message.stored_ms, message.queue_offset),
            reverse=True,
        )
        return Answer(NewestMessages(newest[:limit]))

    async def _end_of(self, queue: MessageQueue, count: int) -> list[MessageInfo]:
        """Return the last messages of a queue; only the older of them if they are large."""
        first, end = await asyncio.gather(self._reader.min_offset(queue), self._reader.max_offset(queue))
        offset, found = max(first, end - count), list[MessageInfo]()
        for _ in range(MAX_PULLS):
            if offset >= end:
                break
            try:
                result = await self._reader.pull(queue, offset, end - offset)
            except UnreadableBody as error:
                offset = error.offset + 1
                continue
            if result.status != FOUND:
                break
            found += map(_shortened, result.messages)
            offset = result.next_offset
        return found

    async def _send(self, call: Call) -> Answer:
        new: NewMessage = call.body
        check_sendable_topic(new.topic)
        check_key_and_tag(new.key, new.tag)
        for name, value in new.properties.items():
            check_property(name, value)
        message = OutgoingMessage(new.topic, body_of(new.body, new.body_base64), new.tag, new.key, new.properties)
        sent = await self._producer.send(message)
        queue = sent.queue
        body = SentMessage(
            sent.message_id, sent.offset_message_id, new.topic, queue.brokerName, queue.queueId, sent.queue_offset
        )
        return Answer(body, HTTPStatus.CREATED)


def _shortened(message: Message) -> MessageInfo:
    info = message_info(message)
    info.body, info.body_base64 = info.body[:BODY_CHARS], info.body_base64[:BODY_CHARS]
    return info
