"""Messages that were popped but could not be handed to a client: their broker makes them visible again at once."""

import structlog

from latermq.errors import LaterMQError
from latermq.group.pop.handles import ReceiptHandle, decode_handle
from latermq.protocol.messaging import messaging_pb2 as pb
from latermq.protocol.messaging.popped_messages import PoppedMessages
from latermq.protocol.remoting.codes import Request
from latermq.protocol.remoting.frames import Command
from latermq.server.proxy.brokers.broker_link import BrokerLink

_log = structlog.get_logger(__name__)


def change_fields(group: str, topic: str, handle: ReceiptHandle, invisible_ms: int, suspend: bool) -> dict[str, str]:
    """Return the fields of CHANGE_MESSAGE_INVISIBLETIME (200053). With `suspend` the delivery is not counted."""
    return {
        "consumerGroup": group,
        "topic": handle.real_topic(group, topic),
        "queueId": str(handle.queue_id),
        "extraInfo": handle._replace(log_offset=None).encode(),
        "offset": str(handle.offset),
        "invisibleTime": str(invisible_ms),
        "suspend": "true" if suspend else "false",
    }


class ReturnedMessages:
    """Gives messages back and counts them."""

    def __init__(self, link: BrokerLink) -> None:
        self._link = link
        self.returned = 0
        self._lost = 0

    def statistics(self) -> dict[str, int]:
        return {"returned_messages": self.returned, "lost_answers": self._lost}

    def lose(self, broker: str, group: str, client_id: str, pop_ms: str) -> None:
        """Report that a client with a lease may not have got the messages of a pop. It holds them for a minute."""
        self._lost += 1
        fields = {"group": group, "clientId": client_id, "popTime": pop_ms}
        self._link.request(broker, Request.LOST_ANSWER, fields, self._on_response)

    def give_back(self, group: str, topic: str, popped: PoppedMessages) -> None:
        """Make the messages that are not yet read visible again, without counting an attempt."""
        try:
            while popped.unread_bytes:
                response = pb.ReceiveMessageResponse()
                popped.read(response)
                handle = decode_handle(response.message.system_properties.receipt_handle)
                fields = change_fields(group, topic, handle, 0, suspend=True)
                self._link.request(handle.broker_name, Request.CHANGE_MESSAGE_INVISIBLETIME, fields, self._on_response)
                self.returned += 1
        except LaterMQError as error:
            _log.error("messages cannot be returned", topic=topic, group=group, reason=error.remark)

    def _on_response(self, response: Command | LaterMQError) -> None:
        """A message that cannot be returned now is visible again after its invisible time."""
        if isinstance(response, LaterMQError):
            _log.debug("a message was not returned", reason=response.remark)
