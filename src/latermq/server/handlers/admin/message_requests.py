"""Administration requests that find messages and show the stored entries of queues."""

from latermq.broker.admin.message_admin import MessageAdmin
from latermq.broker.messages.reader import MessageReader
from latermq.protocol.remoting.codes import Request
from latermq.protocol.remoting.frames import Command, encode_response
from latermq.protocol.remoting.json_body import encode_body
from latermq.protocol.remoting.messages import (
    ConsumeQueueHeader,
    QueryMessageHeader,
    ViewMessageHeader,
    write_queue_entries,
)
from latermq.server.remoting.access import GET, SUB, on_group_if_named, on_topic, on_topics
from latermq.server.remoting.connection import Connection
from latermq.server.remoting.endpoints import Endpoint
from latermq.server.remoting.sliced_requests import Reply, Slices
from latermq.timer.steps import Steps


class MessageRequests:
    """Finds messages by position and by key."""

    def __init__(self, reader: MessageReader, admin: MessageAdmin) -> None:
        self._reader = reader
        self._admin = admin

    @property
    def endpoints(self) -> list[Endpoint]:
        view = (on_topics(lambda _, header: self._reader.topics_at(header.offset), GET),)
        query = (on_topic("topic", SUB, GET),)
        entries = (on_topic("topic", GET), on_group_if_named("consumerGroup", GET))
        return [
            Endpoint(Request.VIEW_MESSAGE_BY_ID, self._view, view, ViewMessageHeader),
            Endpoint(
                Request.QUERY_MESSAGE,
                self._query,
                query,
                QueryMessageHeader,
                slices=Slices.SEARCH,
            ),
            Endpoint(Request.QUERY_CONSUME_QUEUE, self._queue_entries, entries, ConsumeQueueHeader),
        ]

    def _view(self, connection: Connection, command: Command, header: ViewMessageHeader) -> bytes:
        record = self._reader.read_record(header.offset)
        return encode_response(command, body=record)

    def _query(self, connection: Connection, command: Command, header: QueryMessageHeader) -> Steps[Reply]:
        records = yield from self._reader.find_by_key(
            header.topic,
            header.key,
            unique=header._UNIQUE_KEY_QUERY == "true",
            max_found=header.maxNum,
            begin_ms=header.beginTimestamp,
            end_ms=header.endTimestamp,
        )
        newest_ms, newest_offset = self._reader.newest_indexed
        fields = {"indexLastUpdateTimestamp": str(newest_ms), "indexLastUpdatePhyoffset": str(newest_offset)}
        return encode_response(command, fields=fields, body=b"".join(records))

    def _queue_entries(self, connection: Connection, command: Command, header: ConsumeQueueHeader) -> bytes:
        entries = self._admin.queue_entries(
            header.topic, header.queueId, header.index, header.count, header.consumerGroup
        )
        return encode_response(command, body=encode_body(write_queue_entries(entries)))
