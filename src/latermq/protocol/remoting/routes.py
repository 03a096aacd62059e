"""Requests to a name server: broker registrations, the routes built from them, and the key-value table."""

from msgspec import Raw, Struct, field

from latermq.config_json.numbers import Int32, Int64
from latermq.config_json.topics import TopicTableJson


class RegisterBrokerBody(Struct, kw_only=True):
    """REGISTER_BROKER: the topics of a broker, as a name server decodes them."""

    topicConfigSerializeWrapper: TopicTableJson = field(default_factory=TopicTableJson)
    filterServerList: list[str] = field(default_factory=list)


class BrokerRegistration(Struct, kw_only=True):
    """The same body as a broker encodes it, with topics that are already JSON."""

    topicConfigSerializeWrapper: Raw
    filterServerList: list[str] = field(default_factory=list)


class QueueData(Struct, kw_only=True, gc=False):
    """The number of queues of a topic on one broker."""

    brokerName: str
    readQueueNums: Int32
    writeQueueNums: Int32
    perm: Int32
    topicSysFlag: Int32 = 0


class BrokerData(Struct, kw_only=True):
    """The addresses of one broker name, by broker id. Id 0 accepts writes."""

    cluster: str
    brokerName: str
    brokerAddrs: dict[Int64, str]


class TopicRoute(Struct, kw_only=True):
    """GET_ROUTEINFO_BY_TOPIC: the queues of a topic and the addresses of their brokers."""

    orderTopicConf: str | None = None
    queueDatas: list[QueueData] = field(default_factory=list)
    brokerDatas: list[BrokerData] = field(default_factory=list)
    filterServerTable: dict[str, list[str]] = field(default_factory=dict)


class ClusterInfo(Struct, kw_only=True):
    """GET_BROKER_CLUSTER_INFO. RocketMQ's name server reports no offline brokers, and its clients skip them."""

    brokerAddrTable: dict[str, BrokerData] = field(default_factory=dict)
    clusterAddrTable: dict[str, list[str]] = field(default_factory=dict)
    offlineBrokers: list[str] = field(default_factory=list)


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
    """BROKER_HEARTBEAT (904) and QUERY_DATA_VERSION (322): identifies a registration."""

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
    """DELETE_TOPIC_IN_NAMESRV (216): in one cluster, or in all clusters if the name is empty."""

    topic: str
    clusterName: str = ""


class KVTable(Struct, kw_only=True):
    """A table of texts: broker runtime information, or key-value pairs of the name server."""

    table: dict[str, str] = field(default_factory=dict)


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
