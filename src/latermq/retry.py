"""Exponential back-off between the tries of an operation that fails, for every layer.

This module reads no clock and never sleeps: the caller passes the time in, and waits in its own way. Each object uses
one unit of time, seconds or milliseconds, which the caller chooses. Consumer groups retry messages after delays of
another kind, which operators list: see group/retry_backoff.py.
"""

from typing import Generic, TypeVar

Time = TypeVar("Time", int, float)

_MAX_DOUBLINGS = 30  # so that the power stays small, however often an operation fails


def pause_after(failures: int, first: Time, longest: Time) -> Time:
    """Return the pause after one more failure: `first`, doubled for each of the earlier `failures`, up to `longest`."""
    pause: Time = min(first * 2 ** min(failures, _MAX_DOUBLINGS), longest)
    return pause


class Backoff(Generic[Time]):
    """The back-off of one operation. A caller that waits at once needs only `next_pause` and `reset`."""

    __slots__ = ("error", "failures", "first", "longest", "not_before")

    def __init__(self, first: Time, longest: Time) -> None:
        self.first: Time = first
        self.longest: Time = longest
        self.failures = 0  # consecutive
        self.error = ""  # the last one
        self.not_before: Time = 0

    def next_pause(self) -> Time:
        """Count a failure, and return the pause before the next try."""
        pause: Time = pause_after(self.failures, self.first, self.longest)
        self.failures += 1
        return pause

    def record_failure(self, error: str, now: Time) -> None:
        """Count a failure, and begin the pause now."""
        self.error = error
        self.not_before = now + self.next_pause()

    def wait(self, now: Time) -> Time:
        """Return how long until the next try; zero or negative if it is due.

        A remaining pause above the longest one began before the clock was set back.
        """
        return self.not_before - now if self._began_by(now) else 0

    def is_ready(self, now: Time) -> bool:
        """Whether the pause is over."""
        return now >= self.not_before or not self._began_by(now)

    def _began_by(self, now: Time) -> bool:
        # Compares sums as `record_failure` computes them: the difference of two floats can exceed the longest pause.
        return self.not_before <= now + self.longest

    def reset(self) -> None:
        """Reset after a success, or to retry without a pause."""
        self.failures, self.error, self.not_before = 0, "", 0
