"""How many timers are pending in each span of time from now on, in spans that grow with their distance."""

import asyncio
from http import HTTPStatus

import msgspec

from latermq.client import Density
from latermq.http.brokers import Brokers
from latermq.http.endpoint import Answer, Call, Endpoint
from latermq.http.timer_request import time_text

_HOUR_MS, _DAY_MS = 3_600_000, 86_400_000
# Ten spans per decade, from a second to ten years.
EDGES_MS = tuple(round(1000 * 10 ** (step / 10)) for step in range(86))


class Bucket(msgspec.Struct):
    """Timers due from `from_ms` to `until_ms` after `now_ms`."""

    from_ms: int
    until_ms: int
    timers: int


class DensityReport(msgspec.Struct):
    """Pending timers by due time. `beyond` counts those due later than the spans of which the brokers have counts."""

    now: str
    now_ms: int
    pending: int
    beyond: int
    next_hour: int
    busiest_second: int
    buckets: list[Bucket]


class DensityApi:
    """Answers GET /api/v1/density."""

    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers

    @property
    def endpoints(self) -> list[Endpoint]:
        path, answers = "/api/v1/density", {HTTPStatus.OK: DensityReport}
        return [Endpoint("GET", path, self._answer, "Count pending timers by due time", answers, "timers")]

    async def _answer(self, call: Call) -> Answer:
        return Answer(await self.report())

    async def report(self) -> DensityReport:
        """Ask all brokers."""
        return density_report(*await self.ask())

    async def ask(self) -> tuple[Density, int]:
        """Return the counts of all brokers together, and the number of all pending timers."""
        return await asyncio.gather(self._brokers.timer_density(), self._brokers.count_timers())


def density_report(density: Density, pending: int) -> DensityReport:
    """Put the counts of brokers into spans that grow. A count whose span crosses an edge is divided by length."""
    counts = [0.0] * (len(EDGES_MS) + 1)
    bucket = 0
    for start_ms, span_ms, timers in _spans(density):
        while bucket < len(EDGES_MS) and EDGES_MS[bucket] <= start_ms:
            bucket += 1
        at, begin_ms, end_ms = bucket, start_ms, start_ms + span_ms
        while timers:
            edge_ms = EDGES_MS[at] if at < len(EDGES_MS) else end_ms
            part_ms = min(edge_ms, end_ms) - begin_ms
            counts[at] += timers * part_ms / span_ms
            if edge_ms >= end_ms:
                break
            begin_ms, at = edge_ms, at + 1
    near = sum(density.seconds) + sum(density.minutes) + sum(density.hours)
    edges = (0, *EDGES_MS)
    rounded = _rounded(counts[: len(EDGES_MS)])
    return DensityReport(
        now=time_text(density.start_ms),
        now_ms=density.start_ms,
        pending=pending,
        beyond=max(0, pending - near),
        next_hour=sum(density.seconds),
        busiest_second=max(density.seconds, default=0),
        buckets=[Bucket(edges[at], edges[at + 1], count) for at, count in enumerate(rounded)],
    )


def _spans(density: Density) -> list[tuple[int, int, int]]:
    """Return start, length and count of each span with timers, relative to the density's start."""
    found = []
    for counts, begin_ms, span_ms in (
        (density.seconds, 0, 1_000),
        (density.minutes, _HOUR_MS, 60_000),
        (density.hours, _DAY_MS, _HOUR_MS),
    ):
        found += [(begin_ms + number * span_ms, span_ms, count) for number, count in enumerate(counts) if count]
    return found


def _rounded(counts: list[float]) -> list[int]:
    """Round so that the sum stays the same: what one bucket loses, the next gets."""
    rounded, total, given = [], 0.0, 0
    for count in counts:
        total += count
        rounded.append(round(total) - given)
        given = round(total)
    return rounded
