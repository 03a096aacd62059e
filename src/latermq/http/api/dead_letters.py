"""Dead letters: counted, listed, and sent again to the topics that they were sent to."""

import base64
import binascii
from http import HTTPStatus
from typing import Annotated, NamedTuple

import msgspec

from latermq.access.resources import GET, LIST, PUB, SUB
from latermq.client import Message, MessageQueue, Producer, PullConsumer, UnreadableBody
from latermq.client.dead_letters import as_sent, find_dead_letter, original_topic, reason_of, topic_of
from latermq.config import HttpConfig
from latermq.errors import InvalidParameter, LaterMQError, QueryNotFound, TopicNotFound
from latermq.http.api.access_rules import cluster_access, dead_letter_access
from latermq.http.api.topics import Limit, MessageInfo, message_info
from latermq.http.brokers import Brokers
from latermq.http.endpoint import Answer, Call, Endpoint
from latermq.http.paging import page_limit
from latermq.http.problems import Problem, problem_of
from latermq.message.names import DEAD_LETTER_PREFIX, check_topic
from latermq.message.properties import KEYS
from latermq.model.topic_access import topic_access

READER_GROUP = "TOOLS_CONSUMER"  # a pull must name a group; this one exists on every broker
MAX_SCANNED = 5_000  # dead letters that one request reads
MAX_RESENT = 1_000  # messages that one request sends
_PULL_MESSAGES = 256


class DeadLetterCount(msgspec.Struct):
    """The dead letters of a group."""

    group: str
    topic: str
    messages: int
    last_stored_ms: int


class DeadLetterCounts(msgspec.Struct):
    """All groups with dead letters. If `is_partial`, only those that the user has a right to."""

    groups: list[DeadLetterCount]
    is_partial: bool = False


class DeadLetter(msgspec.Struct):
    """A dead letter, the topic that it was sent to, and why it failed."""

    message: MessageInfo
    original_topic: str
    reason: str


class DeadLetterPage(msgspec.Struct):
    """Dead letters in the order in which they were stored. `next` is the cursor of the next page, empty on the last."""

    dead_letters: list[DeadLetter]
    next: str = ""


class DeadLetterQuery(msgspec.Struct, forbid_unknown_fields=True):
    """Only dead letters with a key."""

    key: Annotated[str, msgspec.Meta(max_length=16_384)] = ""
    limit: Limit = None
    cursor: Annotated[str, msgspec.Meta(max_length=1_000)] = ""


class Resend(msgspec.Struct, forbid_unknown_fields=True):
    """Which dead letters to send again, and where to, if not to their original topics."""

    ids: Annotated[
        list[Annotated[str, msgspec.Meta(max_length=1_000)]], msgspec.Meta(min_length=1, max_length=MAX_RESENT)
    ]
    topic: Annotated[str, msgspec.Meta(max_length=255)] = ""
    dry_run: bool = False


class Resent(msgspec.Struct, omit_defaults=True):
    """What became of one dead letter: the id of the new message, or the problem. Dead letters are kept."""

    id: str
    topic: str = ""
    message_id: str = ""
    problem: Problem | None = None


class ResendReport(msgspec.Struct):
    """What a resend did, or would do with `dry_run`."""

    dry_run: bool
    messages: list[Resent]


class _Place(NamedTuple):
    """Where a page ended: the broker, the queue and the next offset."""

    broker: str
    queue_id: int
    offset: int


