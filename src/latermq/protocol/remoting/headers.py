"""Header fields of requests and responses, one struct each; attributes are named as on the wire unless renamed."""

from typing import Literal

from msgspec import Struct

from latermq.protocol.remoting.numbers import Int32, Int64

TopicFilterType = Literal["SINGLE_TAG", "MULTI_TAG"]


class SendHeader(Struct, kw_only=True, gc=False):
    """SEND_MESSAGE (10): the long names of the same fields as SEND_MESSAGE_V2."""

    producerGroup: str = ""
    topic: str
    defaultTopic: str = ""
    defaultTopicQueueNums: Int32 = 8
    queueId: Int32
    sysFlag: Int32 = 0
    bornTimestamp: Int64 = 0
    flag: Int32 = 0
    properties: str = ""
    reconsumeTimes: Int32 = 0
    unitMode: bool = False
    batch: bool = False
    maxReconsumeTimes: Int32 | None = None


class SendHeaderV2(
    Struct,
    kw_only=True,
    gc=False,
    rename={
        "producerGroup": "a",
        "topic": "b",
        "defaultTopic": "c",
        "defaultTopicQueueNums": "d",
        "queueId": "e",
        "sysFlag": "f",
        "bornTimestamp": "g",
        "flag": "h",
        "properties": "i",
        "reconsumeTimes": "j",
        "unitMode": "k",
        "maxReconsumeTimes": "l",
        "batch": "m",
    },
):
    """SEND_MESSAGE_V2 (310) and SEND_BATCH_MESSAGE (320): one-letter names, the path nearly every message takes."""

    producerGroup: str = ""
    topic: str
    defaultTopic: str = ""
    defaultTopicQueueNums: Int32 = 8
    queueId: Int32
    sysFlag: Int32 = 0
    bornTimestamp: Int64 = 0
    flag: Int32 = 0
    properties: str = ""
    reconsumeTimes: Int32 = 0
    unitMode: bool = False
    batch: bool = False
    maxReconsumeTimes: Int32 | None = None


class PullHeader(Struct, kw_only=True, gc=False):
    """PULL_MESSAGE (11) and LITE_PULL_MESSAGE (361)."""

    consumerGroup: str
    topic: str
    queueId: Int32
    queueOffset: Int64
    maxMsgNums: Int32
    sysFlag: Int32 = 0
    commitOffset: Int64 = 0
    suspendTimeoutMillis: Int64 = 0
    subscription: str | None = None
    subVersion: Int64 = 0
    expressionType: str | None = None
    maxMsgBytes: Int32 | None = None


PULL_COMMIT_OFFSET = 1
PULL_SUSPEND = 2
PULL_SUBSCRIPTION = 4


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


class TopicHeader(Struct, kw_only=True):
    """Requests that name a topic and nothing else: 105, 202, 300, 351, …"""

    topic: str


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


class ViewMessageHeader(Struct, kw_only=True):
    """VIEW_MESSAGE_BY_ID (33): the physical offset out of the id."""

    offset: Int64
    topic: str | None = None


class CreateTopicHeader(Struct, kw_only=True):
    """UPDATE_AND_CREATE_TOPIC (17)."""

    topic: str
    defaultTopic: str = ""
    readQueueNums: Int32
    writeQueueNums: Int32
    perm: Int32
    topicFilterType: TopicFilterType = "SINGLE_TAG"
    topicSysFlag: Int32 = 0
    order: bool = False
    attributes: str | None = None


class UnregisterClientHeader(Struct, kw_only=True):
    """UNREGISTER_CLIENT (35)."""

    clientID: str
    producerGroup: str | None = None
    consumerGroup: str | None = None


class GroupHeader(Struct, kw_only=True):
    """Requests that name a consumer group: 38, 203, …"""

    consumerGroup: str


class SendBackHeader(Struct, kw_only=True):
    """CONSUMER_SEND_MSG_BACK (36)."""

    offset: Int64
    group: str
    delayLevel: Int32
    originMsgId: str | None = None
    originTopic: str | None = None
    unitMode: bool = False
    maxReconsumeTimes: Int32 | None = None


class RegisterBrokerHeader(Struct, kw_only=True):
    """REGISTER_BROKER (103)."""

    brokerName: str
    brokerAddr: str
    clusterName: str
    haServerAddr: str = ""
    brokerId: Int64
    heartbeatTimeoutMillis: Int64 | None = None
    enableActingMaster: bool | None = None
    compressed: bool = False
    bodyCrc32: Int32 = 0


class UnregisterBrokerHeader(Struct, kw_only=True):
    """UNREGISTER_BROKER (104)."""

    brokerName: str
    brokerAddr: str
    clusterName: str
    brokerId: Int64


class LiveBrokerHeader(Struct, kw_only=True):
    """BROKER_HEARTBEAT (904) and QUERY_DATA_VERSION (322): which registration is meant."""

    clusterName: str
    brokerAddr: str


class BrokerNameHeader(Struct, kw_only=True):
    """WIPE_WRITE_PERM_OF_BROKER (205) and ADD_WRITE_PERM_OF_BROKER (327)."""

    brokerName: str


class BrokerMembersHeader(Struct, kw_only=True):
    """GET_BROKER_MEMBER_GROUP (901)."""

    clusterName: str
    brokerName: str


class ClusterHeader(Struct, kw_only=True):
    """GET_TOPICS_BY_CLUSTER (224)."""

    cluster: str


class DeleteRouteHeader(Struct, kw_only=True):
    """DELETE_TOPIC_IN_NAMESRV (216): in one cluster, or in all where none is named."""

    topic: str
    clusterName: str = ""


class NamespaceHeader(Struct, kw_only=True):
    """GET_KVLIST_BY_NAMESPACE (219)."""

    namespace: str


class KVKeyHeader(Struct, kw_only=True):
    """GET_KV_CONFIG (101) and DELETE_KV_CONFIG (102)."""

    namespace: str
    key: str


class PutKVHeader(Struct, kw_only=True):
    """PUT_KV_CONFIG (100)."""

    namespace: str
    key: str
    value: str
