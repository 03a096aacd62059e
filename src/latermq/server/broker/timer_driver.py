"""Scheduling of deliveries: computes the next wake-up, and moves it forward when an earlier timer arrives."""

import asyncio
import time
from collections.abc import Callable

import structlog

from latermq.broker.messages.long_polling import WaitingPulls
from latermq.timer.service import TimerService

_log = structlog.get_logger(__name__)
# One read can hold a thousand requests, about 20 ms of work. Deliveries run in between, but not after every request.
_BETWEEN_REQUESTS_S = 0.005


class TimerDriver:
    """Runs the timer service on the loop between other work, and then the pulls that wait for what it delivered."""

    def __init__(
        self,
        timers: TimerService,
        waiting_pulls: WaitingPulls,
        build_every_ms: int,
        *,
        on_failed: Callable[[BaseException], None],
    ) -> None:
        self._timers = timers
        self._waiting_pulls = waiting_pulls
        self._on_failed = on_failed
        self._loop = asyncio.get_running_loop()
        self._handle: asyncio.TimerHandle | None = None
        self._next_s = self._ran_s = 0.0
        self._logged_reason = ""
        self._soon_s = build_every_ms / 1000

    def start(self) -> None:
        """Begin to run."""
        self._schedule(0.0)

    def run_soon(self) -> None:
        """Run soon, since a new timer was scheduled."""
        if self._next_s - time.monotonic() > self._soon_s:
            self._schedule(self._soon_s)

    def run_if_late(self) -> None:
        """Deliver timers that became due since a read began. Called between the requests of that read."""
        now_s = time.monotonic()
        if now_s >= self._next_s and now_s - self._ran_s >= _BETWEEN_REQUESTS_S:
            self._run()

    def run_now(self) -> None:
        """Run at once, for example because the clock was set or a window has new rows."""
        self._schedule(0.0)

    def _schedule(self, wait_s: float) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._next_s = time.monotonic() + wait_s
        self._handle = self._loop.call_later(wait_s, self._run)

    def _run(self) -> None:
        try:
            wait_ms = self._timers.run()
            self._waiting_pulls.wake()
        except BaseException as error:
            # A broker that runs without deliveries looks healthy but is not. One that exits is restarted.
            self._on_failed(error)
            return
        self._ran_s = time.monotonic()
        self._schedule(wait_ms / 1000)
        reason = self._timers.guard.alarm or self._timers.failure
        if reason != self._logged_reason:
            self._logged_reason = reason
            if reason:
                _log.error("delivery stalled", reason=reason)
            else:
                _log.info("delivery resumed")

    def stop(self) -> None:
        """Stop deliveries."""
        if self._handle is not None:
            self._handle.cancel()
