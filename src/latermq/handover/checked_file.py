"""A small file of ours: a line of JSON, and a line with the checksum of the first (docs/formats/checkpoint.md)."""

import zlib
from typing import Any, TypeVar

import msgspec

from latermq.errors import CorruptStore

T = TypeVar("T")


def encode_checked(value: Any) -> bytes:
    """The bytes of the file."""
    line = msgspec.json.encode(value)
    return line + b"\n" + f"{zlib.crc32(line):08x}\n".encode()


def decode_checked(data: bytes, type_: type[T], what: str, hint: str) -> T:
    """What the file says, once its checksum was compared; `what` and `hint` are told where it is damaged."""
    line, _, crc = data.partition(b"\n")
    if f"{zlib.crc32(line):08x}".encode() != crc.strip():
        raise CorruptStore(f"{what} is damaged", hint=hint)
    try:
        return msgspec.json.decode(line, type=type_)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptStore(f"{what} does not parse: {error}", hint=hint) from None
