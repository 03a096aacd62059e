"""A timer as a program describes it, its checks, and its conversion to a row of the brokers' bulk request."""

import datetime
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from latermq.client.scheduling.rows import Row
from latermq.config import Duration
from latermq.errors import IllegalMessage
from latermq.message.names import check_sendable_topic
from latermq.message.properties import KEY_SEPARATOR, MAX_PROPERTIES_BYTES, NAME_END, PROPERTY_END
from latermq.model.rows import RESERVED_PREFIXES, RESERVED_PROPERTIES

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MILLISECOND = datetime.timedelta(milliseconds=1)
_SEPARATORS = ("\0", NAME_END, PROPERTY_END)


class Due(NamedTuple):
    """When a timer is due: milliseconds since 1970, or from now by the broker's clock."""

    time_ms: int
    is_delay: bool


def due_of(at: datetime.datetime | None, delay: datetime.timedelta | str | None) -> Due:
    """Check the due time, given in one of two ways. Times are rounded up: a timer is never early."""
    if (at is None) == (delay is None):
        raise IllegalMessage("a timer needs either `at` or `delay`", hint='Write delay="15m" or at=some_datetime')
    if at is not None:
        if at.tzinfo is None:
            raise IllegalMessage(
                f"the time {at} has no time zone, so it is ambiguous", hint="Use datetime.now(UTC) or .astimezone()"
            )
        time_ms = -((_EPOCH - at) // _MILLISECOND)
    elif isinstance(delay, datetime.timedelta):
        time_ms = -(-delay // _MILLISECOND)
    else:
        time_ms = _parsed(delay)
    if time_ms < 0:
        raise IllegalMessage(f"the time {delay if at is None else at} is negative", hint="Use a time from now on")
    return Due(time_ms, at is None)


def row_of(
    topic: str,
    body: bytes,
    due: Due,
    *,
    key: str | Sequence[str],
    tag: str,
    properties: Mapping[str, str],
    unique_key: str,
) -> Row:
    """Check a new timer. Brokers check the rest: sizes, permissions, and how far ahead it is due."""
    check_sendable_topic(topic)
    if not body:
        raise IllegalMessage("the body is empty, which brokers do not accept", hint="Send at least one byte")
    keys = key if isinstance(key, str) else KEY_SEPARATOR.join(key)
    text = ""
    for name, value in properties.items():
        if not name or not value or name in RESERVED_PROPERTIES or name.startswith(RESERVED_PREFIXES):
            raise IllegalMessage(f"the property {name[:40]!r} is reserved or empty", hint="Use another name")
        text += f"{name}{NAME_END}{value}{PROPERTY_END}"
    names = len(properties)
    if text.count(NAME_END) != names or text.count(PROPERTY_END) != names or "\0" in text:
        raise _has_separators("a property")
    for what, value in (("the key", keys), ("the tag", tag)):
        if any(separator in value for separator in _SEPARATORS):
            raise _has_separators(what)
    row = Row(topic, unique_key, bytes(body), keys.encode(), tag.encode(), text.encode(), *due)
    if row.size_bytes - len(body) > MAX_PROPERTIES_BYTES:
        raise IllegalMessage(
            f"key, tag and properties have {row.size_bytes - len(body)} bytes, the limit is {MAX_PROPERTIES_BYTES}",
            hint="Move large values into the body",
        )
    return row


def _parsed(delay: object) -> int:
    if not isinstance(delay, str):
        raise IllegalMessage(
            f"the delay {delay!r} has no unit", hint='Use a timedelta, or a text such as "90s", "15m" or "40d"'
        )
    try:
        return int(Duration.parse(delay))
    except ValueError as error:
        raise IllegalMessage(f"the delay is not valid: {error}") from None


def _has_separators(what: str) -> IllegalMessage:
    return IllegalMessage(
        f"{what} contains one of the characters \\x00, \\x01 and \\x02, which separate properties",
        hint="Put such values into the body",
    )
