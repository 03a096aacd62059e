"""Consumer groups: their configuration as brokers keep it, and their progress."""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType, field

from latermq.protocol.remoting.numbers import Int32, Int64
from latermq.protocol.remoting.queues import MessageQueue
from latermq.protocol.remoting.topics import DataVersion


class GroupSubscription(Struct, kw_only=True):
    """What operators say in advance that a group subscribes to; LaterMQ keeps it and goes by heartbeats."""

    topic: str | None = None
    expressionType: str | None = None
    expression: str | None = None
    version: Int64 = 0


class ExponentialRetryPolicy(Struct, kw_only=True):
    """Pauses that grow, in milliseconds."""

    initial: Int64 = 5_000
    max: Int64 = 7_200_000
    multiplier: Int64 = 2


class CustomizedRetryPolicy(Struct, kw_only=True):
    """Pauses one by one, in milliseconds."""

    next: Annotated[list[Int64], Meta(max_length=64)] = field(default_factory=list)


class GroupRetryPolicy(Struct, kw_only=True):
    """When POP consumers of RocketMQ's get a failed message again; LaterMQ only keeps it."""

    type: Literal["CUSTOMIZED", "EXPONENTIAL"] = "CUSTOMIZED"
    exponentialRetryPolicy: ExponentialRetryPolicy | UnsetType | None = UNSET
    customizedRetryPolicy: CustomizedRetryPolicy | UnsetType | None = UNSET


class SubscriptionGroup(Struct, kw_only=True):
    """A consumer group as brokers keep it in subscriptionGroup.json.

    Every field is typed, and fields that are not named here are dropped: what is saved must be understood by the next
    start.
    """

    groupName: str
    consumeEnable: bool = True
    consumeFromMinEnable: bool = True
    consumeBroadcastEnable: bool = True
    consumeMessageOrderly: bool = False
    retryQueueNums: Int32 = 1
    retryMaxTimes: Int32 = 16
    brokerId: Int64 = 0
    whichBrokerWhenConsumeSlowly: Int64 = 1
    notifyConsumerIdsChangedEnable: bool = True
    groupSysFlag: Int32 = 0
    consumeTimeoutMinute: Int32 = 15
    subscriptionDataSet: list[GroupSubscription] | None = None
    groupRetryPolicy: GroupRetryPolicy = field(default_factory=GroupRetryPolicy)
    attributes: dict[str, str] = field(default_factory=dict)


class SubscriptionGroupTable(Struct, kw_only=True):
    """subscriptionGroup.json and the body of GET_ALL_SUBSCRIPTIONGROUP_CONFIG."""

    subscriptionGroupTable: dict[str, SubscriptionGroup] = field(default_factory=dict)
    forbiddenTable: dict[str, dict[str, Int32]] = field(default_factory=dict)
    dataVersion: DataVersion = field(default_factory=DataVersion)


class SubscriptionGroupList(Struct, kw_only=True):
    """UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST."""

    groupConfigList: list[SubscriptionGroup] = field(default_factory=list)


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
    """GET_CONSUME_STATS (208): one topic, several joined by `;`, or all that the group has offsets in."""

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
    """GET_BROKER_CONSUME_STATS: for each group its topics."""

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
