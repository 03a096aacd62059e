"""Messages and timers by minute, as brokers keep them, as the console adds them up, and as the overview draws them."""

import msgspec

from latermq.broker.metrics.recent_traffic import RecentTraffic
from latermq.broker.metrics.traffic import Traffic
from latermq.http.api.throughput import read_minutes, sum_of
from latermq.http.console.pages.overview import course_of

MINUTE_MS = 60_000
START_MS = 1_800_000_000_000


def test_each_minute_has_its_own_counts_for_an_hour() -> None:
    messages, timers = Traffic(messages_in=5), Traffic()
    recent = RecentTraffic(messages, timers)
    assert recent.minutes() == []
    for minute in range(70):
        for second in range(0, 60, 20):
            recent.sample(START_MS + minute * MINUTE_MS + second * 1_000)
            messages.messages_in += minute
            messages.messages_out += 2
            timers.messages_in += 3
            timers.messages_out += minute % 2
    found = recent.minutes()
    assert [one.start_ms for one in found] == [START_MS + minute * MINUTE_MS for minute in range(10, 70)]
    assert [one[1:] for one in found] == [(3 * minute, 6, 9, 3 * (minute % 2)) for minute in range(10, 70)]
    recent.sample(START_MS + 200 * MINUTE_MS)
    assert [one[1:] for one in recent.minutes()] == [(0, 0, 0, 0)]


def test_a_clock_that_is_set_back_keeps_no_minutes_of_the_future() -> None:
    messages = Traffic()
    recent = RecentTraffic(messages, Traffic())
    for at_ms in (START_MS, START_MS + MINUTE_MS, START_MS - 3_600_000):
        recent.sample(at_ms)
        messages.messages_in += 1
    assert [one.start_ms for one in recent.minutes()] == [START_MS - 3_600_000]


def test_the_minutes_of_brokers_are_added_up_and_drawn_without_gaps() -> None:
    reported = []
    for count in (4, 800):
        messages = Traffic()
        recent = RecentTraffic(messages, Traffic())
        recent.sample(START_MS)
        messages.messages_in += count
        recent.sample(START_MS + MINUTE_MS)
        reported.append({"latermqTrafficByMinute": msgspec.json.encode(recent.minutes()).decode()})
    found = [read_minutes(one) for one in reported]
    total = sum_of([one for one in found if one is not None])
    assert [(one.start_ms, one.messages_in) for one in total] == [(START_MS, 804), (START_MS + MINUTE_MS, 0)]
    course = course_of(total, START_MS + 2 * MINUTE_MS + 5_000)
    assert len(course) == 60
    assert [one.messages_in for one in course[-3:]] == [0, 804, 0]
    assert course_of(total, START_MS + 50_000) == [], "the first minute is not over"
    for text in ("", "[[1]]", '{"a": 1}', "[[1, 2, 3, 4, null]]"):
        assert read_minutes({"latermqTrafficByMinute": text}) is None
    assert read_minutes({}) is None
