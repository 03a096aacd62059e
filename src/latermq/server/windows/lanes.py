"""Work in lanes with threads of their own: what hangs or fails in one stops no other, and is tried again."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any, TypeVar

import structlog

from latermq.errors import LaterMQError, StoreError
from latermq.redaction import redacted
from latermq.server.backoff import Backoff
from latermq.server.windows.daemon_threads import DaemonThreads

_log = structlog.get_logger(__name__)
T = TypeVar("T")
Step = Callable[[], Coroutine[Any, Any, None]]


class Lanes:
    """Tasks on the loop, each named by its lane and a number, and threads beside it."""

    def __init__(self, threads: Mapping[str, int], now_s: Callable[[], float]) -> None:
        """`threads` says how many each lane has; `now_s` only grows."""
        self._now_s = now_s
        self._pools = {lane: DaemonThreads(count, f"latermq-{lane}") for lane, count in threads.items()}
        self.tasks: dict[tuple[str, int], asyncio.Task[None]] = {}

    def start(self, lane: str, number: int, step: Step, backoff: Backoff) -> asyncio.Task[None]:
        """Do this; where it fails, `backoff` knows."""
        key = (lane, number)
        task = asyncio.get_running_loop().create_task(self._guarded(lane, number, step, backoff))
        self.tasks[key] = task
        task.add_done_callback(lambda _: self.tasks.pop(key, None))
        return task

    async def _guarded(self, lane: str, number: int, step: Step, backoff: Backoff) -> None:
        """Nothing that fails here may stop the broker."""
        try:
            await step()
        except Exception as error:
            self.met(lane, number, backoff, error)

    def met(self, lane: str, number: int, backoff: Backoff, error: Exception) -> None:
        """Something failed: it is logged where it is new."""
        told = error.message if isinstance(error, LaterMQError) else redacted(f"{type(error).__name__}: {error}")
        if told != backoff.error:
            _log.error("window stalled", window=number, step=lane, reason=told, hint=getattr(error, "hint", ""))
        backoff.met(told, self._now_s())

    def under_way(self, lane: str) -> set[int]:
        """The numbers of a lane's tasks."""
        return {number for own, number in self.tasks if own == lane}

    async def beside(self, lane: str, work: Callable[[], T]) -> T:
        """Do something that blocks on a thread of this lane."""
        return await asyncio.wrap_future(self._pools[lane].submit(work))

    async def read_beside(self, lane: str, limit_s: float, work: Callable[..., T], *arguments: Any) -> T:
        """The same for what only reads: where it hangs for longer than this, its thread is left behind."""
        try:
            async with asyncio.timeout(limit_s):
                return await self.beside(lane, partial(work, *arguments))
        except TimeoutError:
            raise StoreError(f"reading took longer than {limit_s:g} s", hint="Check pipeline.timeline") from None

    async def stop(self, waited_for: frozenset[str]) -> None:
        """End all tasks. Threads of other lanes than these may hang, and are not waited for."""
        tasks = list(self.tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for lane, pool in self._pools.items():
            pool.shutdown(wait=lane in waited_for)
