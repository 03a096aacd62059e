"""Header fields of administration requests, one struct each; attributes are named as on the wire."""

from msgspec import Struct

from latermq.protocol.remoting.numbers import Int32, Int64


class GroupConfigHeader(Struct, kw_only=True):
    """GET_SUBSCRIPTIONGROUP_CONFIG (352) and QUERY_TOPICS_BY_CONSUMER (343)."""

    group: str


class GroupTopicHeader(Struct, kw_only=True):
    """QUERY_SUBSCRIPTION_BY_CONSUMER (345) and QUERY_CONSUME_TIME_SPAN (303)."""

    group: str
    topic: str = ""


class DeleteGroupHeader(Struct, kw_only=True):
    """DELETE_SUBSCRIPTIONGROUP (207)."""

    groupName: str
    cleanOffset: bool = False


class ProducerGroupHeader(Struct, kw_only=True):
    """GET_PRODUCER_CONNECTION_LIST (204)."""

    producerGroup: str


class ConsumeStatsHeader(Struct, kw_only=True):
    """GET_CONSUME_STATS (208): one topic, several joined by `;`, or all that the group has offsets in."""

    consumerGroup: str
    topic: str | None = None
    topicList: str | None = None


class BrokerConsumeStatsHeader(Struct, kw_only=True):
    """GET_BROKER_CONSUME_STATS (317)."""

    isOrder: bool = False


class ResetOffsetHeader(Struct, kw_only=True):
    """INVOKE_BROKER_TO_RESET_OFFSET (222): to a time in all queues, or to an offset in one; -1 stands for none."""

    group: str
    topic: str
    queueId: Int32 = -1
    offset: Int64 | None = None
    timestamp: Int64
    isForce: bool = False


class ConsumerStatusHeader(Struct, kw_only=True):
    """INVOKE_BROKER_TO_GET_CONSUMER_STATUS (223); `clientAddr` holds a client id, empty for all."""

    group: str
    topic: str
    clientAddr: str | None = None


class ClientHeader(Struct, kw_only=True):
    """GET_CONSUMER_RUNNING_INFO (307) and CONSUME_MESSAGE_DIRECTLY (309)."""

    consumerGroup: str
    clientId: str = ""
    msgId: str = ""
    topic: str = ""


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


class StatsHeader(Struct, kw_only=True):
    """VIEW_BROKER_STATS_DATA (315)."""

    statsName: str
    statsKey: str


class ConsumeQueueHeader(Struct, kw_only=True):
    """QUERY_CONSUME_QUEUE (321)."""

    topic: str
    queueId: Int32
    index: Int64
    count: Int32
    consumerGroup: str | None = None
