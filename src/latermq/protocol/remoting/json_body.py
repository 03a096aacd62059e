"""JSON bodies as Java's side reads and writes them.

Java writes maps whose keys are whole objects, which is not JSON: `encode_keyed_map` writes such a map.
"""

import re
from collections.abc import Iterable
from typing import Any, TypeVar

import msgspec

from latermq.config_json.java_json import UnreadableJson, decode_json, encode_json
from latermq.errors import MalformedRequest

BodyType = TypeVar("BodyType")

# Marks of JSON between its values, and texts as a whole; a lone quote is a text that does not end.
_MARK = re.compile(r'[{}\[\]:,]|"[^"\\]*(?:\\.[^"\\]*)*"|"', re.DOTALL)

MAX_RAW_MARKS = 100_000  # of a body whose values are cut out as they are, mark by mark: 50 ms of the loop at most


def encode_body(body: Any) -> bytes:
    """A body as JSON that Java's side reads."""
    return encode_json(body)


def decode_body(data: bytes, type_: type[BodyType]) -> BodyType:
    """A body out of Java's JSON."""
    try:
        return decode_json(data, type_)
    except UnreadableJson as error:
        raise MalformedRequest(f"the body is no {_name_of(type_)}: {error}") from None


def _name_of(type_: Any) -> str:
    """A type for an error; one of several that a field may have, as `list[str] | None`, has no name of its own."""
    return getattr(type_, "__name__", None) or str(type_)


def encode_keyed_map(entries: Iterable[tuple[Any, Any]]) -> msgspec.Raw:
    """A map whose keys are objects, as Java writes and reads it: `{{"topic":…}:{…}}`. Put it into a body as it is."""
    return join_entries(encode_entry(key, value) for key, value in entries)


def encode_entry(key: Any, value: Any) -> bytes:
    """One entry of such a map."""
    return encode_json(key) + b":" + encode_json(value)


def join_entries(encoded: Iterable[bytes]) -> msgspec.Raw:
    """The map of such entries."""
    return msgspec.Raw(b"{" + b",".join(encoded) + b"}")


def decode_keyed_map(data: bytes) -> list[tuple[Any, Any]]:
    """The entries of a map whose keys are objects or numbers; `data` starts at its opening brace."""
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
        raise MalformedRequest("a map with objects as keys ends inside an entry")
    return list(zip(parts[::2], parts[1::2], strict=True))


def raw_fields(data: bytes) -> dict[str, bytes]:
    """The fields of a body with their values as they were written; for values that are no JSON."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise MalformedRequest("a body is no UTF-8") from None
    if not text.startswith("{"):
        raise MalformedRequest("a body does not start with a brace")
    if sum(map(text.count, '{[:,"\\')) > MAX_RAW_MARKS:
        raise MalformedRequest(f"a body holds more than {MAX_RAW_MARKS} marks and texts", hint="Ask for less at once")
    fields = {}
    at = 1
    while at < len(text) and text[at] != "}":
        name_end = _value_end(text, at)
        if text[name_end] != ":":
            raise MalformedRequest("a body holds a value without a name")
        end = _value_end(text, name_end + 1)
        fields[text[at:name_end].strip().strip('"')] = text[name_end + 1 : end].strip().encode()
        at = end + 1 if text[end] == "," else end
    return fields


def _value_end(text: str, at: int) -> int:
    """Where the JSON value that starts at `at` ends: at the first `:`, `,` or `}` outside of it."""
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
