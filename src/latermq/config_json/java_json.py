"""JSON as RocketMQ's Java code reads and writes it: the keys of a map may be unquoted numbers."""

import re
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

Decoded = TypeVar("Decoded")
Form = TypeVar("Form")

encode_json = msgspec.json.Encoder().encode

_NUMBER_KEY = re.compile(rb"([{,]\s*)(-?\d+)(\s*:)")


class UnreadableJson(ValueError):
    """The text is not JSON of the expected type."""


def decode_json(data: bytes, type_: type[Decoded]) -> Decoded:
    """Decode Java's JSON."""
    return _decode(lambda text: msgspec.json.decode(text, type=type_, strict=False), data)


def json_decoder(type_: type[Decoded]) -> Callable[[bytes], Decoded]:
    """Return a function that does the same, and examines the type once: for a list of tuples that takes 12 µs."""
    decode: Callable[[bytes], Decoded] = msgspec.json.Decoder(type_, strict=False).decode
    return lambda data: _decode(decode, data)


def _decode(decode: Callable[[bytes], Decoded], data: bytes) -> Decoded:
    try:
        return decode(data)
    except (msgspec.ValidationError, UnicodeDecodeError, RecursionError) as error:
        raise UnreadableJson(str(error)) from None
    except msgspec.DecodeError:
        try:
            return decode(_NUMBER_KEY.sub(rb'\1"\2"\3', data))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise UnreadableJson(str(error)) from None


def convert(value: Any, type_: type[Form]) -> Form:
    """Convert a model object to the struct of its JSON form, or back.

    Both have the same attributes. The struct adds RocketMQ's names and the ranges of Java's numbers.
    """
    return msgspec.convert(value, type_, from_attributes=True)
