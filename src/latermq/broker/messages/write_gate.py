"""Whether the broker accepts messages: not while its disk is full, and not while it stops."""

from typing import Protocol

from latermq.config import StoreConfig
from latermq.errors import ServiceUnavailable


class FillingStore(Protocol):
    """The store, as far as the gate uses it."""

    def used_ratio(self) -> float:
        """How full the disk is, from 0 to 1."""
        ...


class WriteGate:
    """Open until `check_disk` or `close` shuts it. Retries, cancels and moves have a higher limit than new messages."""

    def __init__(self, store: FillingStore, config: StoreConfig) -> None:
        self._store = store
        self._config = config
        self.refusal: ServiceUnavailable | None = None  # of new messages; None while they are accepted
        self._retry_refusal: ServiceUnavailable | None = None

    def check(self, *, is_retry: bool = False) -> None:
        """Refuse a message while its kind is not accepted."""
        refusal = self._retry_refusal if is_retry else self.refusal
        if refusal is not None:
            raise refusal

    def check_disk(self) -> None:
        """Shut or open the gate as the disk fills and empties."""
        used = self._store.used_ratio()
        high, full = self._config.disk_high, self._config.disk_full
        self.refusal = self._retry_refusal = None
        if used > high:
            self.refusal = ServiceUnavailable(
                f"the disk is {used:.0%} full, new messages are refused above {high:.0%}",
                hint="Free disk space, shorten store.retention or raise store.disk_high",
            )
        if used > full:
            self._retry_refusal = ServiceUnavailable(
                f"the disk is {used:.0%} full, retries are refused above {full:.0%}",
                hint="Free disk space; the message stays with its consumer until then",
            )

    def close(self, reason: str) -> None:
        """Accept no more messages, because the broker is stopping."""
        self.refusal = ServiceUnavailable(reason, hint="Send to another broker, or again in a moment")
        self._retry_refusal = self.refusal
