"""JSON bodies as RocketMQ's Java code reads and writes them.

Java writes maps with objects as keys, which is not valid JSON. `encode_keyed_map` writes such a map.
"""

import re
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import msgspec

from latermq.config_json.java_json import UnreadableJson, decode_json, encode_json, json_decoder
from latermq.errors import MalformedRequest

BodyType = TypeVar("BodyType")

# Punctuation marks of JSON, and complete strings. A lone quote begins an unterminated string.
_MARK = re.compile(r'[{}\[\]:,]|"[^"\\]*(?:\\.[^"\\]*)*"|"', re.DOTALL)

MAX_RAW_MARKS = 100_000  # in a body that is scanned mark by mark for its raw values: at most 50 ms of the loop


def encode_body(body: Any) -> bytes:
    """Encode a body as JSON for Java."""
    return encode_json(body)


def decode_body(data: bytes, type_: type[BodyType]) -> BodyType:
    """Decode a body from Java's JSON."""
    try:
        return decode_json(data, type_)
    except UnreadableJson as error:
        raise _malformed(type_, error) from None


def body_decoder(type_: type[BodyType]) -> Callable[[bytes], BodyType]:
    """Return a function that does the same for many bodies of one type, in less time."""
    decode_one = json_decoder(type_)

    def decode(data: bytes) -> BodyType:
        try:
            return decode_one(data)
        except UnreadableJson as error:
            raise _malformed(type_, error) from None

    return decode


def _malformed(type_: Any, error: UnreadableJson) -> MalformedRequest:
    return MalformedRequest(f"the body is not a valid {_name_of(type_)}: {error}")


def _name_of(type_: Any) -> str:
    """The name of a type for an error message. A union such as `list[str] | None` has no `__name__`."""
    return getattr(type_, "__name__", None) or str(type_)


def encode_keyed_map(entries: Iterable[tuple[Any, Any]]) -> msgspec.Raw:
    """Encode a map with objects as keys, as Java does: `{{"topic":…}:{…}}`. The result is used as a raw field."""
    return join_entries(encode_entry(key, value) for key, value in entries)


def encode_entry(key: Any, value: Any) -> bytes:
    """Encode one entry of a map with objects as keys."""
    return encode_json(key) + b":" + encode_json(value)


def join_entries(encoded: Iterable[bytes]) -> msgspec.Raw:
    """Build a map from entries that `encode_entry` has encoded."""
    return msgspec.Raw(b"{" + b",".join(encoded) + b"}")


def decode_keyed_map(data: bytes) -> list[tuple[Any, Any]]:
    """Decode the entries of a map with objects or numbers as keys. `data` starts at the opening brace."""
    text = data.decode()
    if not text.startswith("{"):
        raise MalformedRequest("a map with objects as keys does not start with a brace")
    parts: list[Any] = []
    at = 1
    while at < len(text) and text[at] != "}":
        end = _value_end(text, at)
        parts.append(msgspec.json.decode(text[at:end]))
        at = end + 1 if end < len(text) and text[end] in ":," else end
    if len(parts) % 2:
        raise MalformedRequest("a map with objects as keys is truncated inside an entry")
    return list(zip(parts[::2], parts[1::2], strict=True))


def raw_fields(data: bytes) -> dict[str, bytes]:
    """The fields of a body with their raw values, for values that are not valid JSON."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise MalformedRequest("the body is not UTF-8") from None
    if not text.startswith("{"):
        raise MalformedRequest("the body does not start with a brace")
    if sum(map(text.count, '{[:,"\\')) > MAX_RAW_MARKS:
        raise MalformedRequest(
            f"the body has more than {MAX_RAW_MARKS} punctuation marks and strings", hint="Request less at once"
        )
    fields = {}
    at = 1
    while at < len(text) and text[at] != "}":
        name_end = _value_end(text, at)
        if text[name_end] != ":":
            raise MalformedRequest("the body has a value without a name")
        end = _value_end(text, name_end + 1)
        fields[text[at:name_end].strip().strip('"')] = text[name_end + 1 : end].strip().encode()
        at = end + 1 if text[end] == "," else end
    return fields


def _value_end(text: str, at: int) -> int:
    """The end of the JSON value that starts at `at`: the first `:`, `,` or `}` outside of it."""
    depth = 0
    for found in _MARK.finditer(text, at):
        mark = text[found.start()]
        if mark in "{[":
            depth += 1
        elif depth == 0 and mark in ":,}":
            return found.start()
        elif mark in "}]":
            depth -= 1
            if depth < 0:
                break
        elif found[0] == '"':
            break
    raise MalformedRequest("a map with objects as keys is not closed")
