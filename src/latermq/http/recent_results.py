"""Results that clients share for some seconds: those who ask at the same time wait for the same one."""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Any

from latermq.clock import Clock

MAX_RESULTS = 64  # above it the one that was used least recently is forgotten


class RecentResults:
    """A bounded cache. Failures are not kept."""

    def __init__(self, clock: Clock, max_age_s: float) -> None:
        self._clock = clock
        self._max_age_s = max_age_s
        self._known: OrderedDict[Hashable, tuple[float, asyncio.Task[Any]]] = OrderedDict()

    async def get(self, key: Hashable, ask: Callable[[], Awaitable[Any]]) -> Any:
        """Return the result for a key, or ask."""
        now_s = self._clock.monotonic_s()
        known = self._known.get(key)
        if known is None or now_s - known[0] >= self._max_age_s or _has_failed(known[1]):

            async def result() -> Any:
                return await ask()

            known = now_s, asyncio.get_running_loop().create_task(result())
            known[1].add_done_callback(_has_failed)  # all clients that wait may have gone
            self._known[key] = known
        self._known.move_to_end(key)
        if len(self._known) > MAX_RESULTS:
            self._known.popitem(last=False)
        return await asyncio.shield(known[1])


def _has_failed(task: asyncio.Task[Any]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)
