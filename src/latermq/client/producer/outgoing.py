"""Messages on their way out: what a caller hands in, what it gets back, and the frames in between."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from latermq.errors import IllegalMessage
from latermq.message.batch import BatchMember, encode_batch
from latermq.message.names import AUTO_CREATE_TOPIC
from latermq.message.properties import (
    DELAY_LEVEL,
    KEY_SEPARATOR,
    KEYS,
    MAX_PROPERTIES_BYTES,
    NAME_END,
    PROPERTY_END,
    TAGS,
    TIMER_DELAY_MS,
    TIMER_DELIVER_MS,
    UNIQUE_KEY,
)
from latermq.protocol.remoting.codes import Request
from latermq.protocol.remoting.frames import (
    BINARY,
    FLAG_ONEWAY,
    JSON,
    LANGUAGE,
    VERSION,
    binary_field,
    binary_header,
    join_frame,
)
from latermq.protocol.remoting.queues import MessageQueue

_json = msgspec.json.Encoder().encode


@dataclass(slots=True)
class OutgoingMessage:
    """A message to send. `keys` are what it can be found by later; several may be given.

    One of the last three fields makes it arrive later: so long after it was stored, at a moment (milliseconds since
    1970), or by one of the broker's delay levels. A moment that has passed is now.
    """

    topic: str
    body: bytes
    tag: str = ""
    keys: Sequence[str] | str = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    flag: int = 0
    delay_ms: int = 0
    deliver_at_ms: int = 0
    delay_level: int = 0


class SendResult(msgspec.Struct, frozen=True, gc=False):
    """Where a message was stored. `status` is SEND_OK, or says what the broker could not make sure of in time."""

    status: str
    message_id: str  # the unique key, made by the sender and the same over all retries
    offset_message_id: str  # where the broker put it
    queue: MessageQueue
    queue_offset: int
    recall_handle: str = ""  # takes a timer back; empty where there is nothing to take back


class SendAnswer(msgspec.Struct, gc=False):
    """Header fields of a send's answer, named as on the wire."""

    msgId: str = ""
    queueId: int = 0
    queueOffset: int = 0
    recallHandle: str | None = None


def encode_message_properties(message: OutgoingMessage, unique_key: str) -> str:
    """The wire form of tag, keys, unique key and the caller's own properties."""
    text = f"{UNIQUE_KEY}\x01{unique_key}\x02"
    names = 1
    if message.tag:
        text = f"{text}{TAGS}\x01{message.tag}\x02"
        names += 1
    keys = message.keys
    if keys:
        joined = keys if isinstance(keys, str) else KEY_SEPARATOR.join(keys)
        text = f"{text}{KEYS}\x01{joined}\x02"
        names += 1
    if message.delay_ms or message.deliver_at_ms or message.delay_level:
        text = f"{text}{_schedule(message)}"
        names += 1
    for name, value in message.properties.items():
        if name != UNIQUE_KEY:
            text = f"{text}{name}\x01{value}\x02"
            names += 1
    if text.count(NAME_END) != names or text.count(PROPERTY_END) != names:
        raise IllegalMessage(
            "tag, keys or a property hold the bytes 1 or 2, which part properties from each other",
            hint="Put such values into the body",
        )
    # Four bytes a character are the most there can be, so nearly every text is seen to fit without encoding it.
    if len(text) * 4 > MAX_PROPERTIES_BYTES and len(text.encode()) > MAX_PROPERTIES_BYTES:
        raise IllegalMessage(
            f"the properties take {len(text.encode())} bytes, the limit is {MAX_PROPERTIES_BYTES}",
            hint="Move large values into the body",
        )
    return text


def _schedule(message: OutgoingMessage) -> str:
    """The one property that says when the message arrives."""
    times = {
        TIMER_DELAY_MS: message.delay_ms,
        TIMER_DELIVER_MS: message.deliver_at_ms,
        DELAY_LEVEL: message.delay_level,
    }
    given = [(name, value) for name, value in times.items() if value]
    if len(given) > 1:
        raise IllegalMessage(
            "a message has one due time, by delay_ms, deliver_at_ms or delay_level", hint="Leave the others at 0"
        )
    [(name, value)] = given
    return f"{name}\x01{value}\x02"


def encode_batch_body(messages: Sequence[OutgoingMessage], unique_keys: Sequence[str]) -> bytes:
    """The body of one batch send; all messages must go to one topic, each of them now or later by its own delay.

    LaterMQ's broker heeds the delays; RocketMQ's delivers a batch at once, whatever they say.
    """
    for message in messages:
        if message.topic != messages[0].topic:
            raise IllegalMessage(f"a batch has one topic, not {messages[0].topic!r} and {message.topic!r}")
    return encode_batch(
        BatchMember(message.flag, message.body, encode_message_properties(message, key).encode())
        for message, key in zip(messages, unique_keys, strict=True)
    )


class SendFrames:
    """Makes the frames of one topic's sends: all that stays the same is formatted once, ahead of time."""

    def __init__(self, group: str, topic: str, queues: int, encoding: int) -> None:
        self._binary = encoding == BINARY
        fixed = {"a": group, "b": topic, "c": AUTO_CREATE_TOPIC, "d": str(queues), "j": "0", "k": "false"}
        self._heads: dict[tuple[int, bool], bytes] = {}
        for code, flag in (
            (Request.SEND_MESSAGE_V2, 0),
            (Request.SEND_MESSAGE_V2, FLAG_ONEWAY),
            (Request.SEND_BATCH_MESSAGE, 0),
        ):
            batch = code == Request.SEND_BATCH_MESSAGE
            fields = {**fixed, "m": "true" if batch else "false"}
            if self._binary:
                head = b"".join(binary_field(name.encode(), value.encode()) for name, value in fields.items())
            else:
                head = (
                    b'{"code":%d,"flag":%d,"language":"%b","version":%d,"serializeTypeCurrentRPC":"JSON","extFields":%b'
                    % (code, flag, LANGUAGE.encode(), VERSION, _json(fields)[:-1])
                )
            self._heads[code, bool(flag)] = head

    def frame(
        self,
        opaque: int,
        queue_id: int,
        sysflag: int,
        born_ms: int,
        flag: int,
        properties: str,
        body: bytes,
        *,
        code: int = Request.SEND_MESSAGE_V2,
        oneway: bool = False,
    ) -> bytes:
        """One whole frame. Its cost counts for every message: 1.3 µs in JSON."""
        head = self._heads[code, oneway]
        if self._binary:
            fields = b"".join((
                head,
                binary_field(b"e", b"%d" % queue_id),
                binary_field(b"f", b"%d" % sysflag),
                binary_field(b"g", b"%d" % born_ms),
                binary_field(b"h", b"%d" % flag),
                binary_field(b"i", properties.encode()),
            ))  # fmt: skip
            return join_frame(BINARY, binary_header(code, opaque, FLAG_ONEWAY if oneway else 0, fields), body)
        header = b'%b,"e":"%d","f":"%d","g":"%d","h":"%d","i":%b},"opaque":%d}' % (
            head, queue_id, sysflag, born_ms, flag, _json(properties), opaque,
        )  # fmt: skip
        return join_frame(JSON, header, body)
