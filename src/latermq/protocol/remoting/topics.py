"""Topics: their configuration as brokers keep and register it, and their statistics."""

from typing import Literal

from msgspec import Raw, Struct, field

from latermq.protocol.remoting.numbers import Int32, Int64

PERM_READ = 4

PERM_WRITE = 2

TopicFilterType = Literal["SINGLE_TAG", "MULTI_TAG"]


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


class TopicConfigList(Struct, kw_only=True):
    """UPDATE_AND_CREATE_TOPIC_LIST."""

    topicConfigList: list[TopicConfig] = field(default_factory=list)


class TopicList(Struct, kw_only=True):
    """Lists of topic names, from name servers and brokers."""

    topicList: list[str] = field(default_factory=list)
    brokerAddr: str | None = None


class TopicHeader(Struct, kw_only=True):
    """Requests that name a topic and nothing else: 105, 202, 300, 351, …"""

    topic: str


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


class TopicOffset(Struct, kw_only=True):
    """One queue in GET_TOPIC_STATS_INFO."""

    minOffset: Int64
    maxOffset: Int64
    lastUpdateTimestamp: Int64 = 0


class TopicStats(Struct, kw_only=True):
    """GET_TOPIC_STATS_INFO: queue → TopicOffset."""

    topicPutTps: float
    offsetTable: Raw
