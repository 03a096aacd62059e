"""The lines of the audit log. docs/security.md describes their fields."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Literal, NamedTuple

import msgspec

from latermq.visible_text import visible

Result = Literal["allowed", "refused", "would be refused", "failed"]
MAX_TEXT_CHARS = 1_000
MAX_PARTS = 64  # resources, or details, of one line
SUPER_USER = "super user"

_encode = msgspec.json.Encoder().encode


class AuditedAccess(msgspec.Struct, frozen=True, omit_defaults=True):
    """One resource that a request touches, and what decided about it."""

    action: str
    resource: str
    entry: int | None = None  # the number of the entry in the policies of the user
    by: str = ""  # the entry, or that the user is a super user


class RequestLine(msgspec.Struct, kw_only=True, omit_defaults=True, rename={"source": "from"}):
    """One administrative request."""

    time: str
    part: str
    user: str
    source: str
    request: str
    access: list[AuditedAccess] = msgspec.field(default_factory=list)
    result: Result
    reason: str = ""
    details: dict[str, str] = msgspec.field(default_factory=dict)


class CountLine(msgspec.Struct, kw_only=True, omit_defaults=True, rename={"source": "from"}):
    """Requests of one kind within an interval."""

    since: str
    time: str
    part: str
    user: str
    source: str
    action: str
    resource: str = ""
    result: Result
    entry: int | None = None
    by: str = ""
    reason: str = ""
    count: int


class CountKey(NamedTuple):
    """What requests have in common that are counted together. `source` is an address without a port."""

    user: str
    source: str
    action: str
    resource: str
    result: Result
    entry: int | None = None
    by: str = ""
    reason: str = ""


def encode_request(
    part: str,
    at_ms: int,
    *,
    user: str,
    source: str,
    request: str,
    access: Iterable[AuditedAccess],
    result: Result,
    reason: str,
    details: Mapping[str, str],
) -> bytes:
    """One line about an administrative request."""
    accesses = list(access)
    shown = [
        AuditedAccess(_text(one.action), _text(one.resource), one.entry, _text(one.by)) for one in accesses[:MAX_PARTS]
    ]
    more = {"further_resources": str(len(accesses) - MAX_PARTS)} if len(accesses) > MAX_PARTS else {}
    line = RequestLine(
        time=moment(at_ms),
        part=part,
        user=_text(user),
        source=source,
        request=_text(request),
        access=shown,
        result=result,
        reason=_text(reason),
        details={key: _text(value) for key, value in list(details.items())[:MAX_PARTS]} | more,
    )
    return _encode(line) + b"\n"


def encode_counts(part: str, since_ms: int, until_ms: int, counts: Mapping[CountKey, int]) -> list[bytes]:
    """One line per kind of request."""
    since, until = moment(since_ms), moment(until_ms)
    return [
        _encode(
            CountLine(
                since=since,
                time=until,
                part=part,
                user=_text(key.user),
                source=key.source,
                action=_text(key.action),
                resource=_text(key.resource),
                result=key.result,
                entry=key.entry,
                by=_text(key.by),
                reason=_text(key.reason),
                count=count,
            )
        )
        + b"\n"
        for key, count in counts.items()
        if count
    ]


def moment(at_ms: int) -> str:
    """A time in UTC, as in `2027-01-01T00:00:00.123Z`."""
    at = datetime.fromtimestamp(at_ms // 1000, UTC)
    return f"{at:%Y-%m-%dT%H:%M:%S}.{at_ms % 1000:03}Z"


def _text(text: str) -> str:
    """A text without control characters and of limited length: names come from clients."""
    if len(text) > MAX_TEXT_CHARS:
        text = f"{text[:MAX_TEXT_CHARS]}… ({len(text)} characters)"
    return visible(text)
