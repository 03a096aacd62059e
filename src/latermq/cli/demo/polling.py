"""Waits for what other processes do."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

POLL_S = 0.1

T = TypeVar("T")


async def until(call: Callable[[], Awaitable[T]], poll_s: float = POLL_S) -> T:
    """Repeat a call until it returns something true. The deadline of the whole demo ends the wait."""
    while True:
        if found := await call():
            return found
        await asyncio.sleep(poll_s)
