"""Queries of a queue's offsets at its broker: the first offset, the next one, and the offset at a given time."""

from latermq.client.consumer.offsets import OffsetResponse
from latermq.client.session.session import Session
from latermq.protocol.remoting.codes import Request
from latermq.protocol.remoting.queues import MessageQueue


async def min_offset(session: Session, queue: MessageQueue) -> int:
    """Return the offset of the oldest stored message."""
    return await _call(session, queue, Request.GET_MIN_OFFSET)


async def max_offset(session: Session, queue: MessageQueue) -> int:
    """Return the offset that the next message will get."""
    return await _call(session, queue, Request.GET_MAX_OFFSET)


async def search_offset(session: Session, queue: MessageQueue, timestamp_ms: int) -> int:
    """Return the offset of the first message stored at or after a time."""
    return await _call(session, queue, Request.SEARCH_OFFSET_BY_TIMESTAMP, timestamp=str(timestamp_ms))


async def _call(session: Session, queue: MessageQueue, code: int, **extra_fields: str) -> int:
    response = await session.connections.call(
        await session.routes.broker_address(queue),
        code,
        {"topic": queue.topic, "queueId": str(queue.queueId), **extra_fields},
        timeout_s=session.request_timeout_s,
    )
    return response.header(OffsetResponse).offset
