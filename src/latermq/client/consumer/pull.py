"""The pull request, used by both consumers, and its result."""

from dataclasses import dataclass, field

import msgspec

from latermq.client.consumer.subscription import matches_tags
from latermq.client.session.session import Session
from latermq.message.record import Message, decode_records
from latermq.protocol.remoting.clients import SubscriptionData
from latermq.protocol.remoting.codes import Request, Response
from latermq.protocol.remoting.pull import PULL_SUBSCRIPTION, PULL_SUSPEND
from latermq.protocol.remoting.queues import MessageQueue

FOUND = "FOUND"
NO_NEW = "NO_NEW"
NO_MATCH = "NO_MATCH"
OFFSET_MOVED = "OFFSET_MOVED"
_STATUS = {
    Response.SUCCESS: FOUND,
    Response.PULL_NOT_FOUND: NO_NEW,
    Response.PULL_RETRY_IMMEDIATELY: NO_MATCH,
    Response.PULL_OFFSET_MOVED: OFFSET_MOVED,
}
_ACCEPTED = tuple(_STATUS)
# How much longer than its requested wait a long poll may take.
RESPONSE_MARGIN_S = 15.0


@dataclass(slots=True)
class PullResult:
    """The result of a pull. `status`: FOUND, NO_NEW (end of the queue), NO_MATCH (all filtered) or OFFSET_MOVED."""

    status: str
    messages: list[Message] = field(default_factory=list)
    next_offset: int = 0
    min_offset: int = 0
    max_offset: int = 0


class PullResponse(msgspec.Struct, gc=False):
    """Header fields of a pull response, named as on the wire."""

    nextBeginOffset: int = 0
    minOffset: int = 0
    maxOffset: int = 0


async def pull(
    session: Session,
    group: str,
    queue: MessageQueue,
    offset: int,
    data: SubscriptionData,
    *,
    max_messages: int,
    wait_s: float,
    include_subscription: bool,
) -> PullResult:
    """Pull messages of a queue from `offset`. The broker holds the request up to `wait_s` until a message arrives.

    A consumer without heartbeats must set `include_subscription`. Otherwise the broker has its subscription already.
    """
    flags = (PULL_SUSPEND if wait_s > 0 else 0) | (PULL_SUBSCRIPTION if include_subscription else 0)
    fields = {
        "consumerGroup": group,
        "topic": queue.topic,
        "queueId": str(queue.queueId),
        "queueOffset": str(offset),
        "maxMsgNums": str(max_messages),
        "sysFlag": str(flags),
        "commitOffset": "0",
        "suspendTimeoutMillis": str(int(wait_s * 1000)),
        "subVersion": str(data.subVersion),
        "expressionType": data.expressionType or "TAG",
    }
    if include_subscription:
        fields["subscription"] = data.subString
    response = await session.connections.call(
        await session.routes.broker_address(queue),
        Request.PULL_MESSAGE,
        fields,
        timeout_s=wait_s + RESPONSE_MARGIN_S,
        accept=_ACCEPTED,
    )
    header = response.header(PullResponse)
    messages = [message for message in decode_records(response.body) if matches_tags(data, message)]
    status = _STATUS[Response(response.code)]
    return PullResult(status, messages, header.nextBeginOffset, header.minOffset, header.maxOffset)
