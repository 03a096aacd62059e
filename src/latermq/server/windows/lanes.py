"""Lanes of work with separate threads. Work that hangs or fails in one lane is retried and does not stop the others."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any, TypeVar

import structlog

from latermq.errors import LaterMQError, StoreError
from latermq.redaction import redacted
from latermq.retry import Backoff
from latermq.server.windows.daemon_threads import DaemonThreads

_log = structlog.get_logger(__name__)
T = TypeVar("T")
Step = Callable[[], Coroutine[Any, Any, None]]


class Lanes:
    """Tasks on the loop, each identified by its lane and a number, and the threads of each lane."""

    def __init__(self, threads: Mapping[str, int], now_s: Callable[[], float]) -> None:
        """`threads` is the number of threads per lane. `now_s` is monotonic."""
        self._now_s = now_s
        self._pools = {lane: DaemonThreads(count, f"latermq-{lane}") for lane, count in threads.items()}
        self.tasks: dict[tuple[str, int], asyncio.Task[None]] = {}

    def start(self, lane: str, number: int, step: Step, backoff: Backoff[float]) -> asyncio.Task[None]:
        """Start a task. `backoff` records its failure."""
        key = (lane, number)
        task = asyncio.get_running_loop().create_task(self._guarded(lane, number, step, backoff))
        self.tasks[key] = task
        task.add_done_callback(lambda _: self.tasks.pop(key, None))
        return task

    async def _guarded(self, lane: str, number: int, step: Step, backoff: Backoff[float]) -> None:
        """Run a step and catch every error, so that none stops the broker."""
        try:
            await step()
        except Exception as error:
            self.record_failure(lane, number, backoff, error)

    def record_failure(self, lane: str, number: int, backoff: Backoff[float], error: Exception) -> None:
        """Record a failure, and log it if it differs from the previous one."""
        reason = error.message if isinstance(error, LaterMQError) else redacted(f"{type(error).__name__}: {error}")
        if reason != backoff.error:
            hint = getattr(error, "hint", "")  # the reason of a build has its own
            _log.error("window stalled", window=number, step=lane, reason=reason, **({"hint": hint} if hint else {}))
        backoff.record_failure(reason, self._now_s())

    def running(self, lane: str) -> set[int]:
        """The numbers of a lane's running tasks."""
        return {number for own, number in self.tasks if own == lane}

    async def off_loop(self, lane: str, work: Callable[[], T]) -> T:
        """Run blocking work on a thread of this lane."""
        return await asyncio.wrap_future(self._pools[lane].submit(work))

    async def read_off_loop(self, lane: str, limit_s: float, work: Callable[..., T], *arguments: Any) -> T:
        """Run work that only reads. If it takes longer than `limit_s`, raise StoreError and abandon its thread."""
        try:
            async with asyncio.timeout(limit_s):
                return await self.off_loop(lane, partial(work, *arguments))
        except TimeoutError:
            raise StoreError(f"reading took longer than {limit_s:g} s", hint="Check pipeline.timeline") from None

    async def stop(self, waited_for: frozenset[str]) -> None:
        """Cancel all tasks and wait for the threads of the given lanes. Threads of other lanes may hang."""
        tasks = list(self.tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for lane, pool in self._pools.items():
            pool.shutdown(wait=lane in waited_for)
