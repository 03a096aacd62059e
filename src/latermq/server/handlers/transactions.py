"""The request with which producers end transactions, and the question that the broker asks them."""

from collections.abc import Callable

from latermq.broker.transactions.decisions import Decisions
from latermq.group.members import Channel
from latermq.message.record import Message
from latermq.model.transaction import Decision
from latermq.protocol.remoting.codes import Request
from latermq.protocol.remoting.frames import Command, encode_response
from latermq.protocol.remoting.transactions import EndTransactionHeader, encode_check, read_end
from latermq.server.handlers.flush_queue import FlushQueue
from latermq.server.remoting.access import PUB, on_topics
from latermq.server.remoting.connection import Connection
from latermq.server.remoting.endpoints import Endpoint


class TransactionRequests:
    """Ends transactions."""

    def __init__(self, decisions: Decisions, flush_queue: FlushQueue) -> None:
        self._decisions = decisions
        self._flush_queue = flush_queue

    @property
    def endpoints(self) -> list[Endpoint]:
        # The topic of the half itself, because the request can name any topic or none.
        end = (on_topics(lambda _, header: self._decisions.topics_of(read_end(header)), PUB),)
        return [Endpoint(Request.END_TRANSACTION, self._end, end, EndTransactionHeader, stores=True)]

    def _end(self, connection: Connection, command: Command, header: EndTransactionHeader) -> bytes | None:
        request = read_end(header)
        if request.decision is Decision.UNKNOWN and request.physical_offset is None:
            return encode_response(command, fields={"state": self._decisions.state_of(request)})
        if self._flush_queue.is_sync:
            self._flush_queue.check_room()
        end_offset = self._decisions.end(request)
        reply = encode_response(command)
        return self._flush_queue.reply_at(end_offset, connection, command, reply) if end_offset else reply


def check_sender(broker_name: str) -> Callable[[Channel, Message], None]:
    """Return the function that asks a producer for its decision on a half."""

    def send(channel: Channel, half: Message) -> None:
        channel.send(encode_check(half, broker_name))

    return send
