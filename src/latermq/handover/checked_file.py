"""Small checksummed files: a line of JSON, and a line with its checksum (docs/formats/checkpoint.md)."""

import zlib
from typing import Any, TypeVar

import msgspec

from latermq.errors import CorruptStore

T = TypeVar("T")


def encode_checked(value: Any) -> bytes:
    """Encode a value as a checksummed file."""
    line = msgspec.json.encode(value)
    return line + b"\n" + f"{zlib.crc32(line):08x}\n".encode()


def decode_checked(data: bytes, type_: type[T], what: str, hint: str, *, version: int | None = None) -> T:
    """Verify the checksum and decode the file. If it is damaged, the error contains `what` and `hint`.

    With `version`, so does the error for a file with another value in its field `version`.
    """
    line, _, crc = data.partition(b"\n")
    if f"{zlib.crc32(line):08x}".encode() != crc.strip():
        raise CorruptStore(f"{what} is damaged", hint=hint)
    try:
        value = msgspec.json.decode(line, type=type_)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptStore(f"{what} cannot be parsed: {error}", hint=hint) from None
    if version is not None and (found := getattr(value, "version", None)) != version:
        raise CorruptStore(f"{what} has version {found}, not {version}", hint=hint)
    return value
