"""Scheduling of transaction checks: computes the next wake-up, and moves it forward when a half is due earlier."""

import asyncio
import time
from collections.abc import Callable

import structlog

from latermq.broker.transactions.checks import SendCheck, TransactionChecks
from latermq.errors import LaterMQError

_log = structlog.get_logger(__name__)
_MAX_WAIT_S = 1.0  # the clock of messages may be set at any time
_AFTER_FAILURE_S = 1.0
_NEVER_S = float("inf")


class TransactionDriver:
    """Runs the checks on the loop between other work. Without open transactions it sleeps."""

    def __init__(
        self,
        checks: TransactionChecks,
        send: SendCheck,
        on_turn_end: Callable[[], None],
        on_failed: Callable[[BaseException], None],
    ) -> None:
        """`on_turn_end` does what is left to do after a run that stored messages."""
        self._checks = checks
        self._send = send
        self._on_turn_end = on_turn_end
        self._on_failed = on_failed
        self._loop = asyncio.get_running_loop()
        self._handle: asyncio.TimerHandle | None = None
        self._next_s = _NEVER_S
        self._failure = ""
        self._is_started = False

    def start(self) -> None:
        """Begin to run."""
        self._is_started = True
        self.plan()

    def plan(self) -> None:
        """Run at the time of the next check, since that may have become earlier."""
        wait_ms = self._checks.wait_ms() if self._is_started else None
        if wait_ms is not None:
            self._plan_in(min(wait_ms / 1000, _MAX_WAIT_S))

    def _plan_in(self, wait_s: float) -> None:
        next_s = time.monotonic() + wait_s
        if next_s < self._next_s:
            if self._handle is not None:
                self._handle.cancel()
            self._next_s = next_s
            self._handle = self._loop.call_later(wait_s, self._run)

    def _run(self) -> None:
        self._next_s, self._handle = _NEVER_S, None
        failure, wait_s = "", None
        try:
            wait_ms = self._checks.run(self._send)
            wait_s = None if wait_ms is None else min(wait_ms / 1000, _MAX_WAIT_S)
            self._on_turn_end()
        except LaterMQError as error:  # for example a full disk
            failure, wait_s = error.remark, _AFTER_FAILURE_S
        except BaseException as error:
            self._on_failed(error)
            return
        if wait_s is not None:
            self._plan_in(wait_s)
        if failure != self._failure:
            self._failure = failure
            if failure:
                _log.error("transaction checks stalled", reason=failure)
            else:
                _log.info("transaction checks resumed")

    def stop(self) -> None:
        """Stop asking."""
        self._is_started = False
        if self._handle is not None:
            self._handle.cancel()
