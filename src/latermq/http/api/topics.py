"""Topics and their queues, and stored messages by id or key."""

import base64
from http import HTTPStatus
from typing import Annotated

import msgspec

from latermq.client import Message, UnreadableBody
from latermq.config import HttpConfig
from latermq.errors import InvalidParameter, QueryNotFound
from latermq.http.brokers import Brokers
from latermq.http.endpoint import Answer, Call, Endpoint
from latermq.http.paging import page_limit
from latermq.message.names import DEAD_LETTER_PREFIX, RETRY_PREFIX, check_topic, is_system_topic
from latermq.message.properties import KEY_SEPARATOR, KEYS, TAGS, UNIQUE_KEY

Limit = Annotated[int, msgspec.Meta(ge=1)] | None


class TopicQuery(msgspec.Struct, forbid_unknown_fields=True):
    """With `all`, system, retry and dead-letter topics are included."""

    all: bool = False


class TopicNames(msgspec.Struct):
    """The names of all topics. If `is_partial`, only of those that the user has a right to."""

    topics: list[str]
    is_partial: bool = False


class QueueInfo(msgspec.Struct):
    """One queue, with its first and its next offset."""

    broker: str
    queue_id: int
    min_offset: int
    max_offset: int
    last_stored_ms: int


class TopicInfo(msgspec.Struct):
    """A topic and its queues. `timers` are its pending timers, `in_rate` the messages per second in the last minute."""

    topic: str
    messages: int
    timers: int
    in_rate: float
    in_hour: int
    in_day: int
    queues: list[QueueInfo]


class MessageInfo(msgspec.Struct, omit_defaults=True):
    """A stored message, with `body` if it is UTF-8 and `body_base64` otherwise."""

    message_id: str
    offset_message_id: str
    topic: str
    queue_id: int
    queue_offset: int
    born_ms: int
    stored_ms: int
    size_bytes: int
    reconsume_times: int = 0
    tag: str = ""
    keys: list[str] = []
    properties: dict[str, str] = {}
    body: str = ""
    body_base64: str = ""


class MessageList(msgspec.Struct):
    """Messages in the order in which they were stored. `unreadable` of them could not be decompressed."""

    messages: list[MessageInfo]
    unreadable: int = 0


class MessageQuery(msgspec.Struct, forbid_unknown_fields=True):
    """Messages of a topic with a key, or with the unique key `id` that their sender got."""

    topic: Annotated[str, msgspec.Meta(min_length=1, max_length=255)]
    key: Annotated[str, msgspec.Meta(max_length=16_384)] = ""
    id: Annotated[str, msgspec.Meta(max_length=16_384)] = ""
    limit: Limit = None


class TopicApi:
    """The requests on topics and messages."""

    def __init__(self, brokers: Brokers, config: HttpConfig) -> None:
        self._brokers = brokers
        self._max_page = config.max_page

    @property
    def endpoints(self) -> list[Endpoint]:
        topics, messages = "/api/v1/topics", "/api/v1/messages"
        ok = HTTPStatus.OK
        return [
            Endpoint("GET", topics, self._list, "List topics", {ok: TopicNames}, "topics", query=TopicQuery),
            Endpoint("GET", topics + "/{topic}", self._show, "Show a topic", {ok: TopicInfo}, "topics"),
            Endpoint("GET", messages, self._find, "Find messages", {ok: MessageList}, "messages", query=MessageQuery),
        ]

    async def _list(self, call: Call) -> Answer:
        query: TopicQuery = call.query
        names = await self._brokers.topics()
        if not query.all:
            clusters = await self._brokers.clusters()
            # Every cluster and every broker has a topic with its name.
            own = {name for cluster, brokers in clusters.items() for name in (cluster, *brokers)}
            names = [name for name in names if name not in own and not _is_internal(name)]
        return Answer(TopicNames(names))

    async def _show(self, call: Call) -> Answer:
        topic = call.path["topic"]
        check_topic(topic)
        stats = await self._brokers.topic_stats(topic)
        queues = [
            QueueInfo(queue.brokerName, queue.queueId, one.minOffset, one.maxOffset, one.lastUpdateTimestamp)
            for queue, one in stats.items()
        ]
        messages = sum(queue.max_offset - queue.min_offset for queue in queues)
        timers = 0 if _is_internal(topic) else await self._brokers.count_timers(topic)
        traffic = await self._brokers.topic_traffic(topic)
        return Answer(TopicInfo(topic, messages, timers, traffic.rate, traffic.hour, traffic.day, queues))

    async def _find(self, call: Call) -> Answer:
        query: MessageQuery = call.query
        check_topic(query.topic)
        if bool(query.key) == bool(query.id):
            raise InvalidParameter("exactly one of key and id is required")
        limit = page_limit(query.limit, self._max_page)
        unreadable: list[UnreadableBody] = []
        if query.key:
            found = await self._brokers.query_by_key(
                query.topic, query.key, max_messages=limit, on_unreadable=unreadable.append
            )
        else:
            found = await self._brokers.query_by_unique_key(query.topic, query.id, max_messages=limit)
        if not found and not unreadable:
            raise QueryNotFound("no such message is stored", hint="It may be older than store.retention")
        return Answer(MessageList([message_info(message) for message in found[:limit]], len(unreadable)))


def message_info(message: Message) -> MessageInfo:
    """Return a message as the API shows it."""
    properties = message.properties
    info = MessageInfo(
        properties.get(UNIQUE_KEY, message.message_id),
        message.message_id,
        message.topic,
        message.queue_id,
        message.queue_offset,
        message.born_timestamp_ms,
        message.store_timestamp_ms,
        message.size_bytes,
        message.reconsume_times,
        properties.get(TAGS, ""),
        properties.get(KEYS, "").split(KEY_SEPARATOR) if properties.get(KEYS) else [],
        {name: value for name, value in properties.items() if name not in (KEYS, TAGS, UNIQUE_KEY)},
    )
    try:
        info.body = message.body.decode()
    except UnicodeDecodeError:
        info.body_base64 = base64.b64encode(message.body).decode()
    return info


def _is_internal(topic: str) -> bool:
    return is_system_topic(topic) or topic.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX))
