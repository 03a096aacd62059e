"""Calls the delivery when something is due: the next wake-up is computed, and moved forward when a nearer one comes."""

import asyncio
import time
from collections.abc import Callable

import structlog

from latermq.broker.broker import Broker

_log = structlog.get_logger(__name__)
# One read can hold a thousand requests, some 20 ms of work: deliveries do not wait for its end, nor do they hold it up.
_BETWEEN_REQUESTS_S = 0.005


class TimerDriver:
    """Runs `broker.run_timers` on the loop, between other work."""

    def __init__(self, broker: Broker, *, on_failed: Callable[[BaseException], None]) -> None:
        self._broker = broker
        self._on_failed = on_failed
        self._loop = asyncio.get_running_loop()
        self._handle: asyncio.TimerHandle | None = None
        self._next_s = self._ran_s = 0.0
        self._told = ""
        self._soon_s = broker.config.timer.build_every / 1000
        self._schedule(0.0)

    def poke(self) -> None:
        """Something new waits: look at it soon."""
        if self._next_s - time.monotonic() > self._soon_s:
            self._schedule(self._soon_s)

    def run_if_late(self) -> None:
        """Called between the requests of one read: deliver what has fallen due since it began."""
        now_s = time.monotonic()
        if now_s >= self._next_s and now_s - self._ran_s >= _BETWEEN_REQUESTS_S:
            self._run()

    def run_now(self) -> None:
        """The time was set: look at once."""
        self._schedule(0.0)

    def _schedule(self, wait_s: float) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._next_s = time.monotonic() + wait_s
        self._handle = self._loop.call_later(wait_s, self._run)

    def _run(self) -> None:
        try:
            wait_ms = self._broker.run_timers()
        except BaseException as error:
            # A broker that goes on without deliveries looks well and is not; one that ends is started again.
            self._on_failed(error)
            return
        self._ran_s = time.monotonic()
        self._schedule(wait_ms / 1000)
        broker = self._broker
        trouble = broker.timers.guard.alarm or broker.timers.failure
        if trouble != self._told:
            self._told = trouble
            if trouble:
                _log.error("deliveries wait", reason=trouble)
            else:
                _log.info("deliveries go on")

    def stop(self) -> None:
        """Deliver nothing more."""
        if self._handle is not None:
            self._handle.cancel()
