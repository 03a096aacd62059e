"""How many messages and timers came in and went out in each minute of the last hour, from counts of the brokers."""

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
_FIELD = "latermqTrafficByMinute"


class Throughput(msgspec.Struct):
    """Messages stored and read, timers scheduled and delivered, in the minute from `start_ms` on."""

    start: str
    start_ms: int
    messages_in: int
    messages_out: int
    timers_in: int
    timers_out: int


class ThroughputReport(msgspec.Struct):
    """The minutes of the last hour, in their order. The last one is not over.

    Brokers count from their start on. `silent` are those that did not say: they are offline, older, or RocketMQ's.
    """

    minutes: list[Throughput]
    silent: list[str]


class Minute(NamedTuple):
    """A minute as a broker reports it."""

    start_ms: int
    messages_in: int
    messages_out: int
    timers_in: int
    timers_out: int


class ThroughputApi:
    """Answers GET /api/v1/throughput."""

    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers

    @property
    def endpoints(self) -> list[Endpoint]:
        path, answers = "/api/v1/throughput", {HTTPStatus.OK: ThroughputReport}
        return [Endpoint("GET", path, self._answer, "Show messages and timers per minute", answers, "cluster")]

    async def _answer(self, call: Call) -> Answer:
        masters = await self._brokers.masters()
        found = await asyncio.gather(*map(self._minutes, masters.values()))
        silent = [name for name, minutes in zip(masters, found, strict=True) if minutes is None]
        return Answer(ThroughputReport(sum_of([minutes for minutes in found if minutes is not None]), silent))

    async def _minutes(self, address: str) -> list[Minute] | None:
        try:
            return read_minutes(await self._brokers.broker_runtime_info(address))
        except LaterMQError:
            return None


def read_minutes(info: Mapping[str, str]) -> list[Minute] | None:
    """Return the minutes that a broker reports, if it does."""
    try:
        return msgspec.json.decode(info[_FIELD], type=list[Minute])
    except (KeyError, ValueError):
        return None


def sum_of(brokers: Sequence[Sequence[Minute]]) -> list[Throughput]:
    """Add up the minutes of brokers."""
    by_start: dict[int, list[Minute]] = {}
    for minutes in brokers:
        for one in minutes:
            by_start.setdefault(one.start_ms, []).append(one)
    return [
        Throughput(
            time_text(start_ms),
            start_ms,
            sum(one.messages_in for one in parts),
            sum(one.messages_out for one in parts),
            sum(one.timers_in for one in parts),
            sum(one.timers_out for one in parts),
        )
        for start_ms, parts in sorted(by_start.items())[-MINUTES:]
    ]
