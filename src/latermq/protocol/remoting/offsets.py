"""Requests about consumer offsets: query, update, reset, clone and compare them."""

from msgspec import Raw, Struct

from latermq.config_json.numbers import Int32, Int64


class QueryOffsetHeader(Struct, kw_only=True, gc=False):
    """QUERY_CONSUMER_OFFSET (14)."""

    consumerGroup: str
    topic: str
    queueId: Int32
    setZeroIfNotFound: bool | None = None


class UpdateOffsetHeader(Struct, kw_only=True, gc=False):
    """UPDATE_CONSUMER_OFFSET (15)."""

    consumerGroup: str
    topic: str
    queueId: Int32
    commitOffset: Int64


class ResetOffsetHeader(Struct, kw_only=True):
    """INVOKE_BROKER_TO_RESET_OFFSET (222): to a time in all queues, or to an offset in one; -1 means none."""

    group: str
    topic: str
    queueId: Int32 = -1
    offset: Int64 | None = None
    timestamp: Int64
    isForce: bool = False


class OffsetsByQueue(Struct, kw_only=True):
    """INVOKE_BROKER_TO_RESET_OFFSET and RESET_CONSUMER_CLIENT_OFFSET: queue → offset."""

    offsetTable: Raw


class QueueOffset(Struct, kw_only=True):
    """A queue and its offset in the form for C++ clients."""

    topic: str
    brokerName: str
    queueId: Int32
    offset: Int64


class QueueOffsets(Struct, kw_only=True):
    """RESET_CONSUMER_CLIENT_OFFSET for C++ clients."""

    offsetTable: list[QueueOffset]


class CloneOffsetHeader(Struct, kw_only=True):
    """CLONE_GROUP_OFFSET (314)."""

    srcGroup: str
    destGroup: str
    topic: str = ""
    offline: bool = False


class CorrectionOffsetHeader(Struct, kw_only=True):
    """QUERY_CORRECTION_OFFSET (308)."""

    compareGroup: str
    topic: str
    filterGroups: str = ""


class CorrectionOffsets(Struct, kw_only=True):
    """QUERY_CORRECTION_OFFSET: queue id → offset."""

    correctionOffsets: dict[Int32, Int64]
