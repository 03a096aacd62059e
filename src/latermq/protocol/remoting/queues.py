"""Requests about the offsets of one queue."""

from msgspec import Struct

from latermq.config_json.numbers import Int32, Int64


class MessageQueue(Struct, frozen=True, order=True):
    """One queue of one topic on one broker."""

    topic: str
    brokerName: str
    queueId: Int32


class QueueHeader(Struct, kw_only=True, gc=False):
    """GET_MAX_OFFSET (30), GET_MIN_OFFSET (31), GET_EARLIEST_MSG_STORETIME (32)."""

    topic: str
    queueId: Int32
    committed: bool = True


class SearchOffsetHeader(Struct, kw_only=True):
    """SEARCH_OFFSET_BY_TIMESTAMP (29)."""

    topic: str
    queueId: Int32
    timestamp: Int64
    boundaryType: str | None = None
