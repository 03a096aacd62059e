"""How late deliveries were in each minute of the last hour, from the counts that brokers keep."""

import asyncio
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import NamedTuple

import msgspec

from latermq.errors import LaterMQError
from latermq.http.brokers import Brokers
from latermq.http.endpoint import Answer, Call, Endpoint
from latermq.http.timer_request import time_text

MINUTES = 60
MINUTE_MS = 60_000
_FIELD = "latermqLatenessByMinute"


class Punctuality(msgspec.Struct):
    """Deliveries that began in a span, and how late they were. Without deliveries all figures are 0."""

    start: str
    start_ms: int
    deliveries: int
    p50_ms: float
    p99_ms: float
    max_ms: int


class LatenessReport(msgspec.Struct):
    """The last hour, and its minutes with deliveries in their order. The last minute may not be over.

    Percentiles are interpolated between the bounds of the brokers' counts, 1 ms to 1 minute. `silent` are the brokers
    that did not say: they are offline, older, or RocketMQ's.
    """

    hour: Punctuality
    minutes: list[Punctuality]
    silent: list[str]


class _Minute(NamedTuple):
    start_ms: int
    upto: list[int]
    max_ms: int


class _Minutes(NamedTuple):
    bounds_ms: list[int]
    minutes: list[_Minute]


class LatenessApi:
    """Answers GET /api/v1/lateness."""

    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers

    @property
    def endpoints(self) -> list[Endpoint]:
        path, answers = "/api/v1/lateness", {HTTPStatus.OK: LatenessReport}
        return [Endpoint("GET", path, self._answer, "Show how late deliveries were", answers, "timers")]

    async def _answer(self, call: Call) -> Answer:
        return Answer(await self.report())

    async def report(self) -> LatenessReport:
        """Ask all brokers."""
        masters = await self._brokers.masters()
        infos = await asyncio.gather(*map(self._minutes, masters.values()))
        silent = [name for name, info in zip(masters, infos, strict=True) if info is None]
        return lateness_report([info for info in infos if info is not None], silent)

    async def _minutes(self, address: str) -> _Minutes | None:
        try:
            return read_minutes(await self._brokers.broker_runtime_info(address))
        except LaterMQError:
            return None


def read_minutes(info: Mapping[str, str]) -> _Minutes | None:
    """Return the minutes that a broker reports, if it does."""
    try:
        found = msgspec.json.decode(info[_FIELD], type=_Minutes)
    except (KeyError, ValueError):
        return None
    width = len(found.bounds_ms) + 1
    return found if width > 1 and all(len(one.upto) == width for one in found.minutes) else None


def lateness_report(found: Sequence[_Minutes], silent: list[str]) -> LatenessReport:
    """Add up the minutes of brokers. One with other bounds than the first is of another version, and left out."""
    bounds_ms = found[0].bounds_ms if found else [1]
    by_start: dict[int, list[_Minute]] = {}
    for one in found:
        for minute in one.minutes if one.bounds_ms == bounds_ms else ():
            by_start.setdefault(minute.start_ms, []).append(minute)
    minutes = [_sum(bounds_ms, start_ms, parts) for start_ms, parts in sorted(by_start.items())]
    everything = [part for parts in by_start.values() for part in parts]
    return LatenessReport(_sum(bounds_ms, min(by_start, default=0), everything), minutes[-MINUTES:], silent)


def _sum(bounds_ms: list[int], start_ms: int, parts: Sequence[_Minute]) -> Punctuality:
    upto = [sum(counts) for counts in zip(*(part.upto for part in parts), strict=True)]
    max_ms = max((part.max_ms for part in parts), default=0)
    if not upto or not upto[-1]:
        return Punctuality(time_text(start_ms), start_ms, 0, 0.0, 0.0, 0)
    p50_ms, p99_ms = (_percentile(bounds_ms, upto, share, max_ms) for share in (0.5, 0.99))
    return Punctuality(time_text(start_ms), start_ms, upto[-1], p50_ms, p99_ms, max_ms)


def _percentile(bounds_ms: list[int], upto: list[int], share: float, max_ms: int) -> float:
    """Where a share of the counts lies, interpolated between two bounds; at most the latest."""
    rank = share * upto[-1]
    low_ms, below = 0, 0
    for bound_ms, count in zip([*bounds_ms, max(max_ms, bounds_ms[-1])], upto, strict=True):
        if count >= rank:
            inside = low_ms + (bound_ms - low_ms) * (rank - below) / max(count - below, 1)
            return round(min(inside, max_ms), 2)
        low_ms, below = bound_ms, count
    return float(max_ms)
