"""What would happen if many timers were added: how late they would be, and when the queues would be empty again."""

import asyncio
from http import HTTPStatus
from typing import Annotated

import msgspec

from latermq.config import Duration, HttpConfig
from latermq.errors import InvalidParameter
from latermq.http.api.forecast import ForecastApi
from latermq.http.api.lateness import LatenessApi
from latermq.http.brokers import Brokers
from latermq.http.endpoint import Answer, Call, Endpoint
from latermq.http.security.roles import Role
from latermq.http.timer_request import parse_bound_ms, time_text
from latermq.http.what_if.fluid_queue import Piece, Served, lateness_s, serve
from latermq.http.what_if.scenario import Addition, Rates, pieces_of

MAX_ADDED = 1_000_000_000
MAX_AHEAD_MS = 3_650 * 86_400_000
MAX_OVER_MS = 7 * 86_400_000
POINTS = 200  # of the queues over time
_BEFORE_MS = 600_000  # how long before the added timers the model begins
_FAR_SPAN_MS, _FAR_SPANS = 60_000, 4_000
_MOST_BASE_MS = 50.0  # of lateness without a queue; more is a queue

Rate = Annotated[float, msgspec.Meta(gt=0, le=1e9)]
Moment = Annotated[str, msgspec.Meta(max_length=60)]


class WhatIf(msgspec.Struct, forbid_unknown_fields=True):
    """Timers to add: `add` of them, due at `at`, or evenly `over` a span such as `10m` from then on.

    `consumers_per_second` is how many messages all consumers process, who have `backlog` messages to process before.
    `deliveries_per_second` is how many timers all brokers deliver; by default http.delivery_rate for each broker.
    """

    add: Annotated[int, msgspec.Meta(ge=1, le=MAX_ADDED)]
    at: Moment
    over: Moment = "0s"
    consumers_per_second: Rate | None = None
    deliveries_per_second: Rate | None = None
    backlog: Annotated[int, msgspec.Meta(ge=0, le=MAX_ADDED)] = 0


class Prediction(msgspec.Struct):
    """How late half, 99 % and all of the added timers are, the longest queue, and when it is empty again.

    `drained_ms` counts from the due time of the last added timer. It is missing if the queue is not empty at the end.
    """

    p50_ms: float
    p99_ms: float
    max_ms: float
    longest_queue: int
    drained_ms: int | None = None


class QueuePoint(msgspec.Struct):
    """Messages that wait to be delivered, and to be consumed, at a time."""

    at_ms: int
    undelivered: int
    unconsumed: int


class WhatIfReport(msgspec.Struct):
    """What would happen to the added timers: their delivery to the topic, and their consumption, if its rate is given.

    `others` are the timers that are due anyway from `at` until the last added one. `until_ms` is where the model ends.
    """

    at: str
    at_ms: int
    over_ms: int
    until_ms: int
    others: int
    deliveries_per_second: float
    delivery: Prediction
    consumption: Prediction | None
    points: list[QueuePoint]
    far_missing: str = ""


