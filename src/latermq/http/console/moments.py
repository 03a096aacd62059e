"""Moments as people write them: a delay, a date and time in the chosen zone, or a complete timestamp."""

import datetime
import zoneinfo

from latermq.config import Duration
from latermq.errors import InvalidParameter
from latermq.http.timer_request import time_text

MAX_CHARS = 60
_LEAST_DIGITS, _MOST_DIGITS = 12, 15  # of milliseconds since 1970: the years 1973 to 33658
_TIME_CHARS = 3  # up to the colon of a time of day
_AGO = " ago"
_HINT = "Write 15m, 2h ago, 2027-01-31 09:00, or 2027-01-31T09:00:00+01:00"
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MILLISECOND = datetime.timedelta(milliseconds=1)


def parse_delay_ms(text: str) -> int | None:
    """Return a delay such as `15m`, or None if the text is not one."""
    try:
        return int(Duration.parse(text.strip().removeprefix("+")[:MAX_CHARS]))
    except (ValueError, OverflowError):
        return None


def parse_moment_ms(text: str, zone: str, now_ms: int) -> int:
    """Return a moment in milliseconds: now plus or minus a span, milliseconds since 1970, or a date and time."""
    text = text.strip()[:MAX_CHARS]
    if text.endswith(_AGO):
        age_ms = parse_delay_ms(text.removesuffix(_AGO))
        if age_ms is None or age_ms > now_ms:
            raise InvalidParameter(f"{text!r} is not a time", hint=_HINT)
        return now_ms - age_ms
    if text.isascii() and text.isdigit():
        if not _LEAST_DIGITS <= len(text) <= _MOST_DIGITS:  # a number of minutes, a year, or a date without dashes
            raise InvalidParameter(f"{text!r} is not a time", hint=_HINT)
        return int(text)
    delay_ms = parse_delay_ms(text)
    if delay_ms is not None:
        return now_ms + delay_ms
    try:
        moment = datetime.datetime.fromisoformat(text)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=zone_of(zone))
        time_ms = (moment - _EPOCH) // _MILLISECOND
    except (ValueError, OverflowError):
        raise InvalidParameter(f"{text!r} is not a time", hint=_HINT) from None
    if not time_text(time_ms):
        raise InvalidParameter(f"{text!r} is before 1970 or after 9999", hint=_HINT)
    return time_ms


def parse_coming_ms(text: str, zone: str, now_ms: int) -> int:
    """Return a moment like `parse_moment_ms`. A time of day, such as 09:00, is the next one."""
    try:
        time_of_day = datetime.time.fromisoformat(text.strip()) if ":" in text[:_TIME_CHARS] else None
    except ValueError:
        time_of_day = None
    if time_of_day is None or time_of_day.tzinfo is not None:
        return parse_moment_ms(text, zone, now_ms)
    now = datetime.datetime.fromtimestamp(now_ms / 1000, zone_of(zone))
    found = now.replace(
        hour=time_of_day.hour, minute=time_of_day.minute, second=time_of_day.second, microsecond=0, fold=0
    )
    if found < now:
        found += datetime.timedelta(days=1)
    return (found - _EPOCH) // _MILLISECOND


def due_of(text: str, zone: str, now_ms: int) -> dict[str, str]:
    """Return a due time as the API has it: a delay counts from when the broker gets it."""
    if not text.strip():
        raise InvalidParameter("the time is missing", hint="Write 15m, or 2027-01-31 09:00")
    if parse_delay_ms(text) is not None and not text.strip().isdigit():
        return {"delay": text.strip().removeprefix("+")}
    return {"due": time_text(parse_moment_ms(text, zone, now_ms))}


def zone_of(name: str) -> datetime.tzinfo:
    """Return a time zone by its name, such as Europe/Berlin."""
    if name == "UTC":
        return datetime.UTC
    try:
        return zoneinfo.ZoneInfo(name[:MAX_CHARS])
    except (ValueError, OSError, zoneinfo.ZoneInfoNotFoundError):
        raise InvalidParameter(
            f"this machine does not know the time zone {name[:MAX_CHARS]!r}",
            hint="Write the time with its offset, such as 2027-01-31T09:00:00+01:00",
        ) from None
