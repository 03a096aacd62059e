"""Scheduling of POP consumption: the ends of invisible times and of waiting pops."""

import asyncio
import time
from collections.abc import Callable

import structlog

from latermq.broker.messages.long_polling import WaitingPulls
from latermq.broker.pop.expiry import PopExpiry
from latermq.broker.pop.waiting_pops import WaitingPops
from latermq.clock import Clock
from latermq.errors import LaterMQError
from latermq.group.pop.operations import PopOperations
from latermq.retry import Backoff
from latermq.server.handlers.async_replies import WhenDone
from latermq.server.handlers.pop_replies import PopReplies

_log = structlog.get_logger(__name__)
_MIN_WAIT_S = 0.002  # between two runs: other work has its turn
_FIRST_PAUSE_S, _MAX_PAUSE_S = 0.5, 30.0  # between saves of topics that fail


class PopDriver:
    """Runs the expiry on the loop when the next message becomes visible or the next pop must be answered."""

    def __init__(
        self,
        expiry: PopExpiry,
        operations: PopOperations,
        waiting_pops: WaitingPops,
        waiting_pulls: WaitingPulls,
        replies: PopReplies,
        clock: Clock,
        client_clock: Clock,
        save_topics: Callable[[WhenDone], None],
        *,
        on_failed: Callable[[BaseException], None],
    ) -> None:
        """`save_topics` saves topics off the loop: a message is copied only to a saved topic."""
        self._expiry = expiry
        self._operations = operations
        self._waiting_pops = waiting_pops
        self._waiting_pulls = waiting_pulls
        self._replies = replies
        self._clock = clock
        self._client_clock = client_clock
        self._save_topics = save_topics
        self._on_failed = on_failed
        self._loop = asyncio.get_running_loop()
        self._handle: asyncio.TimerHandle | None = None
        self._next_s = 0.0
        self._seen_ends: tuple[int | None, int | None] | None = None  # in the last `reschedule` since the last run
        self._is_saving = False
        self._saves = Backoff(_FIRST_PAUSE_S, _MAX_PAUSE_S)
        self._logged_reason = ""
        self._is_failing = False

    def start(self) -> None:
        """Begin to run."""
        self._schedule(0.0)

    def reschedule(self) -> None:
        """Run earlier if something ends earlier. Called after each turn with operations."""
        if self._handle is None or self._is_failing:
            return
        ends = self._operations.next_due_ms(), self._waiting_pops.next_deadline_ms()
        if ends == self._seen_ends and not self._expiry.is_urgent:
            return  # most turns: their pops end after others
        self._seen_ends = ends
        wait_s = self._wait_s()
        if time.monotonic() + wait_s < self._next_s - _MIN_WAIT_S:
            self._schedule(wait_s)

    def run_now(self) -> None:
        """Run at once, for example because the clock was set."""
        self._schedule(0.0)

    def _wait_s(self) -> float:
        """Return how long nothing ends."""
        if self._expiry.is_urgent:
            return 0.0
        waits = [1_000]
        visible_ms, deadline_ms = self._operations.next_due_ms(), self._waiting_pops.next_deadline_ms()
        if visible_ms is not None:
            waits.append(visible_ms - self._clock.now_ms())
        if deadline_ms is not None:
            waits.append(deadline_ms - int(self._client_clock.monotonic_s() * 1000))
        return max(0, min(waits)) / 1000

    def _schedule(self, wait_s: float) -> None:
        if self._handle is not None:
            self._handle.cancel()
        wait_s = max(wait_s, _MIN_WAIT_S)
        self._next_s = time.monotonic() + wait_s
        self._handle = self._loop.call_later(wait_s, self._run)

    def _run(self) -> None:
        self._seen_ends = None
        try:
            wait_s = self._expiry.run() / 1000
            self._waiting_pops.expire(self._client_clock.monotonic_s() * 1000)
            self._waiting_pulls.wake()
            self._replies.settle()
        except BaseException as error:
            # Messages would stay invisible. A broker that exits is restarted.
            self._on_failed(error)
            return
        # After a failure the messages stay due: try again after a pause, in which no new ones are looked for.
        self._is_failing = bool(self._expiry.failure)
        self._schedule(wait_s if self._is_failing else min(wait_s, self._wait_s()))
        reason = self._saves.error if self._expiry.needs_save else self._expiry.failure
        if reason != self._logged_reason:
            self._logged_reason = reason
            if reason:
                _log.error("retries of popped messages stalled", reason=reason)
            else:
                _log.info("retries of popped messages resumed")
        if self._expiry.needs_save and not self._is_saving and self._saves.is_ready(self._client_clock.monotonic_s()):
            self._is_saving = True
            self._save_topics(self._on_saved)

    def _on_saved(self, error: LaterMQError | None) -> None:
        self._is_saving = False
        if error is not None:  # the next run after the pause tries again
            self._saves.record_failure(error.remark, self._client_clock.monotonic_s())
            return
        self._saves.reset()
        self._expiry.needs_save = False
        if self._handle is not None:
            self._schedule(0.0)

    def stop(self) -> None:
        """Stop."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
