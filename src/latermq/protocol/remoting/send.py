"""Send requests and their replies: messages from producers, and messages that consumers send back."""

from msgspec import Struct

from latermq.config_json.numbers import Int32, Int64
from latermq.model.retry import RetryMessage, SendBack
from latermq.protocol.remoting.frames import (
    FLAG_RESPONSE,
    JSON,
    LANGUAGE,
    VERSION,
    Command,
    DecodedRequest,
    encode_frame,
    encode_prefix,
)

# The ordinal of V3_4_9 among RocketMQ's versions. Earlier clients use maxReconsumeTimes for something else.
_MAX_RECONSUME_TIMES_SINCE = 121


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
    """SEND_MESSAGE_V2 (310) and SEND_BATCH_MESSAGE (320): one-letter names. Nearly all sends use this header.

    The fields are listed again because msgspec cannot rename inherited fields.
    """

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
    AccessKey: str = ""  # the user, with a name of its own on the wire


class SendBackHeader(Struct, kw_only=True):
    """CONSUMER_SEND_MSG_BACK (36)."""

    offset: Int64
    group: str
    delayLevel: Int32
    originMsgId: str | None = None
    originTopic: str | None = None
    unitMode: bool = False
    maxReconsumeTimes: Int32 | None = None


def _max_retries(requested: int | None, client_version: int) -> int | None:
    return requested if client_version >= _MAX_RECONSUME_TIMES_SINCE else None


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


class SendRequest(DecodedRequest, kw_only=True, gc=False, rename={"json_fields": "extFields"}):
    """A send request with decoded fields."""

    json_fields: SendHeaderV2  # type: ignore[assignment]

    @property
    def held_bytes(self) -> int:
        fields = self.json_fields
        names = len(fields.producerGroup) + len(fields.topic) + len(fields.defaultTopic)
        texts = len(self.remark or "") + len(fields.properties) + names
        return len(self.body) + texts + len(self.encoded_header)


_SEND_REPLY = (
    f'{{"code":0,"flag":1,"language":"{LANGUAGE}","opaque":%d,"version":{VERSION},'
    '"serializeTypeCurrentRPC":"JSON","extFields":{"msgId":"%s","queueId":"%d","queueOffset":"%d",'
    '"MSG_REGION":"DefaultRegion","TRACE_ON":"true"}}'
).encode()


def encode_send_reply(
    request: Command,
    message_id: str,
    queue_id: int,
    queue_offset: int,
    recall_handle: str = "",
    transaction_id: str = "",
) -> bytes:
    """Encode the reply to a stored message. Formatting the JSON from a template takes 0.9 µs instead of 2.2 µs."""
    if request.encoding == JSON and not recall_handle and not transaction_id:
        header = _SEND_REPLY % (request.opaque, message_id.encode(), queue_id, queue_offset)
        return encode_prefix(JSON, len(header)) + header
    fields = {
        "msgId": message_id,
        "queueId": str(queue_id),
        "queueOffset": str(queue_offset),
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
    }
    if recall_handle:
        fields["recallHandle"] = recall_handle
    if transaction_id:
        fields["transactionId"] = transaction_id
    return encode_frame(0, request.opaque, flag=FLAG_RESPONSE, encoding=request.encoding, fields=fields)


class SendReplies:
    """Replies to sends with a JSON header, the same as from `encode_send_reply`, in 0.35 µs instead of 0.9 µs."""

    def __init__(self, message_id_prefix: str) -> None:
        """Message ids consist of this prefix and the physical offset in 16 hexadecimal digits."""
        template = _SEND_REPLY.replace(b"%s", message_id_prefix.encode() + b"%016X")
        self.template = template
        self._timer_template = template.replace(b'"true"}}', b'"true","recallHandle":"%s"}}')
        longest = template % (-(1 << 31), (1 << 63), 1 << 31, 1 << 63)
        self.prefixes = [encode_prefix(JSON, size) for size in range(len(longest) + 1)]

    def of_timer(
        self, opaque: int, physical_offset: int, queue_id: int, queue_offset: int, recall_handle: str
    ) -> bytes:
        """Encode the complete reply to a timer."""
        reply = self._timer_template % (opaque, physical_offset, queue_id, queue_offset, recall_handle.encode())
        return encode_prefix(JSON, len(reply)) + reply
