"""Routes: registrations of brokers, the routes made of them, and the name server's key-value table."""

from msgspec import Raw, Struct, field

from latermq.config_json.numbers import Int32, Int64
from latermq.config_json.topics import TopicTableJson


class RegisterBrokerBody(Struct, kw_only=True):
    """REGISTER_BROKER: what a broker tells a name server."""

    topicConfigSerializeWrapper: TopicTableJson = field(default_factory=TopicTableJson)
    filterServerList: list[str] = field(default_factory=list)


class BrokerRegistration(Struct, kw_only=True):
    """The same as a broker writes it, which has the JSON of its topics at hand."""

    topicConfigSerializeWrapper: Raw
    filterServerList: list[str] = field(default_factory=list)


class QueueData(Struct, kw_only=True, gc=False):
    """How many queues of a topic one broker has."""

    brokerName: str
    readQueueNums: Int32
    writeQueueNums: Int32
    perm: Int32
    topicSysFlag: Int32 = 0


class BrokerData(Struct, kw_only=True):
    """Where one broker name is reached; id 0 is the one that takes writes."""

    cluster: str
    brokerName: str
    brokerAddrs: dict[Int64, str]


class TopicRoute(Struct, kw_only=True):
    """GET_ROUTEINFO_BY_TOPIC: the queues of a topic and where they are."""

    orderTopicConf: str | None = None
    queueDatas: list[QueueData] = field(default_factory=list)
    brokerDatas: list[BrokerData] = field(default_factory=list)
    filterServerTable: dict[str, list[str]] = field(default_factory=dict)


class ClusterInfo(Struct, kw_only=True):
    """GET_BROKER_CLUSTER_INFO."""

    brokerAddrTable: dict[str, BrokerData] = field(default_factory=dict)
    clusterAddrTable: dict[str, list[str]] = field(default_factory=dict)


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


class KVTable(Struct, kw_only=True):
    """A table of texts: broker runtime info, name server KV configs."""

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
