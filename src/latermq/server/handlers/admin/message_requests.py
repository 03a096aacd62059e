"""Administration requests that look for messages and at queues as they lie on disk."""

from latermq.broker.admin import message_admin
from latermq.protocol.remoting.codes import Request
from latermq.protocol.remoting.frames import Command, encode_response
from latermq.protocol.remoting.json_body import encode_body
from latermq.protocol.remoting.messages import (
    ConsumeQueueHeader,
    QueryMessageHeader,
    ViewMessageHeader,
    write_queue_entries,
)
from latermq.server.handlers.admin.ground import Ground, Handler
from latermq.server.remoting.connection import Connection
from latermq.server.remoting.stepwise import Reply
from latermq.timer.steps import Steps


class MessageRequests:
    """Messages by place and by key."""

    def __init__(self, ground: Ground) -> None:
        self._broker = ground.broker
        self._look_ups = ground.look_ups
        self.handlers: dict[int, Handler] = {
            Request.VIEW_MESSAGE_BY_ID: self._view,
            Request.QUERY_MESSAGE: self._query,
            Request.QUERY_CONSUME_QUEUE: self._queue_entries,
        }

    def _view(self, connection: Connection, command: Command) -> bytes:
        record = message_admin.read_record(self._broker, command.header(ViewMessageHeader).offset)
        return encode_response(command, body=record)

    def _query(self, connection: Connection, command: Command) -> bytes | None:
        header = command.header(QueryMessageHeader)

        def query() -> Steps[Reply]:
            records = yield from message_admin.find_by_key(
                self._broker,
                header.topic,
                header.key,
                unique=header._UNIQUE_KEY_QUERY == "true",
                max_found=header.maxNum,
                begin_ms=header.beginTimestamp,
                end_ms=header.endTimestamp,
            )
            newest_ms, newest_offset = self._broker.store.index.newest
            fields = {"indexLastUpdateTimestamp": str(newest_ms), "indexLastUpdatePhyoffset": str(newest_offset)}
            return encode_response(command, fields=fields, body=b"".join(records))

        return self._look_ups.answer(connection, command, query())

    def _queue_entries(self, connection: Connection, command: Command) -> bytes:
        header = command.header(ConsumeQueueHeader)
        entries = message_admin.queue_entries(
            self._broker, header.topic, header.queueId, header.index, header.count, header.consumerGroup
        )
        return encode_response(command, body=encode_body(write_queue_entries(entries)))
