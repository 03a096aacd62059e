"""JSON bodies of the remoting protocol and of the config files: the shapes Java's side reads and writes.

Attribute names are those of the JSON. Java writes maps whose keys are numbers or whole objects, which is no JSON:
`encode_keyed_map` writes such a map, `decode_body` reads number keys.
"""

import re
from collections.abc import Iterable
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType, field

from latermq.errors import MalformedRequest
from latermq.protocol.remoting.headers import TopicFilterType
from latermq.protocol.remoting.numbers import Int32, Int64

BodyType = TypeVar("BodyType")

PERM_READ = 4
PERM_WRITE = 2

_encode = msgspec.json.Encoder().encode
# Marks of JSON between its values, and texts as a whole; a lone quote is a text that does not end.
_MARK = re.compile(r'[{}\[\]:,]|"[^"\\]*(?:\\.[^"\\]*)*"|"', re.DOTALL)
MAX_RAW_MARKS = 100_000  # of a body whose values are cut out as they are, mark by mark: 50 ms of the loop at most
_NUMBER_KEY = re.compile(rb"([{,]\s*)(-?\d+)(\s*:)")


class MessageQueue(Struct, frozen=True, order=True):
    """One queue of one topic on one broker."""

    topic: str
    brokerName: str
    queueId: Int32


class DataVersion(Struct):
    """How often a config table changed; name servers and brokers compare it instead of the table."""

    counter: Int64 = 0
    stateVersion: Int64 = 0
    timestamp: Int64 = 0

    def bump(self, now_ms: int) -> None:
        self.counter += 1
        self.timestamp = now_ms


class TopicConfig(Struct, kw_only=True):
    """A topic as brokers keep it in topics.json and register it."""

    topicName: str
    readQueueNums: Int32 = 8
    writeQueueNums: Int32 = 8
    perm: Int32 = PERM_READ | PERM_WRITE
    topicFilterType: TopicFilterType = "SINGLE_TAG"
    topicSysFlag: Int32 = 0
    order: bool = False
    attributes: dict[str, str] = field(default_factory=dict)


class TopicConfigTable(Struct, kw_only=True):
    """topics.json, the body of GET_ALL_TOPIC_CONFIG, and part of a registration."""

    topicConfigTable: dict[str, TopicConfig] = field(default_factory=dict)
    dataVersion: DataVersion = field(default_factory=DataVersion)


class RegisterBrokerBody(Struct, kw_only=True):
    """REGISTER_BROKER: what a broker tells a name server."""

    topicConfigSerializeWrapper: TopicConfigTable = field(default_factory=TopicConfigTable)
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


class TopicList(Struct, kw_only=True):
    """Lists of topic names, from name servers and brokers."""

    topicList: list[str] = field(default_factory=list)
    brokerAddr: str | None = None


class SubscriptionData(Struct, kw_only=True):
    """What a group wants of one topic."""

    topic: str
    subString: str = "*"
    expressionType: str | None = "TAG"
    tagsSet: list[str] = field(default_factory=list)
    codeSet: list[Int32] = field(default_factory=list)
    subVersion: Int64 = 0
    classFilterMode: bool = False


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
    """HEART_BEAT: who a client is and which groups it belongs to."""

    clientID: str
    producerDataSet: list[ProducerData] = field(default_factory=list)
    consumerDataSet: list[ConsumerData] = field(default_factory=list)
    heartbeatFingerprint: Int32 = 0
    # Java writes the property `isWithoutSub` under the name its getter gives it.
    withoutSub: bool = False


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


class OffsetTable(Struct, kw_only=True):
    """consumerOffset.json: `topic@group` → queue id → offset."""

    offsetTable: dict[str, dict[Int32, Int64]] = field(default_factory=dict)
    dataVersion: DataVersion = field(default_factory=DataVersion)


class LockBatchRequest(Struct, kw_only=True):
    """LOCK_BATCH_MQ and UNLOCK_BATCH_MQ."""

    consumerGroup: str
    clientId: str
    onlyThisBroker: bool = False
    mqSet: list[MessageQueue] = field(default_factory=list)


class LockBatchResponse(Struct, kw_only=True):
    """The queues of a LOCK_BATCH_MQ that the client now holds."""

    lockOKMQSet: list[MessageQueue] = field(default_factory=list)


class ConsumerIdList(Struct, kw_only=True):
    """GET_CONSUMER_LIST_BY_GROUP."""

    consumerIdList: list[str] = field(default_factory=list)


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


