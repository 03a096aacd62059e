"""Exponential backoff: each failure doubles the pause before the next try, and a success resets it."""

from dataclasses import dataclass


@dataclass(slots=True)
class Backoff:
    """The number of consecutive failures, the last error, and the time of the next try."""

    first_s: float = 1.0
    longest_s: float = 30.0
    failures: int = 0
    error: str = ""
    not_before_s: float = 0.0

    def is_ready(self, now_s: float) -> bool:
        """Whether the pause is over."""
        return now_s >= self.not_before_s

    def met(self, error: str, now_s: float) -> None:
        """Record a failure."""
        pause_s = min(self.first_s * 2 ** min(self.failures, 30), self.longest_s)
        self.failures += 1
        self.error = error
        self.not_before_s = now_s + pause_s

    def over(self) -> None:
        """Reset after a success, or to retry without a pause."""
        self.failures, self.error, self.not_before_s = 0, "", 0.0
