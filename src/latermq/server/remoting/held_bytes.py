"""The bound on the memory that all connections of a process hold together.

Incomplete frames, unserved requests and unread replies count as held. Above the bound, the largest holders must release
their bytes. A client that sends complete requests and reads the answers holds nothing, so it is never affected.
"""

from typing import Protocol

import structlog

# Release down to this share. Otherwise a total just above the bound would start a new search at every read.
RELEASE_TO_SHARE = 7 / 8
# Above this share slow readers get less buffer for replies: they wait instead of being cut off.
TIGHT_SHARE = 1 / 2
LOG_EVERY_S = 10.0
_log = structlog.get_logger(__name__)


class Holder(Protocol):
    """A connection that holds bytes."""

    @property
    def peer_name(self) -> str: ...

    def recount(self) -> None:
        """Report the bytes that it holds now."""
        ...

    def release(self) -> str:
        """Release everything: refuse the incomplete request, or close. Returns a description of what was done."""
        ...


class HeldBytes:
    """Held bytes per connection, and their total."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._holders: dict[Holder, int] = {}
        self._total_bytes = 0
        self._released = 0
        self._released_since_log = 0
        self._logged_s = float("-inf")
        self._is_releasing = False

    @property
    def is_tight(self) -> bool:
        """Whether the total is near the bound."""
        return self._total_bytes > self._limit_bytes * TIGHT_SHARE

    def change(self, holder: Holder, held_bytes: int, now_s: float) -> None:
        """Record how much a connection holds now, and enforce the bound."""
        more_bytes = held_bytes - self._holders.get(holder, 0)
        self._total_bytes += more_bytes
        if held_bytes:
            self._holders[holder] = held_bytes
        else:
            self._holders.pop(holder, None)
        if more_bytes > 0 and self._total_bytes > self._limit_bytes and not self._is_releasing:
            self._is_releasing = True
            try:
                self._release_largest(now_s)
            finally:
                self._is_releasing = False

    def recount(self) -> None:
        """Recount all holders: no event reports that a peer has read its replies."""
        for holder in list(self._holders):
            holder.recount()

    def _release_largest(self, now_s: float) -> None:
        self.recount()
        target_bytes = int(self._limit_bytes * RELEASE_TO_SHARE)
        # Largest holders first: each of them takes the memory of many others.
        for holder, held_bytes in sorted(self._holders.items(), key=lambda item: -item[1]):
            if self._total_bytes <= target_bytes:
                break
            done = holder.release()
            self._released += 1
            self._released_since_log += 1
            if now_s - self._logged_s >= LOG_EVERY_S:
                self._logged_s = now_s
                _log.warning(
                    "connections hold too many bytes",
                    peer=holder.peer_name,
                    held_bytes=held_bytes,
                    done=done,
                    count=self._released_since_log,
                    limit=self._limit_bytes,
                    hint="Raise server.max_held if these are your own clients",
                )
                self._released_since_log = 0

    def statistics(self) -> dict[str, int]:
        """Bytes held now, and how often a connection had to release its bytes."""
        self.recount()
        return {
            "held_bytes": self._total_bytes,
            "max_held_bytes": self._limit_bytes,
            "holders": len(self._holders),
            "let_go": self._released,
        }
