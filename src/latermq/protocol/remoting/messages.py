"""Look-up of stored messages by key, by id, or as entries of a queue."""

from msgspec import UNSET, Struct, UnsetType

from latermq.config_json.numbers import Int32, Int64
from latermq.model.queue_entries import QueueEntries
from latermq.protocol.remoting.clients import SubscriptionData, write_subscription


class QueryMessageHeader(Struct, kw_only=True):
    """QUERY_MESSAGE (12)."""

    topic: str
    key: str
    maxNum: Int32 = 32
    beginTimestamp: Int64 = 0
    endTimestamp: Int64 = 0x7FFFFFFFFFFFFFFF
    indexType: str | None = None
    lastKey: str | None = None
    _UNIQUE_KEY_QUERY: str | None = None


class ViewMessageHeader(Struct, kw_only=True):
    """VIEW_MESSAGE_BY_ID (33): `offset` is the physical offset in the id."""

    offset: Int64
    topic: str | None = None


class ConsumeQueueHeader(Struct, kw_only=True):
    """QUERY_CONSUME_QUEUE (321)."""

    topic: str
    queueId: Int32
    index: Int64
    count: Int32
    consumerGroup: str | None = None


class QueueEntryData(Struct, kw_only=True):
    """One entry in QUERY_CONSUME_QUEUE."""

    physicOffset: Int64
    physicSize: Int32
    tagsCode: Int64
    eval: bool = False


class QueueEntriesBody(Struct, kw_only=True):
    """QUERY_CONSUME_QUEUE."""

    maxQueueIndex: Int64
    minQueueIndex: Int64
    queueData: list[QueueEntryData]
    subscriptionData: SubscriptionData | UnsetType = UNSET
    filterData: str | UnsetType = UNSET


def write_queue_entries(listed: QueueEntries) -> QueueEntriesBody:
    """Convert entries of a queue to RocketMQ's fields."""
    return QueueEntriesBody(
        maxQueueIndex=listed.max_offset,
        minQueueIndex=listed.min_offset,
        queueData=[
            QueueEntryData(
                physicOffset=one.physical_offset, physicSize=one.size_bytes, tagsCode=one.tags_code, eval=one.is_wanted
            )
            for one in listed.entries
        ],
        subscriptionData=write_subscription(listed.subscription) if listed.subscription is not None else UNSET,
        filterData=listed.note if listed.note is not None else UNSET,
    )
