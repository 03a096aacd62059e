"""Moments as people write them into forms."""

import datetime

import pytest

from latermq.errors import InvalidParameter
from latermq.http.console.moments import parse_moment_ms

NOW_MS = 1_800_000_000_000


def ms(text: str) -> int:
    return round(datetime.datetime.fromisoformat(text).timestamp() * 1000)


@pytest.mark.parametrize(
    ("text", "zone", "expected"),
    [
        ("15m", "UTC", NOW_MS + 900_000),
        ("+40d", "UTC", NOW_MS + 40 * 86_400_000),
        ("2h ago", "UTC", NOW_MS - 7_200_000),
        (" 2027-01-31 09:00 ", "UTC", ms("2027-01-31T09:00:00+00:00")),
        ("2027-01-31 09:00", "Europe/Berlin", ms("2027-01-31T09:00:00+01:00")),
        ("2027-07-31T09:00:30", "Europe/Berlin", ms("2027-07-31T09:00:30+02:00")),
        ("2027-01-31T09:00:00+05:30", "Europe/Berlin", ms("2027-01-31T09:00:00+05:30")),
        ("2027-01-31T09:00:00Z", "Europe/Berlin", ms("2027-01-31T09:00:00+00:00")),
        ("2027-01-31", "UTC", ms("2027-01-31T00:00:00+00:00")),
        ("1801386900000", "UTC", 1_801_386_900_000),
    ],
)
def test_a_moment_is_read_in_the_chosen_zone(text: str, zone: str, expected: int) -> None:
    assert parse_moment_ms(text, zone, NOW_MS) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "soon",
        "15",
        "2027",
        "20270131",
        "2027-13-01",
        "1960-01-01",
        "9" * 50,
        "15 parsecs",
        "ago",
        "x ago",
        "99999d ago",
    ],
)
def test_what_is_no_moment_is_refused_with_examples(text: str) -> None:
    with pytest.raises(InvalidParameter) as caught:
        parse_moment_ms(text, "UTC", NOW_MS)
    assert caught.value.hint.startswith("Write 15m") or "1970" in caught.value.message


@pytest.mark.parametrize("zone", ["Mars/Olympus", "../../etc/passwd", "/etc/localtime", "x" * 500, "Europe"])
def test_an_unknown_zone_is_refused(zone: str) -> None:
    with pytest.raises(InvalidParameter, match="time zone"):
        parse_moment_ms("2027-01-31 09:00", zone, NOW_MS)
