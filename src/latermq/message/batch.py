"""The body of a batch send: concatenated messages of one topic (docs/formats/batch-body.md)."""

import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from latermq.errors import IllegalMessage

_HEAD = struct.Struct(">IIIiI")  # total size, magic (0), body CRC (0), flag, body length
_U16 = struct.Struct(">H")
_HEAD_BYTES = _HEAD.size
_MIN_BYTES = _HEAD_BYTES + _U16.size


class BatchMember(NamedTuple):
    """One message inside a batch body."""

    flag: int
    body: bytes
    properties: bytes


def encode_batch(members: Iterable[BatchMember]) -> bytes:
    """Encode messages as a batch body."""
    parts = []
    for flag, body, properties in members:
        size = _HEAD.size + len(body) + 2 + len(properties)
        parts.append(_HEAD.pack(size, 0, 0, flag, len(body)) + body + _U16.pack(len(properties)) + properties)
    return b"".join(parts)


def decode_batch(data: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """Yield flag, body and properties of each message. One message with inconsistent lengths invalidates the batch.

    It yields plain tuples, because named ones would cost 4 ms for a batch of 10,000 messages.
    """
    at, end, unpack_head, unpack_u16 = 0, len(data), _HEAD.unpack_from, _U16.unpack_from
    while at < end:
        if end - at < _MIN_BYTES:
            raise IllegalMessage(f"the batch body is truncated in the message at byte {at}")
        size, _, _, flag, body_bytes = unpack_head(data, at)
        body_at = at + _HEAD_BYTES
        body_end, next_at = body_at + body_bytes, at + size
        if size < _MIN_BYTES or next_at > end or body_end + 2 > next_at:
            raise IllegalMessage(f"the message at byte {at} of the batch body does not match its size of {size} bytes")
        (properties_bytes,) = unpack_u16(data, body_end)
        if body_end + 2 + properties_bytes != next_at:
            raise IllegalMessage(
                f"the properties of the message at byte {at} of the batch body do not end where it ends"
            )
        yield flag, data[body_at:body_end], data[body_end + 2 : next_at]
        at = next_at
