"""All dead letters of a group in one answer, one JSON object per line, read while they are sent."""

from collections.abc import AsyncIterator
from http import HTTPStatus
from typing import Annotated

import msgspec

from latermq.client import MessageQueue, PullConsumer, UnreadableBody
from latermq.client.dead_letters import original_topic, reason_of
from latermq.errors import LaterMQError, TopicNotFound
from latermq.http.api.dead_letters import DeadLetter, checked_topic
from latermq.http.api.topics import message_info
from latermq.http.endpoint import NDJSON, Answer, Call, Endpoint
from latermq.http.problems import problem_of
from latermq.message.names import DEAD_LETTER_PREFIX
from latermq.message.properties import KEY_SEPARATOR, KEYS

PART_BYTES = 64 << 10
_PULL_MESSAGES = 256


class ExportQuery(msgspec.Struct, forbid_unknown_fields=True):
    """Only dead letters with a key."""

    key: Annotated[str, msgspec.Meta(max_length=16_384)] = ""


class DeadLetterExportApi:
    """Answers GET /api/v1/dead-letters/{group}/export."""

    def __init__(self, reader: PullConsumer) -> None:
        self._reader = reader

    @property
    def endpoints(self) -> list[Endpoint]:
        return [
            Endpoint(
                "GET",
                "/api/v1/dead-letters/{group}/export",
                self._answer,
                "Export dead letters",
                {HTTPStatus.OK: DeadLetter},
                "dead letters",
                query=ExportQuery,
                answer_type=NDJSON,
                meaning="Those that are stored when the request arrives. If reading fails after the answer has begun, "
                'the last line is `{"problem": …}`.',
            )
        ]

    async def _answer(self, call: Call) -> Answer:
        topic = checked_topic(call.path["group"])
        try:
            queues = sorted(await self._reader.queues(topic))
        except TopicNotFound:  # the first dead letter creates the topic
            queues = []
        ends = {queue: await self._reader.max_offset(queue) for queue in queues}
        name = f"dead-letters-{topic.removeprefix(DEAD_LETTER_PREFIX)}.ndjson".replace("|", "-")
        headers = {"Content-Disposition": f'attachment; filename="{name}"'}
        return Answer(self._parts(ends, call.query.key), headers=headers, media_type=NDJSON)

    async def _parts(self, ends: dict[MessageQueue, int], key: str) -> AsyncIterator[bytes]:
        """Yield lines, some at a time, so that memory does not grow with their number."""
        part = bytearray()
        try:
            async for dead_letter in self._read(ends, key):
                part += msgspec.json.encode(dead_letter) + b"\n"
                if len(part) >= PART_BYTES:
                    yield bytes(part)
                    part.clear()
        except LaterMQError as error:
            part += msgspec.json.encode({"problem": problem_of(error)}) + b"\n"
        yield bytes(part)

    async def _read(self, ends: dict[MessageQueue, int], key: str) -> AsyncIterator[DeadLetter]:
        for queue, end in ends.items():
            offset = await self._reader.min_offset(queue)
            while offset < end:
                try:
                    result = await self._reader.pull(queue, offset, min(_PULL_MESSAGES, end - offset))
                except UnreadableBody as error:
                    offset = error.offset + 1
                    continue
                for message in result.messages:
                    if not key or key in message.properties.get(KEYS, "").split(KEY_SEPARATOR):
                        yield DeadLetter(message_info(message), original_topic(message), reason_of(message))
                offset = max(offset + 1, result.next_offset)
