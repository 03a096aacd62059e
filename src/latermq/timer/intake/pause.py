"""The pause after a step failed for a temporary reason, such as a full disk."""

from latermq.errors import StoreError

RETRY_MS = 1_000


class Pause:
    """The pause of one step."""

    def __init__(self) -> None:
        self.failure = ""
        self._until_ms = 0

    def is_on(self, now_ms: int) -> bool:
        """Whether the pause still lasts. A remaining time above the maximum means that the clock was set back."""
        return 0 < self._until_ms - now_ms <= RETRY_MS

    def begin(self, error: StoreError, now_ms: int) -> None:
        self.failure = error.remark
        self._until_ms = now_ms + RETRY_MS

    def end(self) -> None:
        """End the pause after a success."""
        self.failure, self._until_ms = "", 0
