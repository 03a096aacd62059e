"""A step that failed for a reason that can pass, such as a full disk, is tried again after a pause."""

from latermq.errors import StoreError

RETRY_MS = 1_000


class Pause:
    """Of one step."""

    def __init__(self) -> None:
        self.failure = ""
        self._until_ms = 0

    def is_on(self, now_ms: int) -> bool:
        """Whether to wait still. A pause that is longer than it can be was begun before the clock was set back."""
        return 0 < self._until_ms - now_ms <= RETRY_MS

    def begin(self, error: StoreError, now_ms: int) -> None:
        self.failure = error.remark
        self._until_ms = now_ms + RETRY_MS

    def end(self) -> None:
        """It went well."""
        self.failure, self._until_ms = "", 0
