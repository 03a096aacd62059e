"""Waiting for something to become true, with a deadline and a sentence about what did not happen."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_PAUSE_S = 0.05


class TookTooLongError(AssertionError):
    """What was waited for did not happen in time."""


def wait_until(happened: Callable[[], T | None], timeout_s: float, what: str, pause_s: float = _PAUSE_S) -> T:
    """Return the first true answer of `happened`; raise, naming `what`, when there is none within the time."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        answer = happened()
        if answer:
            return answer
        if time.monotonic() > deadline_s:
            raise TookTooLongError(f"not within {timeout_s:g} s: {what}")
        time.sleep(pause_s)
