"""The lateness of deliveries by minute, as brokers keep it and as the console adds it up."""

import msgspec
import numpy as np

from latermq.broker.metrics.recent_lateness import RecentLateness
from latermq.http.api.lateness import lateness_report, read_minutes
from latermq.timer.delivery.lateness import LATENESS_BOUNDS_MS, Distribution

MINUTE_MS = 60_000
START_MS = 1_800_000_000_000


def add(distribution: Distribution, *times_ms: int) -> None:
    distribution.add(np.array(times_ms, np.int64))


def test_each_minute_has_its_own_deliveries_for_an_hour() -> None:
    timers, levels = Distribution(LATENESS_BOUNDS_MS), Distribution(LATENESS_BOUNDS_MS)
    add(timers, 9)  # before the first sample: it counts in the first minute
    recent = RecentLateness((timers, levels))
    for minute in range(70):
        for second in range(0, 60, 20):
            recent.sample(START_MS + minute * MINUTE_MS + second * 1000)
            if minute != 40:
                add(timers, 1, minute)
                add(levels, 3)
    found = recent.minutes()
    assert len(found) == 59  # an hour, without the minute that had no delivery
    assert [one.start_ms for one in found] == [
        START_MS + minute * MINUTE_MS for minute in range(10, 70) if minute != 40
    ]
    assert all(one.upto[-1] == 9 for one in found)
    assert [one.max_ms for one in found[:-1]] == [minute for minute in range(10, 69) if minute != 40]
    recent.sample(START_MS + 200 * MINUTE_MS)
    assert recent.minutes() == []


def test_a_clock_that_is_set_back_keeps_no_minutes_of_the_future() -> None:
    timers = Distribution(LATENESS_BOUNDS_MS)
    recent = RecentLateness((timers,))
    recent.sample(START_MS)
    add(timers, 5)
    recent.sample(START_MS + MINUTE_MS)
    recent.sample(START_MS - 3_600_000)
    add(timers, 7)
    recent.sample(START_MS - 3_500_000)
    assert [one.max_ms for one in recent.minutes()] == [7]


def test_the_report_adds_up_brokers_and_finds_percentiles() -> None:
    encoded = []
    for latest_ms in (4, 800):
        timers = Distribution(LATENESS_BOUNDS_MS)
        recent = RecentLateness((timers,))
        recent.sample(START_MS)
        add(timers, *([1] * 99), latest_ms)
        recent.sample(START_MS + 1_000)
        encoded.append(msgspec.json.encode([LATENESS_BOUNDS_MS, recent.minutes()]).decode())
    found = [read_minutes({"latermqLatenessByMinute": text}) for text in encoded]
    assert None not in found
    report = lateness_report([one for one in found if one is not None], ["broker-c"])
    assert (report.hour.deliveries, report.hour.max_ms, report.silent) == (200, 800, ["broker-c"])
    assert report.hour.p50_ms <= 1
    assert report.hour.p99_ms <= 5
    [minute] = report.minutes
    assert (minute.start_ms, minute.deliveries) == (START_MS, 200)


def test_what_is_not_a_report_is_not_read() -> None:
    for text in ("", "[]", "[[1],[[1,[1],1]]]", "[[],[]]", "{}", '[[1],[["x",[1,2],1]]]'):
        assert read_minutes({"latermqLatenessByMinute": text}) is None
    assert read_minutes({}) is None
    empty = lateness_report([], [])
    assert (empty.hour.deliveries, empty.hour.p99_ms, empty.minutes) == (0, 0.0, [])
