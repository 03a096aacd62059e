"""Counts of brokers in spans of any length."""

from latermq.client import Density
from latermq.http.api.near_forecast import timers_between

HOUR_MS = 3_600_000


def density(start_ms: int) -> Density:
    found = Density(start_ms, [0] * 3_600, [0] * 1_380, [0] * 24)
    found.seconds[10], found.minutes[30], found.hours[5] = 7, 60, 100
    return found


def test_each_timer_is_in_one_span() -> None:
    start_ms = 1_800_000_000_000 + 1_234_000
    for span_ms in (60_000, HOUR_MS, 24 * HOUR_MS):
        from_ms = start_ms // span_ms * span_ms
        counts = timers_between(density(start_ms), from_ms, from_ms + 50 * 24 * HOUR_MS, span_ms)
        assert sum(counts.values()) == 167
        assert all(counts.values())


def test_a_count_on_an_edge_is_divided() -> None:
    counts = timers_between(density(0), 0, 48 * HOUR_MS, HOUR_MS // 2)
    assert counts == {0: 7, 3: 60, 58: 50, 59: 50}
    assert timers_between(density(0), HOUR_MS + 30 * 60_000 + 15_000, HOUR_MS + 31 * 60_000, 60_000) == {0: 45}
    assert timers_between(density(0), 100 * HOUR_MS, 101 * HOUR_MS, HOUR_MS) == {}
