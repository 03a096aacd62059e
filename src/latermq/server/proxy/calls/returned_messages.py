"""Messages that were popped but could not be handed to a client: their broker makes them visible again at once.

A request that fails because the broker is away or busy is repeated with back-off. Repeating it does no harm: the broker
finds nothing to change if it had carried it out, or if the messages were delivered again meanwhile.
"""

from collections.abc import Callable

import structlog

from latermq.config import ProxyConfig
from latermq.errors import LaterMQError
from latermq.group.pop.handles import ReceiptHandle, decode_handle
from latermq.protocol.messaging import messaging_pb2 as pb
from latermq.protocol.messaging.popped_messages import PoppedMessages
from latermq.protocol.remoting.codes import Request
from latermq.protocol.remoting.frames import Command
from latermq.retry import pause_after
from latermq.server.proxy.brokers.broker_link import BrokerLink, error_of

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 5.0

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

    def __init__(
        self,
        link: BrokerLink,
        config: ProxyConfig,
        now_s: Callable[[], float],
        later: Callable[[float, Callable[[], None]], object],
    ) -> None:
        """`later` is `call_later` of the event loop, and `now_s` its time."""
        self._link = link
        self._now_s = now_s
        self._later = later
        self._timeout_s = config.return_timeout / 1000
        self._max_retried = config.max_returns
        self._retried = 0  # requests that wait for their next try
        self._returned = 0
        self._lost = 0
        self._dropped = 0

    def statistics(self) -> dict[str, int]:
        return {
            "returned_messages": self._returned,
            "lost_answers": self._lost,
            "retried_returns": self._retried,
            "dropped_returns": self._dropped,
        }

    def lose(self, broker: str, group: str, client_id: str, pop_ms: str) -> None:
        """Report that a client with a lease may not have got the messages of a pop. It holds them for a minute."""
        self._lost += 1
        self._request(broker, Request.LOST_ANSWER, {"group": group, "clientId": client_id, "popTime": pop_ms})

    def give_back(self, group: str, topic: str, popped: PoppedMessages) -> None:
        """Make the messages that are not yet read visible again, without counting an attempt."""
        try:
            while popped.unread_bytes:
                response = pb.ReceiveMessageResponse()
                popped.read(response)
                handle = decode_handle(response.message.system_properties.receipt_handle)
                fields = change_fields(group, topic, handle, 0, suspend=True)
                self._request(handle.broker_name, Request.CHANGE_MESSAGE_INVISIBLETIME, fields)
                self._returned += 1
        except LaterMQError as error:
            _log.error("messages cannot be returned", topic=topic, group=group, reason=error.remark)

    def _request(self, broker: str, code: int, fields: dict[str, str]) -> None:
        until_s = self._now_s() + self._timeout_s
        failures = 0

        def on_response(response: Command | LaterMQError) -> None:
            nonlocal failures
            error = error_of(response) if isinstance(response, Command) and response.code else response
            if isinstance(error, Command) or not error.retriable:
                return  # a handle that is no longer valid included: the message is not held any more
            pause_s = pause_after(failures, FIRST_PAUSE_S, LONGEST_PAUSE_S)
            failures += 1
            if self._retried >= self._max_retried or self._now_s() + pause_s > until_s:
                self._dropped += 1
                _log.debug("a message was not returned", broker=broker, reason=error.remark)
                return
            self._retried += 1
            self._later(pause_s, retry)

        def retry() -> None:
            self._retried -= 1
            self._link.request(broker, code, fields, on_response)

        self._link.request(broker, code, fields, on_response)
