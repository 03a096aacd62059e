"""Due times of every type that a frame may have, and how each becomes milliseconds."""

import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from latermq.errors import ConfigError
from latermq.pipeline.bulk.due_times import UnreadableTime, due_times_ms, local_time_zone
from latermq.pipeline.bulk.row_frames import BadRow, Target, requests_of

BERLIN = "Europe/Berlin"
NEW_YEAR = datetime.datetime(2027, 1, 1, tzinfo=datetime.UTC)
NEW_YEAR_MS = int(NEW_YEAR.timestamp() * 1000)
HOUR_MS = 3_600_000


def times(values: list[Any], type_: pa.DataType, zone: str = BERLIN) -> list[int]:
    found: list[int] = due_times_ms(pa.array(values, type_), zone).tolist()
    return found


@pytest.mark.parametrize(("unit", "per_s"), [("s", 1), ("ms", 1_000), ("us", 1_000_000), ("ns", 1_000_000_000)])
def test_timestamps_of_any_precision_are_rounded_up_to_the_millisecond(unit: str, per_s: int) -> None:
    second = NEW_YEAR_MS // 1000 * per_s
    values = [second, second + 1, None]
    expected = [NEW_YEAR_MS, -(-(second + 1) * 1000 // per_s), 0]
    assert times(values, pa.timestamp(unit, "UTC")) == expected
    assert times(values, pa.timestamp(unit), "UTC") == expected


def test_dates_and_timestamps_without_a_zone_are_in_the_zone_of_the_session() -> None:
    assert times([datetime.date(2027, 1, 1), None], pa.date32()) == [NEW_YEAR_MS - HOUR_MS, 0]
    assert times([NEW_YEAR.replace(hour=1, tzinfo=None)], pa.timestamp("us")) == [NEW_YEAR_MS]
    # The clock shows 2:30 twice in October and never in March.
    twice, never = pa.array(["2027-10-31 02:30", "2027-03-28 02:30"]).cast(pa.timestamp("us")).to_pylist()
    first, after = times([twice, never], pa.timestamp("us"))
    assert first == int(datetime.datetime(2027, 10, 31, 0, 30, tzinfo=datetime.UTC).timestamp() * 1000)
    assert after == int(datetime.datetime(2027, 3, 28, 1, 0, tzinfo=datetime.UTC).timestamp() * 1000)


def test_strings_are_read_as_iso_8601_with_and_without_an_offset() -> None:
    texts = ["2027-01-01T00:00:00Z", "2027-01-01 01:00:00", "2027-01-01T02:00:00.0000001+02:00", "2027-01-01", None]
    assert times(texts, pa.string()) == [NEW_YEAR_MS, NEW_YEAR_MS, NEW_YEAR_MS, NEW_YEAR_MS - HOUR_MS, 0]
    assert times(["2027-01-01T00:00:00.000001Z"], pa.large_string()) == [NEW_YEAR_MS + 1]
    with pytest.raises(UnreadableTime) as caught:
        times([texts[0], "tomorrow"], pa.string())
    assert (caught.value.row, caught.value.text) == (1, "tomorrow")


def test_a_row_with_an_unreadable_time_is_named() -> None:
    rows = pa.RecordBatch.from_pydict({"key": ["a", "b"], "due": ["2027-01-01", "soon"]})
    with pytest.raises(BadRow, match=r"row 1 \(key 'b'\): its due is 'soon'\. Write it like"):
        list(requests_of(rows, Target("job", ("broker-a",), topic="t")))


def test_an_unknown_time_zone_is_refused_only_where_it_is_needed() -> None:
    assert times([NEW_YEAR_MS], pa.timestamp("ms", "UTC"), "Mars/Olympus") == [NEW_YEAR_MS]
    with pytest.raises(ConfigError, match="Set the option timeZone"):
        times([NEW_YEAR_MS], pa.timestamp("ms"), "Mars/Olympus")


def test_the_zone_of_the_machine_is_that_of_its_variable_or_its_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", ":Asia/Tokyo")
    assert local_time_zone() == "Asia/Tokyo"
    monkeypatch.delenv("TZ")
    assert np.asarray(times([0], pa.timestamp("s"), local_time_zone())).shape == (1,)
