"""A timer as a client describes it, its checks, and its conversion to a row of the brokers' bulk request."""

import base64
import binascii
import datetime

import msgspec

from latermq.client.scheduling.rows import Row
from latermq.config import Duration
from latermq.errors import IllegalMessage, InvalidParameter
from latermq.message.names import check_sendable_topic
from latermq.message.properties import NAME_END, PROPERTY_END
from latermq.model.rows import RESERVED_PREFIXES, RESERVED_PROPERTIES

MAX_TIME_MS = (1 << 61) - 1
MAX_KEYS_CHARS = 16_384  # also the longest property, roughly: a record has 32 KiB of properties
DIGEST_PROPERTY = "IDEMPOTENCY_DIGEST"  # tells a repeated request from another one with the same Idempotency-Key
_SEPARATORS = ("\0", NAME_END, PROPERTY_END)
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MILLISECOND = datetime.timedelta(milliseconds=1)
_LAST_MS = 253_402_300_799_999  # the end of the year 9999, after which RFC 3339 has no dates


class NewDue(msgspec.Struct, forbid_unknown_fields=True):
    """When a timer is due: exactly one of the three."""

    delay: str | None = None
    due: str | None = None
    due_ms: int | None = None


class NewTimer(msgspec.Struct, forbid_unknown_fields=True):
    """A message to be delivered later, with `body` or `body_base64`, and exactly one of `delay`, `due` and `due_ms`."""

    topic: str
    body: str | None = None
    body_base64: str | None = None
    key: str = ""
    tag: str = ""
    properties: dict[str, str] = {}
    delay: str | None = None
    due: str | None = None
    due_ms: int | None = None


def time_of(due: NewDue | NewTimer) -> tuple[int, bool]:
    """Return a time in milliseconds, and whether it counts from now."""
    delay, text, due_ms = due.delay, due.due, due.due_ms
    if (delay is not None) + (text is not None) + (due_ms is not None) != 1:
        raise InvalidParameter("exactly one of delay, due and due_ms is required", hint='Write "delay": "15m"')
    if due_ms is not None:
        time_ms = due_ms
    elif delay is not None:
        try:
            time_ms = int(Duration.parse(delay[:40]))
        except (ValueError, OverflowError):
            raise InvalidParameter(
                f"the delay {delay[:40]!r} is not valid", hint="Use a number and ms, s, m, h or d, such as 90s"
            ) from None
    else:
        assert text is not None
        time_ms = parse_time_ms(text)
    if not 0 <= time_ms <= MAX_TIME_MS:
        raise InvalidParameter(f"the time {time_ms} is out of range", hint="Use milliseconds since 1970")
    return time_ms, delay is not None


def parse_time_ms(text: str) -> int:
    """Return a date of RFC 3339 as milliseconds since 1970."""
    try:
        moment = datetime.datetime.fromisoformat(text[:60])
        if moment.tzinfo is None:
            raise ValueError
        time_ms = (moment - _EPOCH) // _MILLISECOND
    except (ValueError, OverflowError):
        raise InvalidParameter(
            f"the time {text[:60]!r} is not valid", hint="Write it like 2027-01-31T09:00:00+01:00, with its offset"
        ) from None
    if time_ms < 0:
        raise InvalidParameter(f"the time {text[:60]!r} is before 1970")
    return time_ms


def parse_bound_ms(text: str) -> int:
    """Return a time in a query in milliseconds, written as a date of RFC 3339 or as milliseconds since 1970."""
    if text.isascii() and text.isdigit() and len(text) < 19:
        return min(int(text), MAX_TIME_MS)
    return parse_time_ms(text.replace(" ", "+"))  # in a query, an unescaped + is a space


def time_text(time_ms: int) -> str:
    """Return a time as RFC 3339 has it, in UTC; empty if it has none."""
    if not 0 < time_ms <= _LAST_MS:
        return ""
    moment = datetime.datetime.fromtimestamp(time_ms // 1000, datetime.UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{time_ms % 1000:03}Z"


def row_of(timer: NewTimer, unique_key: str, digest: str = "") -> Row:
    """Check what a client wrote. Brokers check the rest: sizes, permissions, and how far ahead it is due."""
    check_sendable_topic(timer.topic)
    time_ms, is_delay = time_of(timer)
    check_key_and_tag(timer.key, timer.tag)
    return Row(
        timer.topic,
        unique_key,
        body_of(timer.body, timer.body_base64),
        timer.key.encode(),
        timer.tag.encode(),
        _properties(timer.properties, digest) if timer.properties or digest else b"",
        time_ms,
        is_delay,
    )


def check_key_and_tag(key: str, tag: str) -> None:
    """Refuse keys and tags that no broker stores."""
    if len(key) > MAX_KEYS_CHARS or len(tag) > MAX_KEYS_CHARS:
        raise IllegalMessage(f"the key or the tag has more than {MAX_KEYS_CHARS} characters", hint="Use the body")
    _check_text("key", key)
    _check_text("tag", tag)


def check_property(name: str, value: str) -> None:
    """Refuse properties that no broker stores, and those that brokers set."""
    if not name or not value:
        raise InvalidParameter(f"property {name[:40]!r} is empty", hint="Leave it out")
    if name in RESERVED_PROPERTIES or name == DIGEST_PROPERTY or name.startswith(RESERVED_PREFIXES):
        raise InvalidParameter(f"property {name[:40]!r} is reserved", hint="Use another name")
    _check_text("property", name)
    _check_text("property", value)


def body_of(body: str | None, body_base64: str | None) -> bytes:
    """Return the body of a message that was given as text or as base64."""
    if (body is None) == (body_base64 is None):
        raise InvalidParameter("exactly one of body and body_base64 is required")
    if body is not None:
        content = body.encode()
    else:
        assert body_base64 is not None
        try:
            content = base64.b64decode(body_base64, validate=True)
        except (binascii.Error, ValueError):
            raise InvalidParameter("body_base64 is not base64") from None
    if not content:
        raise IllegalMessage("the body is empty", hint="A message has at least one byte")
    return content


def _properties(properties: dict[str, str], digest: str) -> bytes:
    text = f"{DIGEST_PROPERTY}{NAME_END}{digest}{PROPERTY_END}" if digest else ""
    for name, value in properties.items():
        check_property(name, value)
        text += f"{name}{NAME_END}{value}{PROPERTY_END}"
    return text.encode()


def _check_text(what: str, text: str) -> None:
    if any(character in text for character in _SEPARATORS):
        raise InvalidParameter(f"a {what} contains a character below 3, which separates properties", hint="Remove it")
