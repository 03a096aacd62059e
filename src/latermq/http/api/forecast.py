"""How many timers fall due in each span of time to come, near and far, and the heaviest seconds."""

import asyncio
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Annotated, Any, Literal

import msgspec

from latermq.clock import Clock
from latermq.errors import InvalidParameter
from latermq.http.api.near_forecast import NearForecast
from latermq.http.brokers import Brokers
from latermq.http.endpoint import Answer, Call, Endpoint
from latermq.http.far_timers import FarTimers
from latermq.http.recent_results import RecentResults
from latermq.http.timeline_process import TimelineUnavailable
from latermq.http.timer_request import MAX_TIME_MS, parse_bound_ms, time_text

MAX_SPANS = 4_000  # ten years by the day, or 166 days by the hour
MAX_BUSIEST = 100
FAR_AGE_S = 60.0  # of counts from the timeline, which changes with each ingest
_SPAN_MS = {"minute": 60_000, "hour": 3_600_000, "day": 86_400_000}
_DEFAULT_SPANS = {"minute": 1_440, "hour": 744, "day": 3_650}
_BUSIEST_AHEAD_MS = 3_650 * 86_400_000


class ForecastQuery(msgspec.Struct, forbid_unknown_fields=True, rename={"from_": "from"}):
    """Spans that begin at `from` (by default now, rounded down to a span of UTC) and end at `to` at the latest.

    `busiest` is how many of the heaviest seconds are searched for.
    """

    from_: Annotated[str, msgspec.Meta(max_length=60)] = ""
    to: Annotated[str, msgspec.Meta(max_length=60)] = ""
    per: Literal["minute", "hour", "day"] = "hour"
    busiest: Annotated[int, msgspec.Meta(ge=0, le=MAX_BUSIEST)] = 10


class ForecastSpan(msgspec.Struct):
    """Timers due from `at_ms` on: those of brokers, and those on the timeline."""

    at: str
    at_ms: int
    near: int
    far: int


class Forecast(msgspec.Struct):
    """Pending timers by due time, in spans of `span_ms`; spans without timers are left out.

    `near` and `far` are the sums. Brokers know the due times of two days ahead by the second, the minute and then the
    hour, so counts of shorter spans are even shares. `pending` counts all pending timers: also those outside of the
    spans, those that a broker keeps for more than two days, and those that the timeline gets with the next ingest.
    `busiest` has the heaviest seconds of the spans. `far_missing` says why there are no far timers, if there may be.
    """

    now: str
    now_ms: int
    from_ms: int
    span_ms: int
    near: int
    far: int
    pending: int
    spans: list[ForecastSpan]
    busiest: list[ForecastSpan]
    far_missing: str = ""


class ForecastApi:
    """Answers GET /api/v1/forecast."""

    def __init__(self, brokers: Brokers, far: FarTimers, clock: Clock) -> None:
        self._brokers = brokers
        self._far = far
        self.near = NearForecast(brokers)
        self._recent = RecentResults(clock, FAR_AGE_S)

    @property
    def endpoints(self) -> list[Endpoint]:
        path, answers = "/api/v1/forecast", {HTTPStatus.OK: Forecast}
        summary = "Count pending timers by due time, near and far"
        return [Endpoint("GET", path, self._answer, summary, answers, "timers", query=ForecastQuery)]

    async def _answer(self, call: Call) -> Answer:
        query: ForecastQuery = call.query
        span_ms = _SPAN_MS[query.per]
        density, pending = await self.near.ask()
        now_ms = density.start_ms
        from_ms = parse_bound_ms(query.from_) if query.from_ else now_ms // span_ms * span_ms
        to_ms = parse_bound_ms(query.to) if query.to else from_ms + _DEFAULT_SPANS[query.per] * span_ms
        count = -(-(to_ms - from_ms) // span_ms)
        if not 0 < count <= MAX_SPANS or to_ms > MAX_TIME_MS:
            raise InvalidParameter(
                f"from and to are {count} spans of one {query.per} apart, and may be 1–{MAX_SPANS} apart",
                hint="Set to, or count per day",
            )
        near = await self.near.between(density, from_ms, to_ms, span_ms)
        far, missing = await self.far_counts(from_ms, span_ms, count)
        spans = [
            ForecastSpan(time_text(at_ms), at_ms, near.get(number, 0), far.get(number, 0))
            for number in sorted({*near, *far})
            for at_ms in [from_ms + number * span_ms]
        ]
        busiest = await self._busiest(max(from_ms, now_ms), to_ms, query.busiest) if query.busiest else []
        forecast = Forecast(
            time_text(now_ms),
            now_ms,
            from_ms,
            span_ms,
            sum(near.values()),
            sum(far.values()),
            pending,
            spans,
            busiest,
            missing,
        )
        return Answer(forecast)

    async def far_counts(self, from_ms: int, span_ms: int, count: int) -> tuple[dict[int, int], str]:
        """Return how many far timers are due in each span, by its number, and why they are missing."""
        holders = await self._brokers.masters()

        async def ask() -> dict[int, int]:
            return await self._far.counts(holders, from_ms, span_ms, count)

        found: dict[int, int]
        found, missing = await self._recently(("counts", from_ms, span_ms, count, *holders.items()), ask, {})
        return found, missing

    async def _busiest(self, from_ms: int, until_ms: int, limit: int) -> list[ForecastSpan]:
        """Return the heaviest seconds. Where both kinds share one, only the kind that is among the heaviest counts."""
        holders = await self._brokers.masters()
        minute_ms = from_ms // 60_000 * 60_000  # so that visitors within a minute share the answer
        until_ms = min(until_ms, minute_ms + _BUSIEST_AHEAD_MS)

        async def ask() -> list[tuple[int, int]]:
            return await self._far.busiest_seconds(holders, minute_ms, until_ms, MAX_BUSIEST)

        key = ("busiest", minute_ms, until_ms // 60_000, *holders.items())
        (far, _), near = await asyncio.gather(
            self._recently(key, ask, []), self.near.busiest_seconds(from_ms, until_ms, limit)
        )
        timers: dict[int, list[int]] = {}
        for kind, seconds in enumerate((near, far)):
            for at_ms, count in seconds:
                if at_ms + 1_000 > from_ms:
                    timers.setdefault(at_ms, [0, 0])[kind] += count
        heaviest = sorted(timers.items(), key=lambda one: (-sum(one[1]), one[0]))[:limit]
        return [ForecastSpan(time_text(at_ms), at_ms, near_, far_) for at_ms, (near_, far_) in heaviest]

    async def _recently(self, key: tuple[Any, ...], ask: Callable[[], Awaitable[Any]], nothing: Any) -> tuple[Any, str]:
        try:
            return await self._recent.get(key, ask), ""
        except TimelineUnavailable as error:
            return nothing, f"{error.message}. {error.hint}"
