"""What all connections of a process hold in memory together, and who lets go when it is too much.

Counted are frames that are not whole yet, requests that wait to be served and replies that were not read. Who sends
whole requests and reads the answers holds nothing, so it is never the one who has to let go.
"""

from typing import Protocol

import structlog

# Let go until so much is left: who is above the bound by a little would else be looked for at every read.
KEPT_SHARE = 7 / 8
# From here on little is held for who is behind with reading: slow readers wait instead of being cut off.
TIGHT_SHARE = 1 / 2
LOG_EVERY_S = 10.0
_log = structlog.get_logger(__name__)


class Holder(Protocol):
    """A connection that holds bytes."""

    @property
    def peer_name(self) -> str: ...

    def recount(self) -> None:
        """Tell what it holds by now."""
        ...

    def let_go(self) -> str:
        """Hold nothing any more: refuse the request that is under way, or close; what was done."""
        ...


class HeldBytes:
    """Who holds how much."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._holders: dict[Holder, int] = {}
        self._total_bytes = 0
        self._let_go = 0
        self._unlogged = 0
        self._logged_s = float("-inf")
        self._is_relieving = False

    @property
    def is_tight(self) -> bool:
        """Whether what is held comes near the bound."""
        return self._total_bytes > self._limit_bytes * TIGHT_SHARE

    def change(self, holder: Holder, held_bytes: int, now_s: float) -> None:
        """A connection holds so much now."""
        more_bytes = held_bytes - self._holders.get(holder, 0)
        self._total_bytes += more_bytes
        if held_bytes:
            self._holders[holder] = held_bytes
        else:
            self._holders.pop(holder, None)
        if more_bytes > 0 and self._total_bytes > self._limit_bytes and not self._is_relieving:
            self._is_relieving = True
            try:
                self._relieve(now_s)
            finally:
                self._is_relieving = False

    def recount(self) -> None:
        """Look at all of them: what a peer reads is told by nobody."""
        for holder in list(self._holders):
            holder.recount()

    def _relieve(self, now_s: float) -> None:
        self.recount()
        kept_bytes = int(self._limit_bytes * KEPT_SHARE)
        # Those who hold most go first: each of them takes the room of many others.
        for holder, held_bytes in sorted(self._holders.items(), key=lambda item: -item[1]):
            if self._total_bytes <= kept_bytes:
                break
            done = holder.let_go()
            self._let_go += 1
            self._unlogged += 1
            if now_s - self._logged_s >= LOG_EVERY_S:
                self._logged_s = now_s
                _log.warning(
                    "connections hold too much",
                    peer=holder.peer_name,
                    held_bytes=held_bytes,
                    done=done,
                    count=self._unlogged,
                    limit=self._limit_bytes,
                    hint="Raise server.max_held if these are your own clients",
                )
                self._unlogged = 0

    def statistics(self) -> dict[str, int]:
        """What is held now, and how often somebody had to let go."""
        self.recount()
        return {
            "held_bytes": self._total_bytes,
            "max_held_bytes": self._limit_bytes,
            "holders": len(self._holders),
            "let_go": self._let_go,
        }
