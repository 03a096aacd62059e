"""What people type into the form of a prediction, and what it says."""

import datetime

import pytest

from latermq.errors import InvalidParameter
from latermq.http.api.what_if import Prediction
from latermq.http.console.moments import parse_coming_ms
from latermq.http.console.pages.what_if import _stage, parse_count


@pytest.mark.parametrize(
    ("text", "number"),
    [("500,000", 500_000), ("500 000", 500_000), ("500k", 500_000), ("0.5M", 500_000), ("7", 7), ("2_000", 2_000)],
)
def test_a_number_is_read_as_people_write_it(text: str, number: float) -> None:
    assert parse_count(text) == number


@pytest.mark.parametrize("text", ["", "many", "k", "1e999", "nan", "5kk"])
def test_what_is_not_a_number_is_refused(text: str) -> None:
    with pytest.raises(InvalidParameter):
        parse_count(text)


@pytest.mark.parametrize(
    ("now", "text", "zone", "expected"),
    [
        ("2027-01-31T08:00:00+00:00", "09:00", "UTC", "2027-01-31T09:00:00+00:00"),
        ("2027-01-31T08:30:00+00:00", "09:00", "Europe/Berlin", "2027-02-01T09:00:00+01:00"),
        ("2027-03-27T12:00:00+00:00", "09:00", "Europe/Berlin", "2027-03-28T09:00:00+02:00"),  # summer time begins
        ("2027-01-31T08:00:00+00:00", "2h", "UTC", "2027-01-31T10:00:00+00:00"),
        ("2027-01-31T08:00:00+00:00", "2027-05-01 09:00", "UTC", "2027-05-01T09:00:00+00:00"),
    ],
)
def test_a_time_of_day_is_the_next_one(now: str, text: str, zone: str, expected: str) -> None:
    now_ms, expected_ms = (int(datetime.datetime.fromisoformat(one).timestamp() * 1000) for one in (now, expected))
    assert parse_coming_ms(text, zone, now_ms) == expected_ms


def test_a_prediction_says_how_late_and_until_when() -> None:
    late = _stage("Processed", "processed", 2_000, Prediction(125_000, 247_500, 250_000, 480_000, 250_000))
    assert (late.verdict, late.kind) == ("Up to 4 min 10 s late", "bad")
    assert "99 % within 4 min 8 s" in late.facts[0]
    assert "480,000 wait" in late.facts[1]
    assert "empty again 4 min 10 s after" in late.facts[2]
    prompt = _stage("Delivered", "stored", 50_000, Prediction(1, 12, 14, 500, 10))
    assert (prompt.verdict, prompt.kind, len(prompt.facts)) == ("On time", "good", 2)
    endless = _stage("Processed", "processed", 1, Prediction(1e9, 1e9, 1e9, 10**9, None))
    assert "does not become empty" in endless.facts[2]
