"""JSON as Java's side reads and writes it: the keys of a map may be numbers without quotes."""

import re
from typing import Any, TypeVar

import msgspec

Decoded = TypeVar("Decoded")
Form = TypeVar("Form")

encode_json = msgspec.json.Encoder().encode

_NUMBER_KEY = re.compile(rb"([{,]\s*)(-?\d+)(\s*:)")


class UnreadableJson(ValueError):
    """A text is not the JSON of the wanted type."""


def decode_json(data: bytes, type_: type[Decoded]) -> Decoded:
    """A value out of Java's JSON."""
    try:
        return msgspec.json.decode(data, type=type_, strict=False)
    except (msgspec.ValidationError, UnicodeDecodeError, RecursionError) as error:
        raise UnreadableJson(str(error)) from None
    except msgspec.DecodeError:
        try:
            return msgspec.json.decode(_NUMBER_KEY.sub(rb'\1"\2"\3', data), type=type_, strict=False)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise UnreadableJson(str(error)) from None


def convert(value: Any, type_: type[Form]) -> Form:
    """A model object as the struct that RocketMQ's JSON is read into and written from, or back.

    The two have the same attributes; the struct gives them RocketMQ's names and the bounds of Java's numbers.
    """
    return msgspec.convert(value, type_, from_attributes=True)
