"""Removal of old segments: their queues are processed in slices, and the files are deleted off the loop."""

import asyncio
from collections.abc import Callable, Generator
from functools import partial

import structlog

from latermq.broker.timers.far_timers import FarTimers
from latermq.errors import LaterMQError
from latermq.store.retention import Removed, Retention
from latermq.timer.delivery.clock_guard import ClockGuard

_QUEUES_PER_SLICE = 64  # up to 4 ms

_log = structlog.get_logger(__name__)


class Retainer:
    """Removes old segments, one run at a time."""

    def __init__(
        self,
        retention: Retention,
        far: FarTimers,
        guard: ClockGuard,
        remove: Callable[[str], None],
        submit: Callable[[Callable[[], None]], None],
        *,
        release: Callable[[], None],
    ) -> None:
        """`submit` runs blocking work in order, off the loop. `remove` blocks.

        `release` copies messages in flight that would keep old segments.
        """
        self._retention = retention
        self._far = far
        self._guard = guard
        self._remove = remove
        self._submit = submit
        self._release = release
        self._steps: Generator[None, None, list[Removed]] | None = None
        self._next: asyncio.Handle | None = None

    def run(self) -> None:
        """Start to remove segments that may be removed, unless a run is in progress."""
        if self._steps is None and not self._guard.is_holding:  # after a clock jump everything looks old
            for action, step in (("sweep names", self._far.sweep_names), ("release", self._release)):
                try:
                    step()
                except LaterMQError as error:
                    _log.error("maintenance failed", action=action, reason=error.remark)  # the next run tries again
            self._steps = self._retention.steps()
            self._run_slice()

    def _run_slice(self) -> None:
        self._next = None
        steps, self._steps = self._steps, None
        assert steps is not None
        try:
            for _ in range(_QUEUES_PER_SLICE):
                next(steps)
        except StopIteration as stop:
            for removed in stop.value:
                _log.info("segment removed", start=removed.start, reason=removed.reason)
                self._submit(partial(self._remove, removed.path))
        except LaterMQError as error:
            _log.error("maintenance failed", action="retain", reason=error.remark)  # the next run tries again
        else:
            self._steps = steps
            self._next = asyncio.get_running_loop().call_soon(self._run_slice)

    def stop(self) -> None:
        """Stop the current run. A later run removes the rest."""
        if self._next is not None:
            self._next.cancel()
