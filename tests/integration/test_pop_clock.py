"""A broker process whose wall clock is set while a message is in flight: it comes back after its invisible time."""

import asyncio
import time
from pathlib import Path

import pytest

from tests.integration.brokers import send
from tests.integration.pop_client import PopClient, Popped
from tests.integration.raw_client import connect
from tests.support.fifo_clock import FifoClock
from tests.support.serving import serving

INVISIBLE_MS, HOUR_MS = 60_000, 3_600_000
DEADLINE_S = 20.0


@pytest.mark.parametrize("step_ms", [-2 * HOUR_MS, HOUR_MS // 2])
def test_a_step_of_the_clock_changes_no_invisible_time(tmp_path: Path, step_ms: int) -> None:
    with FifoClock(tmp_path / "clock") as clock, serving(tmp_path / "data", *clock.settings) as server:
        asyncio.run(scenario(server.port, clock, step_ms))


async def scenario(port: int, clock: FifoClock, step_ms: int) -> None:
    async with connect(port) as raw:
        client = PopClient(raw)
        now_ms = time.time_ns() // 1_000_000 + 60_000  # the broker's clock stands still, and began in the past
        clock.advance_to(now_ms)
        await send(raw, "orders", b"one")
        [first] = await client.pop("orders", invisibleTime=str(INVISIBLE_MS))
        clock.step(step_ms)
        assert await client.pop("orders") == []
        clock.advance_to(now_ms + step_ms + INVISIBLE_MS - 1)
        assert await client.pop("orders") == [], "its time is not over"
        clock.advance_to(now_ms + step_ms + INVISIBLE_MS + 1)
        [again] = await popped(client)
        assert (again.body, again.message.reconsume_times) == (b"one", 1)
        assert await client.ack(first) == "stale"
        assert await client.ack(again) == "done"


async def popped(client: PopClient) -> list[Popped]:
    """Pop until there is a message: the broker copies it for its next attempt after the clock has moved."""
    deadline_s = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline_s:
        found = await client.pop("orders")
        if found:
            return found
    raise AssertionError("it did not come back")