class DeadLetterApi:
    """The requests on dead letters."""

    def __init__(self, brokers: Brokers, reader: PullConsumer, producer: Producer, config: HttpConfig) -> None:
        self._brokers = brokers
        self._reader = reader
        self._producer = producer
        self._max_page = config.max_page

    @property
    def endpoints(self) -> list[Endpoint]:
        path, ok, subject = "/api/v1/dead-letters", HTTPStatus.OK, "dead letters"
        one = path + "/{group}"
        return [
            Endpoint("GET", path, self._count, "Count the dead letters of each group", {ok: DeadLetterCounts}, subject),
            Endpoint("GET", one, self._list, "List dead letters", {ok: DeadLetterPage}, subject, query=DeadLetterQuery),
            Endpoint("POST", one + "/resend", self._resend, "Send again", {ok: ResendReport}, subject, body=Resend),
        ]

    async def _count(self, call: Call) -> Answer:
        counts = []
        sees_all = call.sees(cluster_access(GET, LIST))
        for topic in await self._brokers.topics():
            if topic_of(topic) != topic or not (sees_all or call.sees(dead_letter_access(topic, (SUB, GET)))):
                continue
            queues = (await self._brokers.topic_stats(topic)).values()
            messages = sum(queue.maxOffset - queue.minOffset for queue in queues)
            last_ms = max((queue.lastUpdateTimestamp for queue in queues), default=0)
            counts.append(DeadLetterCount(topic.removeprefix(DEAD_LETTER_PREFIX), topic, messages, last_ms))
        return Answer(DeadLetterCounts(counts))

    async def _list(self, call: Call) -> Answer:
        query: DeadLetterQuery = call.query
        topic = checked_topic(call.path["group"])
        limit = page_limit(query.limit, self._max_page)
        start = _decode_cursor(query.cursor) if query.cursor else None
        page = DeadLetterPage([])
        try:
            queues = sorted(await self._reader.queues(topic))
        except TopicNotFound:  # the first dead letter creates the topic
            return Answer(page)
        left = MAX_SCANNED
        for queue in queues:
            if start is not None and (queue.brokerName, queue.queueId) < (start.broker, start.queue_id):
                continue
            is_start = start is not None and (queue.brokerName, queue.queueId) == (start.broker, start.queue_id)
            offset = max(start.offset if is_start and start else 0, await self._reader.min_offset(queue))
            while True:
                found, following = await self._read(queue, offset, min(_PULL_MESSAGES, left))
                for message in found:
                    if not query.key or query.key in message.properties.get(KEYS, "").split():
                        row = DeadLetter(message_info(message), original_topic(message), reason_of(message))
                        page.dead_letters.append(row)
                    left -= 1
                    if len(page.dead_letters) == limit or not left:
                        page.next = _encode_cursor(_Place(queue.brokerName, queue.queueId, message.queue_offset + 1))
                        return Answer(page)
                if following <= offset:
                    break
                offset = following
        return Answer(page)

    async def _read(self, queue: MessageQueue, offset: int, count: int) -> tuple[list[Message], int]:
        """Return messages, and the next offset; the same offset at the end of the queue."""
        if offset >= await self._reader.max_offset(queue):
            return [], offset
        try:
            result = await self._reader.pull(queue, offset, count)
        except UnreadableBody as error:
            return [], error.offset + 1
        return list(result.messages), result.next_offset

    async def _resend(self, call: Call) -> Answer:
        resend: Resend = call.body
        topic = checked_topic(call.path["group"])
        if resend.topic:
            check_topic(resend.topic)
        known: set[str] = set()
        rows = [await self._resend_one(call, topic, message_id, known) for message_id in resend.ids]
        return Answer(ResendReport(resend.dry_run, rows))

    async def _resend_one(self, call: Call, source: str, message_id: str, known: set[str]) -> Resent:
        resend: Resend = call.body
        try:
            message = await find_dead_letter(self._brokers, source, message_id)
            topic = resend.topic or original_topic(message)
            if not topic:
                raise QueryNotFound("the dead letter does not name its original topic", hint="Set topic")
            call.permit(topic_access(topic, (PUB,)))
            if topic not in known:
                # The send would auto-create it, and no group would consume it.
                await self._brokers.route(topic)
                known.add(topic)
            if resend.dry_run:
                return Resent(message_id, topic)
            sent = await self._producer.send(as_sent(message, topic))
        except LaterMQError as error:
            return Resent(message_id, problem=problem_of(error))
        return Resent(message_id, topic, sent.message_id)


def checked_topic(group: str) -> str:
    """Return the dead-letter topic of a group. Raises IllegalMessage if that is not a name."""
    topic = topic_of(group)
    check_topic(topic)
    return topic


def _encode_cursor(place: _Place) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(place)).rstrip(b"=").decode()


def _decode_cursor(text: str) -> _Place:
    try:
        data = base64.b64decode(text.encode("ascii") + b"=" * (-len(text) % 4), b"-_", validate=True)
        return msgspec.json.decode(data, type=_Place)
    except (binascii.Error, ValueError):
        raise InvalidParameter(f"{text[:40]!r} is not a cursor", hint="Use `next` of the previous page") from None
