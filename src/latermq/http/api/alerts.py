"""Alerts: what fires now, and what ended lately."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from http import HTTPStatus

import msgspec

from latermq.clock import Clock
from latermq.errors import LaterMQError
from latermq.http.alerts.alert import Alert
from latermq.http.alerts.monitor import AlertMonitor
from latermq.http.endpoint import Answer, Call, Endpoint
from latermq.http.timer_request import time_text

_FRESH_MS = 2_000


class AlertReport(msgspec.Struct):
    """Firing alerts, the oldest first, and resolved ones, the newest first. `suppressed` were left out by a limit."""

    observed: str
    observed_ms: int
    is_watching: bool
    suppressed: int
    firing: list[Alert]
    resolved: list[Alert]


class AlertApi:
    """Answers GET /api/v1/alerts."""

    def __init__(self, monitor: AlertMonitor, collect: Callable[[], Awaitable[object]], clock: Clock) -> None:
        """`collect` asks the brokers, and passes what they say to the monitor."""
        self._monitor = monitor
        self._collect = collect
        self._clock = clock
        self._asking: asyncio.Task[None] | None = None

    @property
    def endpoints(self) -> list[Endpoint]:
        path, answers = "/api/v1/alerts", {HTTPStatus.OK: AlertReport}
        return [Endpoint("GET", path, self._answer, "Show alerts", answers, "cluster")]

    async def _answer(self, call: Call) -> Answer:
        monitor = self._monitor
        if not 0 <= self._clock.now_ms() - monitor.observed_ms <= _FRESH_MS:
            if self._asking is None or self._asking.done():
                self._asking = asyncio.create_task(self._ask())
            await asyncio.shield(self._asking)
        engine = monitor.engine
        report = AlertReport(
            time_text(monitor.observed_ms),
            monitor.observed_ms,
            monitor.must_watch,
            engine.suppressed,
            engine.firing(),
            engine.resolved(),
        )
        return Answer(report)

    async def _ask(self) -> None:
        """Ask the brokers once for all requests that wait. A failure is an alert itself."""
        with contextlib.suppress(LaterMQError):
            await self._collect()
