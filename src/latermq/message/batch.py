"""The body of a batch send: several messages of one topic laid end to end (docs/formats/batch-body.md)."""

import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from latermq.errors import IllegalMessage

_HEAD = struct.Struct(">IIIiI")  # total size, magic (0), body CRC (0), flag, body length
_U16 = struct.Struct(">H")


class BatchMember(NamedTuple):
    """One message inside a batch body."""

    flag: int
    body: bytes
    properties: bytes


def encode_batch(members: Iterable[BatchMember]) -> bytes:
    """The batch body of these messages."""
    parts = []
    for flag, body, properties in members:
        size = _HEAD.size + len(body) + 2 + len(properties)
        parts.append(_HEAD.pack(size, 0, 0, flag, len(body)) + body + _U16.pack(len(properties)) + properties)
    return b"".join(parts)


def decode_batch(data: bytes) -> Iterator[BatchMember]:
    """The messages of a batch body; a body that does not add up is refused whole by whoever collects them."""
    at = 0
    while at < len(data):
        if len(data) - at < _HEAD.size + 2:
            raise IllegalMessage(f"the batch body ends inside the message at byte {at}")
        size, _, _, flag, body_bytes = _HEAD.unpack_from(data, at)
        body_end = at + _HEAD.size + body_bytes
        if size < _HEAD.size + 2 or at + size > len(data) or body_end + 2 > at + size:
            raise IllegalMessage(f"the message at byte {at} of the batch body does not fit its own size {size}")
        (properties_bytes,) = _U16.unpack_from(data, body_end)
        if body_end + 2 + properties_bytes != at + size:
            raise IllegalMessage(f"the properties of the message at byte {at} of the batch body do not end with it")
        yield BatchMember(flag, data[at + _HEAD.size : body_end], data[body_end + 2 : at + size])
        at += size
