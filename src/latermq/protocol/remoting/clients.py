"""Requests about clients: heartbeats, connections, queue locks, and queries that only a connected client can answer."""

from msgspec import Raw, Struct, field

from latermq.config_json.numbers import Int32, Int64
from latermq.model.heartbeat import Consumer, Heartbeat
from latermq.model.subscription import Subscription
from latermq.protocol.remoting.queues import MessageQueue


class SubscriptionData(Struct, kw_only=True):
    """A group's subscription to one topic."""

    topic: str
    subString: str = "*"
    expressionType: str | None = "TAG"
    tagsSet: list[str] = field(default_factory=list)
    codeSet: list[Int32] = field(default_factory=list)
    subVersion: Int64 = 0
    classFilterMode: bool = False


def read_subscription(data: SubscriptionData) -> Subscription:
    """Convert RocketMQ's fields to a subscription."""
    return Subscription(
        topic=data.topic,
        expression=data.subString,
        expression_type=data.expressionType,
        tags=data.tagsSet,
        codes=data.codeSet,
        version=data.subVersion,
        is_class_filter=data.classFilterMode,
    )


def write_subscription(subscription: Subscription) -> SubscriptionData:
    """Convert a subscription to RocketMQ's fields."""
    return SubscriptionData(
        topic=subscription.topic,
        subString=subscription.expression,
        expressionType=subscription.expression_type,
        tagsSet=subscription.tags,
        codeSet=subscription.codes,
        subVersion=subscription.version,
        classFilterMode=subscription.is_class_filter,
    )


class ProducerData(Struct, kw_only=True):
    """A producer group in a heartbeat."""

    groupName: str


class ConsumerData(Struct, kw_only=True):
    """A consumer group in a heartbeat."""

    groupName: str
    consumeType: str | None = "CONSUME_PASSIVELY"
    messageModel: str | None = "CLUSTERING"
    consumeFromWhere: str | None = "CONSUME_FROM_LAST_OFFSET"
    subscriptionDataSet: list[SubscriptionData] = field(default_factory=list)
    unitMode: bool = False


class HeartbeatData(Struct, kw_only=True):
    """HEART_BEAT: a client's id and its groups."""

    clientID: str
    producerDataSet: list[ProducerData] = field(default_factory=list)
    consumerDataSet: list[ConsumerData] = field(default_factory=list)
    heartbeatFingerprint: Int32 = 0
    # Java derives this name from the getter of its field `isWithoutSub`.
    withoutSub: bool = False


def read_heartbeat(data: HeartbeatData) -> Heartbeat:
    """Convert RocketMQ's fields to a heartbeat."""
    consumers = [
        Consumer(
            group=one.groupName,
            consume_type=one.consumeType,
            message_model=one.messageModel,
            consume_from=one.consumeFromWhere,
            subscriptions=[read_subscription(wanted) for wanted in one.subscriptionDataSet],
        )
        for one in data.consumerDataSet
    ]
    producer_groups = [producer.groupName for producer in data.producerDataSet]
    return Heartbeat(client_id=data.clientID, producer_groups=producer_groups, consumers=consumers)


class UnregisterClientHeader(Struct, kw_only=True):
    """UNREGISTER_CLIENT (35)."""

    clientID: str
    producerGroup: str | None = None
    consumerGroup: str | None = None


class ConsumerIdList(Struct, kw_only=True):
    """GET_CONSUMER_LIST_BY_GROUP."""

    consumerIdList: list[str] = field(default_factory=list)


class LockBatchRequest(Struct, kw_only=True):
    """LOCK_BATCH_MQ and UNLOCK_BATCH_MQ."""

    consumerGroup: str
    clientId: str
    onlyThisBroker: bool = False
    mqSet: list[MessageQueue] = field(default_factory=list)


class LockBatchResponse(Struct, kw_only=True):
    """LOCK_BATCH_MQ: the requested queues that the client now holds."""

    lockOKMQSet: list[MessageQueue] = field(default_factory=list)


class Connection(Struct, kw_only=True):
    """One client connection in a connection list."""

    clientId: str
    clientAddr: str
    language: str
    version: Int32


class ConsumerConnection(Struct, kw_only=True):
    """GET_CONSUMER_CONNECTION_LIST."""

    connectionSet: list[Connection] = field(default_factory=list)
    subscriptionTable: dict[str, SubscriptionData] = field(default_factory=dict)
    consumeType: str | None = None
    messageModel: str | None = None
    consumeFromWhere: str | None = None


class ProducerConnection(Struct, kw_only=True):
    """GET_PRODUCER_CONNECTION_LIST."""

    connectionSet: list[Connection] = field(default_factory=list)


class ProducerGroupHeader(Struct, kw_only=True):
    """GET_PRODUCER_CONNECTION_LIST (204)."""

    producerGroup: str


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


class ClientHeader(Struct, kw_only=True):
    """GET_CONSUMER_RUNNING_INFO (307) and CONSUME_MESSAGE_DIRECTLY (309)."""

    consumerGroup: str
    clientId: str = ""
    msgId: str = ""
    topic: str = ""


class ConsumerStatusHeader(Struct, kw_only=True):
    """INVOKE_BROKER_TO_GET_CONSUMER_STATUS (223); `clientAddr` is a client id, or empty for all clients."""

    group: str
    topic: str
    clientAddr: str | None = None


class ConsumerStatus(Struct, kw_only=True):
    """INVOKE_BROKER_TO_GET_CONSUMER_STATUS: client id → queue → offset."""

    consumerTable: dict[str, Raw] = field(default_factory=dict)


class SubscriptionAnswer(Struct, kw_only=True):
    """QUERY_SUBSCRIPTION_BY_CONSUMER."""

    group: str
    topic: str
    subscriptionData: SubscriptionData | None = None
