"""The messages of one pop, with their receipt handles, as answers to a 5.x consumer."""

from msgspec import Struct

from latermq.config_json.numbers import Int32, Int64
from latermq.errors import CorruptStore, LaterMQError
from latermq.message.names import RETRY_PREFIX
from latermq.protocol.messaging import messaging_pb2 as pb
from latermq.protocol.messaging.messages import MAX_BODY_BYTES, read_record

# What the bodies of one answer may take after decompression. Those above it stay compressed.
MAX_DECOMPRESSED_BYTES = 32 << 20
_NORMAL, _RETRY, _RETRY_V2 = "0", "1", "2"  # marks of a topic and of its retry topics


class PopReply(Struct, kw_only=True, gc=False):
    """The header of the reply to POP_MESSAGE (200050)."""

    popTime: Int64
    invisibleTime: Int64
    reviveQid: Int32
    startOffsetInfo: str = ""
    orderCountInfo: str = ""


class PoppedMessages:
    """Reads the records of a pop's reply one after the other."""

    __slots__ = (
        "_at",
        "_counts",
        "_data",
        "_handle_end",
        "_handle_starts",
        "_is_renamed",
        "_pop_ms",
        "_retry_starts",
        "_spare_bytes",
        "_topic",
    )

    def __init__(self, reply: PopReply, records: bytes, broker: str, topic: pb.Resource) -> None:
        """`topic` is the resource that the consumer asked for, `broker` the name that it asked."""
        self._data = records
        self._at = 0
        self._topic = topic
        self._is_renamed = bool(topic.resource_namespace)  # brokers return the topic by its full name
        self._pop_ms = str(reply.popTime)
        self._spare_bytes = MAX_DECOMPRESSED_BYTES
        self._handle_starts: dict[int, str] = {}
        self._handle_end = f"{reply.popTime} {reply.invisibleTime} {reply.reviveQid} {_NORMAL} {broker}"
        self._retry_starts: dict[tuple[str, int], str] = {}
        try:
            for mark, queue, start in _items(reply.startOffsetInfo):
                if mark == _NORMAL:
                    self._handle_starts[int(queue)] = start
                elif not topic.name.startswith(RETRY_PREFIX):
                    self._retry_starts[mark, int(queue)] = start
            self._counts = {name: int(count) for _, name, count in _items(reply.orderCountInfo)}
        except ValueError:
            raise LaterMQError("a broker's reply to a pop has infos that cannot be read") from None

    @property
    def pop_ms(self) -> str:
        """The time of the pop, by the broker's clock."""
        return self._pop_ms

    @property
    def unread_bytes(self) -> int:
        return len(self._data) - self._at

    def read(self, response: pb.ReceiveMessageResponse) -> None:
        """Fill a new response with the next message. Takes 10 µs."""
        message = response.message
        before = self._at
        max_body_bytes = min(MAX_BODY_BYTES, self._spare_bytes)
        try:
            end, queue, offset, physical_offset, check = read_record(self._data, before, message, max_body_bytes)
        except ValueError as error:
            raise CorruptStore(f"a record has a value that no message can have: {error}") from None
        self._at = end
        system = message.system_properties
        if len(message.body) > end - before:  # it was decompressed
            self._spare_bytes -= len(message.body)
        stored_topic = message.topic.name if self._retry_starts else ""
        if self._is_renamed:
            message.topic.CopyFrom(self._topic)
        # Senders of the 4.x protocol can give a message this property. Only the broker knows the time of the pop.
        if check is not None and check.split(" ")[1:2] == [self._pop_ms]:
            system.receipt_handle = f"{check} {physical_offset}"
        elif stored_topic.startswith(RETRY_PREFIX):
            # Its properties have no room for its handle, so the broker has sent it as it is stored.
            mark = _RETRY_V2 if "+" in stored_topic else _RETRY
            start = self._retry_starts.get((mark, queue), offset)
            pop_ms, invisible_ms, revive_queue, _, broker = self._handle_end.split(" ", 4)
            handle = f"{start} {pop_ms} {invisible_ms} {revive_queue} {mark} {broker} {queue} {offset}"
            system.receipt_handle = f"{handle} {physical_offset}"
            message.topic.CopyFrom(self._topic)
        else:
            start = self._handle_starts.get(queue, offset)
            system.receipt_handle = f"{start} {self._handle_end} {queue} {offset} {physical_offset}"
        counts = self._counts
        if counts:
            count = counts.get(f"qo{queue}%{offset}")
            system.delivery_attempt = (counts.get(str(queue), 0) if count is None else count) + 1


def _items(info: str) -> list[list[str]]:
    return [item.split(" ") for item in info.split(";")] if info else []
