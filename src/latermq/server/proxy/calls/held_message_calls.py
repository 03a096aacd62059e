"""Calls about a message that a consumer holds: ChangeInvisibleDuration and ForwardMessageToDeadLetterQueue."""

from msgspec import Struct

from latermq.config import Duration
from latermq.config_json.numbers import Int32, Int64
from latermq.errors import LaterMQError
from latermq.group.pop.handles import ReceiptHandle
from latermq.protocol.messaging import messaging_pb2 as pb
from latermq.protocol.messaging.checked_names import check_group_name, check_topic_name
from latermq.protocol.messaging.refusals import CallRefused
from latermq.protocol.messaging.resources import full_name
from latermq.protocol.messaging.times import duration_ms
from latermq.protocol.remoting.codes import Request, Response
from latermq.protocol.remoting.frames import Command
from latermq.server.proxy.brokers.broker_link import BrokerLink, error_of, header_of
from latermq.server.proxy.calls.ack_calls import read_handle, stale_handle
from latermq.server.proxy.calls.call_table import CallEndpoint, Exchange, on_group, on_topic
from latermq.server.proxy.calls.returned_messages import change_fields
from latermq.server.proxy.statuses import OK
from latermq.server.remoting.access import SUB

_ACCESS = (on_topic("topic", SUB), on_group("group", SUB))


class ChangeReply(Struct, kw_only=True):
    """The header of the reply to CHANGE_MESSAGE_INVISIBLETIME (200053)."""

    popTime: Int64
    invisibleTime: Int64
    reviveQid: Int32


class HeldMessageCalls:
    """The calls about one held message."""

    def __init__(self, link: BrokerLink, max_invisible: Duration) -> None:
        self._link = link
        self._max_invisible = max_invisible

    @property
    def endpoints(self) -> list[CallEndpoint]:
        return [
            CallEndpoint(
                "ChangeInvisibleDuration",
                pb.ChangeInvisibleDurationRequest,
                pb.ChangeInvisibleDurationResponse,
                self._change,
                _ACCESS,
            ),
            CallEndpoint(
                "ForwardMessageToDeadLetterQueue",
                pb.ForwardMessageToDeadLetterQueueRequest,
                pb.ForwardMessageToDeadLetterQueueResponse,
                self._bury,
                _ACCESS,
            ),
        ]

    def _change(self, exchange: Exchange, request: pb.ChangeInvisibleDurationRequest) -> None:
        old = request.receipt_handle

        def refuse(error: LaterMQError) -> None:
            # Clients continue with the handle in the answer, even if it is an error.
            exchange.reply(pb.ChangeInvisibleDurationResponse(status=exchange.refuse(error), receipt_handle=old))

        try:
            group, topic, handle = _held(request)
            invisible_ms = duration_ms(request.invisible_duration)
            if not 0 <= invisible_ms <= self._max_invisible:
                raise CallRefused(
                    pb.ILLEGAL_INVISIBLE_TIME,
                    f"the invisible duration is {invisible_ms} ms",
                    hint=f"Use 0 to {self._max_invisible // 1000} s",
                )
        except LaterMQError as error:
            refuse(error)
            return

        def on_response(response: Command | LaterMQError) -> None:
            try:
                new = _changed(handle, header_of(_checked(response), ChangeReply))
            except LaterMQError as error:
                refuse(error)
                return
            exchange.reply(pb.ChangeInvisibleDurationResponse(status=OK, receipt_handle=new))

        fields = change_fields(group, topic, handle, invisible_ms, request.suspend)
        self._link.request(handle.broker_name, Request.CHANGE_MESSAGE_INVISIBLETIME, fields, on_response)

    def _bury(self, exchange: Exchange, request: pb.ForwardMessageToDeadLetterQueueRequest) -> None:
        group, topic, handle = _held(request)

        def on_response(response: Command | LaterMQError) -> None:
            try:
                _checked(response)
            except LaterMQError as error:
                exchange.fail(error)
                return
            exchange.reply(pb.ForwardMessageToDeadLetterQueueResponse(status=OK))

        fields = {
            "group": group,
            "topic": handle.real_topic(group, topic),
            "queueId": str(handle.queue_id),
            "offset": str(handle.offset),
            "popTime": str(handle.pop_ms),
            "reason": f"its consumer gave up after {request.delivery_attempt} attempts",
        }
        self._link.request(handle.broker_name, Request.BURY_POPPED, fields, on_response)


def _held(
    request: pb.ChangeInvisibleDurationRequest | pb.ForwardMessageToDeadLetterQueueRequest,
) -> tuple[str, str, ReceiptHandle]:
    group, topic = full_name(request.group), full_name(request.topic)
    check_group_name(group)
    check_topic_name(topic)
    return group, topic, read_handle(request.receipt_handle)


def _checked(response: Command | LaterMQError) -> Command:
    if isinstance(response, LaterMQError):
        raise response
    if response.code == Response.NO_MESSAGE:
        raise stale_handle()
    if response.code:
        raise error_of(response)
    return response


def _changed(handle: ReceiptHandle, reply: ChangeReply) -> str:
    """Return the handle of a message whose invisible time was changed."""
    return handle._replace(
        start_offset=handle.offset,
        pop_ms=reply.popTime,
        invisible_ms=reply.invisibleTime,
        revive_queue_id=reply.reviveQid,
    ).encode()
