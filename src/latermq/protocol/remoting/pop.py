"""Requests of POP consumption and their replies: pops, acknowledgements, invisible times, and the proxies' own ones."""

from msgspec import Struct, field

from latermq.config_json.numbers import Int32, Int64
from latermq.protocol.remoting.frames import (
    JSON,
    LANGUAGE,
    VERSION,
    Command,
    DecodedRequest,
    encode_prefix,
    join_frame,
)

FROM_END = 1  # initMode: a new group begins at the last message; otherwise at the first


class PopHeader(Struct, kw_only=True, gc=False):
    """POP_MESSAGE (200050)."""

    consumerGroup: str
    topic: str
    queueId: Int32
    maxMsgNums: Int32
    invisibleTime: Int64
    pollTime: Int64
    bornTime: Int64 = 0
    initMode: Int32 = 0
    expType: str | None = None
    exp: str | None = None
    order: bool | None = None
    attemptId: str | None = None
    lease: str | None = (
        None  # LaterMQ's own: the client id of a proxy's client, which holds the messages while it lives
    )


class AckHeader(Struct, kw_only=True, gc=False):
    """ACK_MESSAGE (200051)."""

    consumerGroup: str
    topic: str
    queueId: Int32
    extraInfo: str
    offset: Int64
    AccessKey: str = ""  # the user


class AckRequest(DecodedRequest, kw_only=True, gc=False, rename={"json_fields": "extFields"}):
    """ACK_MESSAGE with decoded fields."""

    json_fields: AckHeader  # type: ignore[assignment]

    @property
    def held_bytes(self) -> int:
        fields = self.json_fields
        names = len(fields.consumerGroup) + len(fields.topic)
        return len(self.body) + names + len(fields.extraInfo) + len(self.encoded_header)


class ChangeInvisibleTimeHeader(Struct, kw_only=True, gc=False):
    """CHANGE_MESSAGE_INVISIBLETIME (200053)."""

    consumerGroup: str
    topic: str
    queueId: Int32
    extraInfo: str
    offset: Int64
    invisibleTime: Int64
    suspend: bool | None = None


class NotificationHeader(Struct, kw_only=True, gc=False):
    """NOTIFICATION (200054)."""

    consumerGroup: str
    topic: str
    queueId: Int32
    pollTime: Int64
    bornTime: Int64 = 0
    order: bool | None = None
    attemptId: str | None = None


class PollingInfoHeader(Struct, kw_only=True, gc=False):
    """POLLING_INFO (200055)."""

    consumerGroup: str
    topic: str
    queueId: Int32


class BatchAck(Struct, kw_only=True):
    """Messages of one pop in a batch acknowledgement."""

    c: str  # group
    t: str  # topic that was popped
    r: str = "0"  # mark of the topic where the messages are stored
    so: Int64  # start offset
    q: Int32  # queue id
    rq: Int32 = 0
    pt: Int64  # pop time
    it: Int64 = 0
    b: str  # bit set of distances from the start offset


class BatchAckBody(Struct, kw_only=True):
    """BATCH_ACK_MESSAGE (200151)."""

    brokerName: str | None = None
    acks: list[BatchAck] = field(default_factory=list)


# ACK_POPPED (7030): group, topic where the message is stored, queue id, offset, pop time
PoppedPlace = tuple[str, str, Int32, Int64, Int64]


class BuryHeader(Struct, kw_only=True, gc=False):
    """BURY_POPPED (7031)."""

    group: str
    topic: str
    queueId: Int32
    offset: Int64
    popTime: Int64
    reason: str | None = None


class ReportedClientJson(Struct, kw_only=True):
    """A client of a proxy."""

    clientId: str
    group: str
    topics: list[str] = field(default_factory=list)
    language: str = "OTHER"
    version: Int32 = 0
    idleMs: Int64 = 0  # since its last call at the proxy


class ReportBody(Struct, kw_only=True):
    """REPORT_CLIENTS (7032)."""

    proxy: str
    clients: list[ReportedClientJson] = field(default_factory=list)
    topics: list[str] = field(default_factory=list)  # that clients of the proxy publish


class EndLeaseHeader(Struct, kw_only=True, gc=False):
    """END_LEASE (7033)."""

    group: str
    clientId: str
    proxy: str | None = None  # only if no other proxy reports the client


class LostAnswerHeader(Struct, kw_only=True, gc=False):
    """LOST_ANSWER (7034)."""

    group: str
    clientId: str
    popTime: Int64


class CancelPopHeader(Struct, kw_only=True, gc=False):
    """CANCEL_POP (7035)."""

    pop: Int32  # the opaque of the request


_POP_REPLY = (
    f'{{"code":0,"flag":1,"language":"{LANGUAGE}","opaque":%d,"version":{VERSION},'
    '"serializeTypeCurrentRPC":"JSON","extFields":{"popTime":"%d","invisibleTime":"%d","reviveQid":"%d",'
    '"restNum":"%d","startOffsetInfo":"%b","msgOffsetInfo":"%b"'
).encode()


def encode_pop_reply(
    opaque: int, *, pop_ms: int, invisible_ms: int, revive_queue_id: int, rest: int, starts: bytes, offsets: bytes,
    order_counts: str | None, body: bytes,
) -> bytes:  # fmt: skip
    """Encode the reply to a pop that found messages. The code of a pop does not fit into a binary header.

    The infos of its fields contain nothing that JSON escapes. The template takes 1 µs instead of 3 µs.
    """
    header = _POP_REPLY % (opaque, pop_ms, invisible_ms, revive_queue_id, rest, starts, offsets)
    header += b"}}" if order_counts is None else b',"orderCountInfo":"%b"}}' % order_counts.encode()
    return join_frame(JSON, header, body)


_ACK_REPLY = (
    f'{{"code":0,"flag":1,"language":"{LANGUAGE}","opaque":%d,"version":{VERSION},'
    '"serializeTypeCurrentRPC":"JSON","extFields":{"outcome":"done"}}'
).encode()


_BATCH_ACK_REPLY = _ACK_REPLY.replace(b'"outcome":"done"', b'"acknowledged":"%d"')


def _frame_templates(header: bytes) -> tuple[bytes, ...]:
    """Return frames for a header with one number, by the length of that number: opaques have up to 11 bytes."""
    sizes = range(len(header) - len(b"%d"), len(header) - len(b"%d") + 12)
    return tuple([encode_prefix(JSON, size).replace(b"%", b"%%") + header.replace(b"%d", b"%b") for size in sizes])


_ACK_FRAMES = _frame_templates(_ACK_REPLY)


def encode_batch_ack_reply(request: Command, count: int) -> bytes:
    """Encode the reply to an acknowledgement of several messages, of which `count` were in flight."""
    return join_frame(JSON, _BATCH_ACK_REPLY % (request.opaque, count))


def encode_ack_reply(request: Command) -> bytes:
    """Encode the reply to an acknowledgement of a message in flight. The template takes 0.3 µs instead of 2 µs.

    The codes of acknowledgements do not fit into a binary header.
    """
    opaque = b"%d" % request.opaque
    return _ACK_FRAMES[len(opaque)] % opaque
