"""Requests about consumer groups: create, update, delete and list them, and get their progress."""

from msgspec import Raw, Struct, field

from latermq.config_json.groups import GroupJson
from latermq.config_json.numbers import Int64
from latermq.protocol.remoting.queues import MessageQueue


class SubscriptionGroupList(Struct, kw_only=True):
    """UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST."""

    groupConfigList: list[GroupJson] = field(default_factory=list)


class GroupHeader(Struct, kw_only=True):
    """Requests that name a consumer group: 38, 203, …"""

    consumerGroup: str


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


class GroupList(Struct, kw_only=True):
    """Lists of group names."""

    groupList: list[str] = field(default_factory=list)


class OffsetWrapper(Struct, kw_only=True):
    """One queue in GET_CONSUME_STATS."""

    brokerOffset: Int64
    consumerOffset: Int64
    pullOffset: Int64 = 0
    lastTimestamp: Int64 = 0


class ConsumeStatsHeader(Struct, kw_only=True):
    """GET_CONSUME_STATS (208): one topic, several separated by `;`, or all topics where the group has offsets."""

    consumerGroup: str
    topic: str | None = None
    topicList: str | None = None


class ConsumeStats(Struct, kw_only=True):
    """GET_CONSUME_STATS: queue → OffsetWrapper."""

    consumeTps: float
    offsetTable: Raw


class BrokerConsumeStatsHeader(Struct, kw_only=True):
    """GET_BROKER_CONSUME_STATS (317)."""

    isOrder: bool = False


class ConsumeStatsList(Struct, kw_only=True):
    """GET_BROKER_CONSUME_STATS: group → statistics of its topics."""

    consumeStatsList: list[dict[str, list[ConsumeStats]]]
    brokerAddr: str
    totalDiff: Int64
    totalInflightDiff: Int64 = 0


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
