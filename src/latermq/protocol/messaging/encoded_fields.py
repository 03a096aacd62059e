"""The fields of a large SendMessageRequest, counted before protobuf decodes it.

Protobuf takes 5 s for the 600,000 user properties that fit into a request, because a map slows down as it grows. The
count stops at the limits: it takes a few milliseconds. Bytes that are not valid are left to protobuf.
"""

from collections.abc import Iterator

from latermq.protocol.messaging import messaging_pb2 as pb
from latermq.protocol.messaging.refusals import CallRefused

SMALL_BYTES = 1 << 20  # protobuf decodes any request of this size in 50 ms
_MESSAGES, _USER_PROPERTIES = 1, 2  # numbers of fields
_VARINT, _I64, _BYTES, _I32 = 0, 1, 2, 5  # types of fields


def check_counts(data: bytes, max_messages: int, max_user_properties: int) -> None:
    """Raise CallRefused if a request has too many messages, or a message too many user properties."""
    if len(data) <= SMALL_BYTES:
        return
    for messages, (start, end) in enumerate(_fields(data, 0, len(data), _MESSAGES), 1):
        if messages > max_messages:
            raise CallRefused(pb.PAYLOAD_TOO_LARGE, f"the request has more than {max_messages} messages, the limit")
        for count, _ in enumerate(_fields(data, start, end, _USER_PROPERTIES), 1):
            if count > max_user_properties:
                raise CallRefused(
                    pb.MESSAGE_PROPERTIES_TOO_LARGE, f"more than {max_user_properties} user properties, the limit"
                )


def _fields(data: bytes, at: int, end: int, wanted: int) -> Iterator[tuple[int, int]]:
    """Yield start and end of each field with this number that has bytes, up to the first byte that is not valid."""
    try:
        while at < end:
            tag, at = _varint(data, at)
            kind = tag & 7
            if kind == _BYTES:
                size, at = _varint(data, at)
                if at + size > end:
                    return
                if tag >> 3 == wanted:
                    yield at, at + size
                at += size
            elif kind == _VARINT:
                _, at = _varint(data, at)
            elif kind in (_I64, _I32):
                at += 8 if kind == _I64 else 4
            else:
                return
    except IndexError:
        return


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise IndexError("the number is too long")
