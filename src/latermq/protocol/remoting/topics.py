"""Requests about topics: create, update and list them, and get their statistics."""

from msgspec import Raw, Struct, field

from latermq.config_json.numbers import Int32, Int64
from latermq.config_json.topics import TopicJson
from latermq.model.topic import FilterType


class TopicConfigList(Struct, kw_only=True):
    """UPDATE_AND_CREATE_TOPIC_LIST."""

    topicConfigList: list[TopicJson] = field(default_factory=list)


class TopicList(Struct, kw_only=True):
    """Lists of topic names, from name servers and brokers."""

    topicList: list[str] = field(default_factory=list)
    brokerAddr: str | None = None


class TopicHeader(Struct, kw_only=True):
    """Requests that contain only a topic: 105, 202, 300, 351, …"""

    topic: str


class CreateTopicHeader(Struct, kw_only=True):
    """UPDATE_AND_CREATE_TOPIC (17)."""

    topic: str
    defaultTopic: str = ""
    readQueueNums: Int32
    writeQueueNums: Int32
    perm: Int32
    topicFilterType: FilterType = "SINGLE_TAG"
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
