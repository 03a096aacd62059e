"""The console process: its socket, its connections to brokers and its parts, from start to clean stop."""

import asyncio
import contextlib
import signal
from collections.abc import Callable

import uvloop

from latermq.clock import Clock, SystemClock
from latermq.config import Config
from latermq.http.api.health import HealthApi
from latermq.http.api.timer_batches import TimerBatchApi
from latermq.http.api.timer_list import TimerListApi
from latermq.http.api.timers import TimerApi
from latermq.http.app import ConsoleApp
from latermq.http.brokers import open_brokers
from latermq.http.endpoint import Endpoint, routes_of
from latermq.http.listener import HttpListener
from latermq.http.metrics import ConsoleMetrics
from latermq.http.openapi import OpenApi
from latermq.http.scheduler import TimerScheduler


class ConsoleProcess:
    """A console with its sockets. Call `start`, then `stop`, once each."""

    def __init__(self, config: Config, clock: Clock) -> None:
        self._config = config
        self.brokers = open_brokers(config)
        self.metrics = ConsoleMetrics(config.http, lambda: self.address, self.statistics)
        self.endpoints = self._endpoints()
        self.app = ConsoleApp(config.http, clock, routes_of(self.endpoints))
        self.listener = HttpListener(self.app.asgi, config.http, self._end_streams)

    @property
    def address(self) -> str:
        """Where it listens."""
        host = self._config.http.host
        return f"[{host}]:{self.listener.port}" if ":" in host else f"{host}:{self.listener.port}"

    def statistics(self) -> dict[str, int]:
        """How much of each limit is used, and what was refused."""
        in_progress, rates = self.app.in_progress, self.app.rates
        return {
            "connections": self.listener.connections,
            "requests": in_progress.count,
            "streams": 0,
            "held_bytes": in_progress.held_bytes,
            "timed_out": in_progress.timed_out,
            "rate_clients": len(rates),
            "refused_by_rate": rates.refused,
            "duration_ms": round(self.app.access_log.duration_ms),
            **{f"answers_{status}": count for status, count in self.app.access_log.answers.items()},
        }

    async def start(self) -> None:
        """Accept requests. Brokers are connected when they are needed."""
        await self.brokers.start()
        await self.listener.start()

    async def stop(self) -> None:
        """Stop accepting, end event streams, finish the requests in flight, and disconnect from the brokers."""
        await self.listener.stop()
        await self.brokers.close()

    def _endpoints(self) -> list[Endpoint]:
        """The route table."""
        brokers, http = self.brokers, self._config.http
        scheduler = TimerScheduler(brokers)
        rows = [
            *HealthApi(brokers).endpoints,
            *self.metrics.endpoints,
            *TimerApi(brokers, scheduler).endpoints,
            *TimerBatchApi(scheduler, http).endpoints,
            *TimerListApi(brokers, http).endpoints,
        ]
        return [*rows, *OpenApi(rows).endpoints]

    def _end_streams(self) -> None:
        """End the answers that do not end by themselves."""


def run_console(config: Config, ready: Callable[[str], None]) -> int:
    """Run a console until SIGTERM or SIGINT. `ready` receives its address once it accepts connections."""

    async def run() -> None:
        process = ConsoleProcess(config, SystemClock())
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        try:
            await process.start()
            ready(f"console {process.address}")
            await stop.wait()
        finally:
            await process.stop()

    with contextlib.suppress(KeyboardInterrupt), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())
    return 0