class WhatIfApi:
    """Answers POST /api/v1/what-if, which changes nothing."""

    def __init__(self, brokers: Brokers, forecast: ForecastApi, lateness: LatenessApi, config: HttpConfig) -> None:
        self._brokers = brokers
        self._forecast = forecast
        self._lateness = lateness
        self._delivery_rate = config.delivery_rate

    @property
    def endpoints(self) -> list[Endpoint]:
        return [
            Endpoint(
                "POST",
                "/api/v1/what-if",
                self._answer,
                "Predict how late timers would be",
                {HTTPStatus.OK: WhatIfReport},
                "timers",
                body=WhatIf,
                role=Role.VIEWER,
            )
        ]

    async def _answer(self, call: Call) -> Answer:
        asked: WhatIf = call.body
        try:
            over_ms = int(Duration.parse(asked.over))
        except (ValueError, OverflowError):
            raise InvalidParameter(f"the span {asked.over[:40]!r} is not valid", hint="Write it like 10m") from None
        density, _ = await self._forecast.near.ask()
        now_ms = density.start_ms
        at_ms = max(now_ms, parse_bound_ms(asked.at))
        if over_ms > MAX_OVER_MS or at_ms > now_ms + MAX_AHEAD_MS:
            raise InvalidParameter("at must be within ten years, and over at most 7d", hint="Ask for less")
        begin_ms = max(now_ms, at_ms - _BEFORE_MS)
        far_from_ms = begin_ms // _FAR_SPAN_MS * _FAR_SPAN_MS
        far, missing = await self._forecast.far_counts(far_from_ms, _FAR_SPAN_MS, max(_FAR_SPANS, over_ms // 30_000))
        brokers = await self._brokers.masters()
        base = (await self._lateness.report()).hour
        rate = asked.deliveries_per_second or float(self._delivery_rate * max(1, len(brokers)))
        added = Addition(asked.add, at_ms / 1000, over_ms / 1000)
        rates = Rates(density, far_from_ms, _FAR_SPAN_MS, far)

        def model() -> WhatIfReport:
            pieces = pieces_of(added, begin_ms / 1000, rates.at)
            end_s = added.at_s + added.over_s
            delivered = serve(pieces, rate)
            base_ms = (min(base.p50_ms, _MOST_BASE_MS), min(base.p99_ms, _MOST_BASE_MS))
            consumed = None
            if asked.consumers_per_second is not None:
                consumed = serve(delivered.pieces, asked.consumers_per_second, asked.backlog)
            others = sum(
                one.messages - one.marked for one in pieces if added.at_s <= one.begin_s and one.end_s <= end_s
            )
            return WhatIfReport(
                time_text(at_ms),
                at_ms,
                over_ms,
                int(pieces[-1].end_s * 1000),
                round(others),
                rate,
                _prediction(delivered, base_ms, end_s),
                _prediction(consumed, base_ms, end_s) if consumed is not None else None,
                _points(pieces, delivered.pieces, consumed.pieces if consumed is not None else []),
                missing,
            )

        return Answer(await asyncio.to_thread(model))


def _prediction(served: Served, base_ms: tuple[float, float], end_s: float) -> Prediction:
    p50_s, p99_s, max_s = lateness_s(served.pieces, (0.5, 0.99, 1.0))
    drained_ms = None if served.drained_s is None else max(0, round((served.drained_s - end_s) * 1000))
    return Prediction(
        round(p50_s * 1000 + base_ms[0], 1),
        round(p99_s * 1000 + base_ms[1], 1),
        round(max_s * 1000 + base_ms[1], 1),
        round(served.longest),
        drained_ms,
    )


def _points(due: list[Piece], delivered: list[Piece], consumed: list[Piece]) -> list[QueuePoint]:
    """Return the queues at some times, up to when the last of them is empty."""
    last = consumed or delivered
    busy = max((number for number, one in enumerate(last) if one.last_late_s > 0 or one.marked), default=0)
    end_s, begin_s = last[busy].end_s, due[0].begin_s
    points = []
    for number in range(POINTS + 1):
        at_s = begin_s + (end_s - begin_s) * number / POINTS
        sums = [_until(pieces, at_s) for pieces in (due, delivered, consumed or delivered)]
        points.append(QueuePoint(int(at_s * 1000), max(0, round(sums[0] - sums[1])), max(0, round(sums[1] - sums[2]))))
    return points


def _until(pieces: list[Piece], at_s: float) -> float:
    """Return how many messages have come by a time."""
    total = 0.0
    for piece in pieces:
        if piece.begin_s >= at_s and piece.end_s > at_s:
            break
        span_s = piece.end_s - piece.begin_s
        total += piece.messages * (min(1.0, (at_s - piece.begin_s) / span_s) if span_s > 0 else 1.0)
    return total
