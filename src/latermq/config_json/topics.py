"""RocketMQ's JSON format of topics: topics.json, GET_ALL_TOPIC_CONFIG and registrations."""

from msgspec import Struct, field

from latermq.config_json.java_json import convert, encode_json
from latermq.config_json.numbers import Int32, Int64
from latermq.model.data_version import DataVersion
from latermq.model.topic import READ, WRITE, FilterType, Topic


class DataVersionJson(Struct, rename={"state_version": "stateVersion", "timestamp_ms": "timestamp"}):
    """DataVersion."""

    counter: Int64 = 0
    state_version: Int64 = 0
    timestamp_ms: Int64 = 0


class TopicJson(
    Struct,
    kw_only=True,
    rename={
        "name": "topicName",
        "read_queues": "readQueueNums",
        "write_queues": "writeQueueNums",
        "permissions": "perm",
        "filter_type": "topicFilterType",
        "system_flags": "topicSysFlag",
        "is_ordered": "order",
    },
):
    """TopicConfig."""

    name: str
    read_queues: Int32 = 8
    write_queues: Int32 = 8
    permissions: Int32 = READ | WRITE
    filter_type: FilterType = "SINGLE_TAG"
    system_flags: Int32 = 0
    is_ordered: bool = False
    attributes: dict[str, str] = field(default_factory=dict)


class TopicTableJson(Struct, kw_only=True, rename={"topics": "topicConfigTable", "version": "dataVersion"}):
    """topics.json, the body of GET_ALL_TOPIC_CONFIG, and part of a registration."""

    topics: dict[str, TopicJson] = field(default_factory=dict)
    version: DataVersionJson = field(default_factory=DataVersionJson)


def encode_version(version: DataVersion) -> bytes:
    """Encode the version of a table as JSON."""
    return encode_json(convert(version, DataVersionJson))


def encode_topic(topic: Topic) -> bytes:
    """Encode a topic as JSON."""
    return encode_json(convert(topic, TopicJson))
