"""The timer driver: deliveries come in time, also in the middle of a long read."""

import asyncio
import itertools
import time
from types import SimpleNamespace
from typing import cast

from latermq.broker.messages.long_polling import WaitingPulls
from latermq.server.broker.timer_driver import TimerDriver
from latermq.timer.service import TimerService

BUILD_EVERY_MS = 20


class Deliveries:
    """Stands in for the timer service and the waiting pulls, and records when it runs."""

    def __init__(self, wait_ms: int) -> None:
        self.wait_ms = wait_ms
        self.ran_s: list[float] = []
        self.guard = SimpleNamespace(alarm="")
        self.failure = ""

    def run(self) -> int:
        self.ran_s.append(time.monotonic())
        return self.wait_ms

    def wake(self) -> None:
        """No pull waits."""


def _runs_while_serving(wait_ms: int, *, runs: int, busy_s: float = 30.0) -> list[float]:
    """The times of deliveries during a read that keeps the loop busy until they ran this often, or for `busy_s`."""
    deliveries = Deliveries(wait_ms)

    async def main() -> None:
        driver = TimerDriver(
            cast(TimerService, deliveries),
            cast(WaitingPulls, deliveries),
            BUILD_EVERY_MS,
            on_failed=lambda error: None,
        )
        driver.start()
        await asyncio.sleep(0.001)
        deliveries.ran_s.clear()  # what the loop itself did before
        end_s = time.monotonic() + busy_s
        while len(deliveries.ran_s) < runs and time.monotonic() < end_s:
            driver.run_if_late()
        driver.stop()

    asyncio.run(main())
    return deliveries.ran_s


def test_what_falls_due_during_a_long_read_is_delivered_during_it() -> None:
    assert len(_runs_while_serving(wait_ms=10, runs=2)) == 2


def test_deliveries_that_never_end_leave_requests_their_share() -> None:
    ran_s = _runs_while_serving(wait_ms=0, runs=5)
    assert len(ran_s) == 5
    assert min(later - earlier for earlier, later in itertools.pairwise(ran_s)) >= 0.005


def test_nothing_runs_between_requests_before_it_is_due() -> None:
    assert len(_runs_while_serving(wait_ms=10_000, runs=1, busy_s=0.05)) == 0