class TopicOffset(Struct, kw_only=True):
    """One queue in GET_TOPIC_STATS_INFO."""

    minOffset: Int64
    maxOffset: Int64
    lastUpdateTimestamp: Int64 = 0


class OffsetWrapper(Struct, kw_only=True):
    """One queue in GET_CONSUME_STATS."""

    brokerOffset: Int64
    consumerOffset: Int64
    pullOffset: Int64 = 0
    lastTimestamp: Int64 = 0


class GroupList(Struct, kw_only=True):
    """Lists of group names."""

    groupList: list[str] = field(default_factory=list)


class KVTable(Struct, kw_only=True):
    """A table of texts: broker runtime info, name server KV configs."""

    table: dict[str, str] = field(default_factory=dict)


def encode_body(body: Any) -> bytes:
    """A body as JSON that Java's side reads."""
    return _encode(body)


def decode_body(data: bytes, type_: type[BodyType]) -> BodyType:
    """A body out of Java's JSON."""
    try:
        return msgspec.json.decode(data, type=type_, strict=False)
    except (msgspec.ValidationError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedRequest(f"the body is no {_name_of(type_)}: {error}") from None
    except msgspec.DecodeError:
        try:
            return msgspec.json.decode(_NUMBER_KEY.sub(rb'\1"\2"\3', data), type=type_, strict=False)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise MalformedRequest(f"the body is no {_name_of(type_)}: {error}") from None


def _name_of(type_: Any) -> str:
    """A type for an error; one of several that a field may have, as `list[str] | None`, has no name of its own."""
    return getattr(type_, "__name__", None) or str(type_)


def encode_keyed_map(entries: Iterable[tuple[Any, Any]]) -> msgspec.Raw:
    """A map whose keys are objects, as Java writes and reads it: `{{"topic":…}:{…}}`. Put it into a body as it is."""
    return join_entries(encode_entry(key, value) for key, value in entries)


def encode_entry(key: Any, value: Any) -> bytes:
    """One entry of such a map."""
    return _encode(key) + b":" + _encode(value)


def join_entries(encoded: Iterable[bytes]) -> msgspec.Raw:
    """The map of such entries."""
    return msgspec.Raw(b"{" + b",".join(encoded) + b"}")


def decode_keyed_map(data: bytes) -> list[tuple[Any, Any]]:
    """The entries of a map whose keys are objects or numbers; `data` starts at its opening brace."""
    text = data.decode()
    if not text.startswith("{"):
        raise MalformedRequest("a map with objects as keys does not start with a brace")
    parts: list[Any] = []
    at = 1
    while at < len(text) and text[at] != "}":
        end = _value_end(text, at)
        parts.append(msgspec.json.decode(text[at:end]))
        at = end + 1 if end < len(text) and text[end] in ":," else end
    if len(parts) % 2:
        raise MalformedRequest("a map with objects as keys ends inside an entry")
    return list(zip(parts[::2], parts[1::2], strict=True))


def raw_fields(data: bytes) -> dict[str, bytes]:
    """The fields of a body with their values as they were written; for values that are no JSON."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise MalformedRequest("a body is no UTF-8") from None
    if not text.startswith("{"):
        raise MalformedRequest("a body does not start with a brace")
    if sum(map(text.count, '{[:,"\\')) > MAX_RAW_MARKS:
        raise MalformedRequest(f"a body holds more than {MAX_RAW_MARKS} marks and texts", hint="Ask for less at once")
    fields = {}
    at = 1
    while at < len(text) and text[at] != "}":
        name_end = _value_end(text, at)
        if text[name_end] != ":":
            raise MalformedRequest("a body holds a value without a name")
        end = _value_end(text, name_end + 1)
        fields[text[at:name_end].strip().strip('"')] = text[name_end + 1 : end].strip().encode()
        at = end + 1 if text[end] == "," else end
    return fields


def _value_end(text: str, at: int) -> int:
    """Where the JSON value that starts at `at` ends: at the first `:`, `,` or `}` outside of it."""
    depth = 0
    for found in _MARK.finditer(text, at):
        mark = text[found.start()]
        if mark in "{[":
            depth += 1
        elif depth == 0 and mark in ":,}":
            return found.start()
        elif mark in "}]":
            depth -= 1
            if depth < 0:
                break
        elif found[0] == '"':
            break
    raise MalformedRequest("a map with objects as keys is not closed")
