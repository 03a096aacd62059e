"""The near timers of brokers by due time, and their heaviest seconds."""

import asyncio
import heapq

from latermq.client import Density
from latermq.errors import InvalidParameter
from latermq.http.brokers import Brokers

_HOUR_MS, _DAY_MS = 3_600_000, 86_400_000
_SECOND_MS = 1_000
MAX_QUESTIONS = 120  # to the brokers for one search: spans of which the heaviest second is not known yet


class NearForecast:
    """Asks all brokers."""

    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers

    async def ask(self) -> tuple[Density, int]:
        """Return the counts of the next two days, and the number of all pending timers."""
        return await asyncio.gather(self._brokers.timer_density(), self._brokers.count_timers())

    async def between(self, density: Density, from_ms: int, to_ms: int, span_ms: int) -> dict[int, int]:
        """Return how many timers are due in each span from a time on, by its number.

        The hours of a density begin at any minute. Those with timers on both sides of an edge are counted exactly, with
        one question each: otherwise a single timer may be in the wrong hour. Shorter spans are divided in proportion.
        """
        slots = spans_of(density)
        on_edge = {}
        if span_ms >= _HOUR_MS:
            for place, (at_ms, length_ms, timers) in enumerate(slots):
                edge_ms = at_ms + (from_ms - at_ms) % span_ms
                if length_ms == _HOUR_MS and timers and at_ms < edge_ms < at_ms + length_ms:
                    on_edge[place] = edge_ms
        before = await asyncio.gather(*(self._before(*slots[place], edge) for place, edge in on_edge.items()))
        for (place, edge_ms), count in zip(on_edge.items(), before, strict=True):
            at_ms, length_ms, timers = slots[place]
            slots[place] = (at_ms, edge_ms - at_ms, count)
            slots.append((edge_ms, at_ms + length_ms - edge_ms, timers - count))
        return timers_between(slots, from_ms, to_ms, span_ms)

    async def _before(self, at_ms: int, length_ms: int, timers: int, edge_ms: int) -> int:
        """Return how many timers of a slot are due before an edge in it."""
        try:
            # A slot has the timers due after its start and until its end.
            return min(timers, await self._brokers.count_timers(from_ms=at_ms + 1, until_ms=edge_ms))
        except InvalidParameter:  # it has too many seconds to count
            return round(timers * (edge_ms - at_ms) / length_ms)

    async def busiest_seconds(self, from_ms: int, until_ms: int, limit: int) -> list[tuple[int, int]]:
        """Return the seconds with the most near timers, and how many they have, the heaviest first.

        The density has seconds for an hour, then minutes and hours. The heaviest of these are halved until the heaviest
        span is a second, so most minutes are never looked into. The search is bounded: if timers are spread evenly over
        many minutes, some of their seconds are not found.
        """
        density = await self._brokers.timer_density()
        # By upper bound: no second of a span has more timers than the span.
        heap = [
            (-timers, at_ms, span_ms)
            for at_ms, span_ms, timers in spans_of(density)
            if timers and at_ms + span_ms > from_ms and at_ms < until_ms
        ]
        heapq.heapify(heap)
        found: list[tuple[int, int]] = []
        left = MAX_QUESTIONS
        while heap and len(found) < limit:
            timers, at_ms, span_ms = heapq.heappop(heap)
            if span_ms == _SECOND_MS:
                found.append((at_ms, -timers))
            elif left:
                left -= 1
                half_ms = span_ms // _SECOND_MS // 2 * _SECOND_MS
                first = min(-timers, await self._count(at_ms, at_ms + half_ms, -timers))
                for start_ms, part_ms, count in (
                    (at_ms, half_ms, first),
                    (at_ms + half_ms, span_ms - half_ms, -timers - first),
                ):
                    if count:
                        heapq.heappush(heap, (-count, start_ms, part_ms))
        return list(await asyncio.gather(*(self._named(*one) for one in found)))

    async def _named(self, at_ms: int, timers: int) -> tuple[int, int]:
        """Name a slot by the second that its timers are due in: most of them may be due exactly at its end."""
        end_ms = at_ms + _SECOND_MS
        at_end = await self._count(end_ms - 1, end_ms, 0)
        return (end_ms if at_end * 2 >= timers else at_ms), timers

    async def _count(self, from_ms: int, until_ms: int, default: int) -> int:
        """Return the number of timers that brokers have in a span; the default if it has too many seconds to count."""
        try:
            # A slot has the timers due after its start and until its end.
            return await self._brokers.count_timers(from_ms=from_ms + 1, until_ms=until_ms + 1)
        except InvalidParameter:
            return default


def spans_of(density: Density) -> list[tuple[int, int, int]]:
    """Return start, length and count of each span of a density."""
    found = []
    for counts, begin_ms, span_ms in (
        (density.seconds, 0, _SECOND_MS),
        (density.minutes, _HOUR_MS, 60_000),
        (density.hours, _DAY_MS, _HOUR_MS),
    ):
        found += [(density.start_ms + begin_ms + n * span_ms, span_ms, count) for n, count in enumerate(counts)]
    return found


def timers_between(slots: list[tuple[int, int, int]], from_ms: int, to_ms: int, span_ms: int) -> dict[int, int]:
    """Return how many timers are due in each span from a time on, by its number. A count on an edge is divided.

    Slots are those of `spans_of`, in any order.
    """
    counts: dict[int, float] = {}
    for at_ms, length_ms, timers in slots:
        start_ms, end_ms = max(at_ms, from_ms), min(at_ms + length_ms, to_ms)
        while timers and start_ms < end_ms:
            number = (start_ms - from_ms) // span_ms
            next_ms = min(end_ms, from_ms + (number + 1) * span_ms)
            counts[number] = counts.get(number, 0.0) + timers * (next_ms - start_ms) / length_ms
            start_ms = next_ms
    rounded: dict[int, int] = {}
    total, given = 0.0, 0
    for number, count in sorted(counts.items()):  # so that the sum stays the same
        total += count
        if (part := round(total) - given) > 0:
            rounded[number] = part
        given = round(total)
    return rounded
