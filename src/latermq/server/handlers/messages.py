"""Requests that store messages: sends, batches and retries."""

from collections.abc import Callable

from latermq.broker.messages.reader import MessageReader
from latermq.broker.messages.retries import Retries
from latermq.broker.messages.writer import MessageWriter
from latermq.broker.transactions.half_writer import HalfWriter, StoredHalf
from latermq.errors import IllegalMessage
from latermq.message.half import is_half, may_be_half
from latermq.message.names import RETRY_PREFIX
from latermq.protocol.remoting.codes import Request
from latermq.protocol.remoting.frames import Command, encode_response
from latermq.protocol.remoting.send import (
    SendBackHeader,
    SendHeader,
    SendHeaderV2,
    encode_send_reply,
    read_retry,
    read_send_back,
)
from latermq.server.handlers.flush_queue import FlushQueue
from latermq.server.remoting.access import PUB, SUB, on_group, on_topic, on_topics
from latermq.server.remoting.connection import Connection
from latermq.server.remoting.endpoints import Endpoint


class SendRequests:
    """Stores the messages of producers, and the messages that consumers send back."""

    def __init__(
        self,
        writer: MessageWriter,
        half_writer: HalfWriter,
        retries: Retries,
        reader: MessageReader,
        flush_queue: FlushQueue,
        on_half: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_half` is called after a half message is stored."""
        self._writer = writer
        self._half_writer = half_writer
        self._on_half = on_half
        self._retries = retries
        self._reader = reader
        self._flush_queue = flush_queue

    @property
    def endpoints(self) -> list[Endpoint]:
        send = (on_topic("topic", PUB),)
        # A message that is sent back is copied to the group's retries, where clients without access to its topic could
        # read it.
        send_back = (
            on_group("group", SUB),
            on_topics(lambda _, header: self._reader.topics_at(header.offset), SUB),
        )
        return [
            Endpoint(Request.SEND_MESSAGE, self._send, send, SendHeader, stores=True),
            Endpoint(Request.SEND_MESSAGE_V2, self._send, send, SendHeaderV2, stores=True),
            Endpoint(Request.SEND_BATCH_MESSAGE, self._send_batch, send, SendHeaderV2, stores=True),
            Endpoint(Request.CONSUMER_SEND_MSG_BACK, self._send_back, send_back, SendBackHeader, stores=True),
        ]

    def _send_batch(self, connection: Connection, command: Command, header: SendHeaderV2) -> bytes | None:
        header.batch = True
        return self._send(connection, command, header)

    def _send(self, connection: Connection, command: Command, header: SendHeaderV2 | SendHeader) -> bytes | None:
        if self._flush_queue.is_sync:
            self._flush_queue.check_room()
        if header.batch:
            if header.topic.startswith(RETRY_PREFIX):
                raise IllegalMessage(f"a batch cannot be sent to {header.topic!r}", hint="Send retries one by one")
            sent = self._writer.send_batch(
                header.topic,
                header.queueId,
                command.body,
                header.bornTimestamp,
                connection.peer_host,
                sysflag=header.sysFlag,
                reconsume_times=header.reconsumeTimes,
                default_topic=header.defaultTopic,
                default_queues=header.defaultTopicQueueNums,
            )
        elif header.topic.startswith(RETRY_PREFIX):
            sent = self._retries.send(read_retry(header, command.version), command.body, connection.peer_host)
        else:
            # A tuple, because each send makes one: 0.02 µs, a struct takes 0.1 µs.
            arguments = (
                header.topic,
                header.queueId,
                command.body,
                header.properties,
                header.bornTimestamp,
                connection.peer_host,
                header.flag,
                header.sysFlag,
                header.reconsumeTimes,
                header.defaultTopic,
                header.defaultTopicQueueNums,
            )
            if may_be_half(header.sysFlag, header.properties) and is_half(header.sysFlag, header.properties):
                half = self._half_writer.send(*arguments, producer_group=header.producerGroup)
                return self._answer_half(connection, command, half)
            sent = self._writer.send(*arguments)
        message_id, queue_id, queue_offset, end_offset, handle = sent
        reply = encode_send_reply(command, message_id, queue_id, queue_offset, handle)
        return self._flush_queue.reply_at(end_offset, connection, command, reply)

    def _answer_half(self, connection: Connection, command: Command, half: StoredHalf) -> bytes | None:
        self._on_half()
        reply = encode_send_reply(
            command, half.message_id, half.queue_id, half.queue_offset, transaction_id=half.unique_key
        )
        return self._flush_queue.reply_at(half.end_offset, connection, command, reply)

    def _send_back(self, connection: Connection, command: Command, header: SendBackHeader) -> bytes | None:
        """Schedule a retry of a message that a consumer could not handle."""
        end_offset = self._retries.send_back(read_send_back(header, command.version), connection.peer_host)
        reply = encode_response(command)
        return reply if not end_offset else self._flush_queue.reply_at(end_offset, connection, command, reply)
