"""Pauses between tries of something that fails: longer each time, and none once it works."""

from dataclasses import dataclass


@dataclass(slots=True)
class Backoff:
    """How often one thing has failed in a row, why, and when to try it again."""

    first_s: float = 1.0
    longest_s: float = 30.0
    failures: int = 0
    error: str = ""
    not_before_s: float = 0.0

    def is_ready(self, now_s: float) -> bool:
        """Whether it may be tried now."""
        return now_s >= self.not_before_s

    def met(self, error: str, now_s: float) -> None:
        """It failed."""
        pause_s = min(self.first_s * 2 ** min(self.failures, 30), self.longest_s)
        self.failures += 1
        self.error = error
        self.not_before_s = now_s + pause_s

    def over(self) -> None:
        """It worked, or is to be tried as if it had never failed."""
        self.failures, self.error, self.not_before_s = 0, "", 0.0
