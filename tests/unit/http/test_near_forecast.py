"""Counts of brokers in spans of any length."""

import asyncio
from typing import cast

import pytest

from latermq.client import Density
from latermq.errors import InvalidParameter
from latermq.http.api.near_forecast import NearForecast, spans_of, timers_between
from latermq.http.brokers import Brokers

HOUR_MS = 3_600_000


class CountingBrokers:
    """Brokers with timers at these times, which may have too many to count."""

    def __init__(self, dues: list[int], *, are_too_many: bool = False) -> None:
        self.dues = dues
        self.questions = 0
        self._are_too_many = are_too_many

    async def count_timers(self, *, from_ms: int, until_ms: int) -> int:
        self.questions += 1
        if self._are_too_many:
            raise InvalidParameter("too many seconds")
        return sum(from_ms <= due_ms < until_ms for due_ms in self.dues)


def density(start_ms: int) -> Density:
    found = Density(start_ms, [0] * 3_600, [0] * 1_380, [0] * 24)
    found.seconds[10], found.minutes[30], found.hours[5] = 7, 60, 100
    return found


def slots(start_ms: int) -> list[tuple[int, int, int]]:
    return spans_of(density(start_ms))


def test_each_timer_is_in_one_span() -> None:
    start_ms = 1_800_000_000_000 + 1_234_000
    for span_ms in (60_000, HOUR_MS, 24 * HOUR_MS):
        from_ms = start_ms // span_ms * span_ms
        counts = timers_between(slots(start_ms), from_ms, from_ms + 50 * 24 * HOUR_MS, span_ms)
        assert sum(counts.values()) == 167
        assert all(counts.values())


def test_a_count_on_an_edge_is_divided() -> None:
    counts = timers_between(slots(0), 0, 48 * HOUR_MS, HOUR_MS // 2)
    assert counts == {0: 7, 3: 60, 58: 50, 59: 50}
    assert timers_between(slots(0), HOUR_MS + 30 * 60_000 + 15_000, HOUR_MS + 31 * 60_000, 60_000) == {0: 45}
    assert timers_between(slots(0), 100 * HOUR_MS, 101 * HOUR_MS, HOUR_MS) == {}


@pytest.mark.parametrize("minutes", [0, 1, 29, 30, 31, 59])
def test_each_timer_of_the_second_day_is_in_its_own_hour(minutes: int) -> None:
    start_ms = 1_800_000_000_000 // HOUR_MS * HOUR_MS + minutes * 60_000
    dues = [start_ms + 24 * HOUR_MS + 1 + step * 7 * 60_000 for step in range(200)]
    brokers = CountingBrokers(dues)
    found = Density(start_ms, [0] * 3_600, [0] * 1_380, [0] * 24)
    for due_ms in dues:
        found.hours[(due_ms - start_ms - 1) // HOUR_MS - 24] += 1
    from_ms = start_ms // HOUR_MS * HOUR_MS
    forecast = NearForecast(cast(Brokers, brokers))
    counts = asyncio.run(forecast.between(found, from_ms, from_ms + 60 * HOUR_MS, HOUR_MS))
    wanted: dict[int, int] = {}
    for due_ms in dues:
        number = (due_ms - from_ms) // HOUR_MS
        wanted[number] = wanted.get(number, 0) + 1
    assert counts == wanted
    assert brokers.questions == (24 if minutes else 0)


def test_hours_with_too_many_seconds_to_count_are_divided() -> None:
    forecast = NearForecast(cast(Brokers, CountingBrokers([], are_too_many=True)))
    start_ms = 30 * 60_000
    counts = asyncio.run(forecast.between(density(start_ms), 0, 60 * HOUR_MS, HOUR_MS))
    assert counts == {0: 7, 2: 60, 29: 50, 30: 50}
