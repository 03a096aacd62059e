"""JSON bodies of administration requests and their answers; attributes are named as in the JSON."""

from msgspec import UNSET, Raw, Struct, UnsetType, field

from latermq.protocol.remoting.bodies import MessageQueue, SubscriptionData, SubscriptionGroup, TopicConfig
from latermq.protocol.remoting.numbers import Int32, Int64


class TopicConfigList(Struct, kw_only=True):
    """UPDATE_AND_CREATE_TOPIC_LIST."""

    topicConfigList: list[TopicConfig] = field(default_factory=list)


class SubscriptionGroupList(Struct, kw_only=True):
    """UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST."""

    groupConfigList: list[SubscriptionGroup] = field(default_factory=list)


class TopicStats(Struct, kw_only=True):
    """GET_TOPIC_STATS_INFO: queue → TopicOffset."""

    topicPutTps: float
    offsetTable: Raw


class ConsumeStats(Struct, kw_only=True):
    """GET_CONSUME_STATS: queue → OffsetWrapper."""

    consumeTps: float
    offsetTable: Raw


class ConsumeStatsList(Struct, kw_only=True):
    """GET_BROKER_CONSUME_STATS: for each group its topics."""

    consumeStatsList: list[dict[str, list[ConsumeStats]]]
    brokerAddr: str
    totalDiff: Int64
    totalInflightDiff: Int64 = 0


class OffsetsByQueue(Struct, kw_only=True):
    """INVOKE_BROKER_TO_RESET_OFFSET and RESET_CONSUMER_CLIENT_OFFSET: queue → offset."""

    offsetTable: Raw


class QueueOffset(Struct, kw_only=True):
    """A queue and its offset as clients in C++ take them."""

    topic: str
    brokerName: str
    queueId: Int32
    offset: Int64


class QueueOffsets(Struct, kw_only=True):
    """RESET_CONSUMER_CLIENT_OFFSET for clients in C++."""

    offsetTable: list[QueueOffset]


class ConsumerStatus(Struct, kw_only=True):
    """INVOKE_BROKER_TO_GET_CONSUMER_STATUS: client id → queue → offset."""

    consumerTable: dict[str, Raw] = field(default_factory=dict)


class QueueTimeSpan(Struct, kw_only=True):
    """One queue in QUERY_CONSUME_TIME_SPAN."""

    messageQueue: MessageQueue
    minTimeStamp: Int64
    maxTimeStamp: Int64
    consumeTimeStamp: Int64
    delayTime: Int64 = 0


class ConsumeTimeSpans(Struct, kw_only=True):
    """QUERY_CONSUME_TIME_SPAN."""

    consumeTimeSpanSet: list[QueueTimeSpan]


class CorrectionOffsets(Struct, kw_only=True):
    """QUERY_CORRECTION_OFFSET: queue id → offset."""

    correctionOffsets: dict[Int32, Int64]


class SubscriptionAnswer(Struct, kw_only=True):
    """QUERY_SUBSCRIPTION_BY_CONSUMER."""

    group: str
    topic: str
    subscriptionData: SubscriptionData | None = None


class ProducerInfo(Struct, kw_only=True):
    """One producer in GET_ALL_PRODUCER_INFO."""

    clientId: str
    remoteIP: str
    language: str
    version: Int32
    lastUpdateTimestamp: Int64


class ProducerTable(Struct, kw_only=True):
    """GET_ALL_PRODUCER_INFO."""

    data: dict[str, list[ProducerInfo]]


class QueueEntry(Struct, kw_only=True):
    """One entry in QUERY_CONSUME_QUEUE."""

    physicOffset: Int64
    physicSize: Int32
    tagsCode: Int64
    eval: bool = False


class QueueEntries(Struct, kw_only=True):
    """QUERY_CONSUME_QUEUE."""

    maxQueueIndex: Int64
    minQueueIndex: Int64
    queueData: list[QueueEntry]
    subscriptionData: SubscriptionData | UnsetType = UNSET
    filterData: str | UnsetType = UNSET


class StatsItem(Struct, kw_only=True):
    """How many, and how many a second, over one span of time."""

    sum: Int64
    tps: float
    avgpt: float = 0.0


class BrokerStats(Struct, kw_only=True):
    """VIEW_BROKER_STATS_DATA."""

    statsMinute: StatsItem
    statsHour: StatsItem
    statsDay: StatsItem


class ReplicationClient(Struct, kw_only=True):
    """The side of a replica in GET_BROKER_HA_STATUS; a master has none and says so with zeros."""

    masterAddr: str = ""
    transferredByteInSecond: Int64 = 0
    maxOffset: Int64 = 0
    lastReadTimestamp: Int64 = 0
    lastWriteTimestamp: Int64 = 0
    masterFlushOffset: Int64 = 0
    activated: bool = False


class ReplicationStatus(Struct, kw_only=True):
    """GET_BROKER_HA_STATUS of a master without replicas."""

    master: bool = True
    masterCommitLogMaxOffset: Int64
    inSyncSlaveNums: Int32 = 0
    haConnectionInfo: list[Raw] = field(default_factory=list)
    haClientRuntimeInfo: ReplicationClient = field(default_factory=ReplicationClient)
