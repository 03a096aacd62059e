"""The calendar of pending timers: which cell an hour is in, also on days when the clock changes."""

import datetime
import zoneinfo

from latermq.http.console.heat_map import (
    HOUR_MS,
    LEVELS,
    HourCount,
    days_by_hour,
    level_of,
    months_by_day,
    short_count,
)

BERLIN = zoneinfo.ZoneInfo("Europe/Berlin")


def ms(text: str, zone: datetime.tzinfo = BERLIN) -> int:
    return int(datetime.datetime.fromisoformat(text).replace(tzinfo=zone).timestamp()) * 1000


def test_an_hour_is_in_the_row_of_its_day_and_the_column_of_its_hour() -> None:
    from_ms, until_ms = ms("2027-01-30"), ms("2027-02-01")
    found = days_by_hour([HourCount(ms("2027-01-31T09:00"), 3, 40)], from_ms, until_ms, BERLIN)
    assert [row.name for row in found.rows] == ["Sat 30 Jan", "Sun 31 Jan"]
    cell = found.rows[1].cells[9]
    assert cell is not None
    assert (cell.near, cell.far, cell.kind, cell.level) == (3, 40, "far", LEVELS)
    assert (cell.from_ms, cell.until_ms) == (ms("2027-01-31T09:00"), ms("2027-01-31T10:00"))
    assert cell.label == "Sun 31 Jan, 09:00: 43 timers (3 on brokers, 40 on Spark)"
    assert (found.near, found.far, [row.total for row in found.rows]) == (3, 40, [0, 43])


def test_an_hour_that_the_clock_skips_has_no_cell_and_one_that_it_repeats_is_one() -> None:
    spring = days_by_hour([], ms("2027-03-28"), ms("2027-03-29"), BERLIN).rows[0].cells
    assert [hour for hour in range(24) if spring[hour] is None] == [2]
    first_ms = ms("2027-10-31T02:00")
    counts = [HourCount(first_ms, 1, 0), HourCount(first_ms + HOUR_MS, 2, 0)]
    autumn = days_by_hour(counts, ms("2027-10-31"), ms("2027-11-01"), BERLIN).rows[0].cells[2]
    assert autumn is not None
    assert (autumn.near, autumn.until_ms - autumn.from_ms) == (3, 2 * HOUR_MS)


def test_zones_with_half_hours_have_whole_cells() -> None:
    kolkata = zoneinfo.ZoneInfo("Asia/Kolkata")
    from_ms = ms("2027-05-01", kolkata)
    [row] = days_by_hour([HourCount(from_ms + 5 * HOUR_MS, 1, 0)], from_ms, from_ms + 24 * HOUR_MS, kolkata).rows
    assert [cell.near for cell in row.cells if cell] == [0] * 5 + [1] + [0] * 18


def test_months_have_their_days() -> None:
    counts = [HourCount(ms("2028-02-29T23:00"), 0, 7)]
    found = months_by_day(counts, ms("2028-01-01"), ms("2028-04-01"), BERLIN)
    assert [(row.name, sum(cell is not None for cell in row.cells)) for row in found.rows] == [
        ("Jan 2028", 31),
        ("Feb 2028", 29),
        ("Mar 2028", 31),
    ]
    assert found.rows[1].cells[28] is not None
    assert found.rows[1].cells[28].far == 7


def test_levels_grow_with_the_count() -> None:
    assert level_of(0, 0) == level_of(0, 5) == 0
    levels = [level_of(count, 1_000_000) for count in (1, 10, 1_000, 100_000, 1_000_000)]
    assert levels == sorted(levels)
    assert (levels[0], levels[-1]) == (1, LEVELS)


def test_counts_are_short() -> None:
    assert [short_count(count) for count in (0, 7, 999, 1_000, 9_949, 12_345, 999_499, 999_500, 3_400_000, 10**9)] == [
        "", "7", "999", "1.0k", "9.9k", "12k", "999k", "1.0M", "3.4M", "1.0G",
    ]  # fmt: skip
