"""Send requests: header fields of messages from producers, and of messages that consumers send back."""

from msgspec import Struct

from latermq.config_json.numbers import Int32, Int64
from latermq.model.retry import RetryMessage, SendBack

# The ordinal of V3_4_9 among RocketMQ's versions. Earlier clients use maxReconsumeTimes for something else.
_KNOWS_MAX_RECONSUME_TIMES = 121


class SendHeader(Struct, kw_only=True, gc=False):
    """SEND_MESSAGE (10): the same fields as SEND_MESSAGE_V2, with long names."""

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
    """SEND_MESSAGE_V2 (310) and SEND_BATCH_MESSAGE (320): one-letter names. Nearly all sends use this header."""

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


class SendBackHeader(Struct, kw_only=True):
    """CONSUMER_SEND_MSG_BACK (36)."""

    offset: Int64
    group: str
    delayLevel: Int32
    originMsgId: str | None = None
    originTopic: str | None = None
    unitMode: bool = False
    maxReconsumeTimes: Int32 | None = None


def _max_retries(asked: int | None, client_version: int) -> int | None:
    return asked if client_version >= _KNOWS_MAX_RECONSUME_TIMES else None


def read_send_back(header: SendBackHeader, client_version: int) -> SendBack:
    """Convert the header of a message that a consumer of this version sends back."""
    return SendBack(
        group=header.group,
        physical_offset=header.offset,
        delay_level=header.delayLevel,
        max_retries=_max_retries(header.maxReconsumeTimes, client_version),
    )


def read_retry(header: SendHeader | SendHeaderV2, client_version: int) -> RetryMessage:
    """Convert the header of a send to a retry topic by a client of this version."""
    return RetryMessage(
        topic=header.topic,
        queue_id=header.queueId,
        properties=header.properties,
        born_timestamp_ms=header.bornTimestamp,
        flag=header.flag,
        sysflag=header.sysFlag,
        reconsume_times=header.reconsumeTimes,
        max_retries=_max_retries(header.maxReconsumeTimes, client_version),
        default_topic=header.defaultTopic,
        default_queues=header.defaultTopicQueueNums,
    )
