"""A bounded table of values that are fetched when they are first needed, and refreshed in the background."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, NamedTuple, TypeVar

import structlog

from latermq.errors import Busy, LaterMQError

V = TypeVar("V")
RETRY_S = 1.0  # how long a failure is remembered

_log = structlog.get_logger(__name__)


class Fetched(NamedTuple, Generic[V]):
    """A fetched value, and how long it is used without a refresh."""

    value: V
    fresh_s: float


class _Entry(Generic[V]):
    __slots__ = ("error", "stale_at_s", "value")

    def __init__(self, value: V | None, error: LaterMQError | None, stale_at_s: float) -> None:
        self.value = value
        self.error = error
        self.stale_at_s = stale_at_s


class FetchedTable(Generic[V]):
    """Values by name. Failures are remembered for a second, so that unknown names cost little."""

    def __init__(
        self,
        fetch: Callable[[str, V | None], Awaitable[Fetched[V]]],
        now_s: Callable[[], float],
        max_entries: int,
        max_fetches: int,
    ) -> None:
        """`fetch` gets the name and the last value. If it raises an error, the last value is forgotten."""
        self._fetch = fetch
        self._now_s = now_s
        self._max_entries = max_entries
        self._max_fetches = max_fetches  # at the same time
        self._entries: dict[str, _Entry[V]] = {}
        self._waiting: dict[str, list[Callable[[V | LaterMQError], None]]] = {}  # for a running fetch
        self._tasks: set[asyncio.Task[None]] = set()

    def cached(self, name: str) -> V | None:
        """Return the value if it is here, and refresh it in the background if it is old."""
        entry = self._entries.get(name)
        if entry is None:
            return None
        if entry.stale_at_s <= self._now_s() and entry.value is not None:
            self._begin(name)
        return entry.value

    def get(self, name: str, then: Callable[[V | LaterMQError], None]) -> None:
        """Pass the value, or the error of its fetch, to `then`: at once if it is here."""
        value = self.cached(name)
        if value is not None:
            then(value)
            return
        entry = self._entries.get(name)
        if entry is not None and entry.error is not None and entry.stale_at_s > self._now_s():
            then(entry.error)
        elif self._begin(name):
            self._waiting[name].append(then)
        else:
            then(Busy(f"{self._max_fetches} look-ups are pending", hint="Try again in a second"))

    def refresh(self, name: str) -> None:
        """Fetch a value again soon, because it seems to be outdated. It is used until then."""
        entry = self._entries.get(name)
        if entry is not None and entry.value is not None:
            # Not at once: one outdated value makes many calls fail.
            entry.stale_at_s = min(entry.stale_at_s, self._now_s() + RETRY_S)

    def forget(self, name: str) -> None:
        """Remove a value that is wrong."""
        self._entries.pop(name, None)

    def statistics(self) -> dict[str, int]:
        return {"entries": len(self._entries), "fetches": len(self._waiting), "max_fetches": self._max_fetches}

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _begin(self, name: str) -> bool:
        """Begin a fetch unless one is running. Returns False if too many are."""
        if name in self._waiting:
            return True
        if len(self._waiting) >= self._max_fetches:
            return False
        self._waiting[name] = []
        task = asyncio.get_running_loop().create_task(self._run(name))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return True

    async def _run(self, name: str) -> None:
        entry = self._entries.get(name)
        result: V | LaterMQError
        try:
            result, fresh_s = await self._fetch(name, None if entry is None else entry.value)
            self._put(name, _Entry(result, None, self._now_s() + fresh_s))
        except LaterMQError as error:
            result = error
            self._put(name, _Entry(None, error, self._now_s() + RETRY_S))
        except Exception:
            _log.exception("a look-up failed", name=name)
            result = LaterMQError("internal error")
        finally:
            waiting = self._waiting.pop(name)
        for then in waiting:
            try:
                then(result)
            except Exception:
                _log.exception("a call failed", name=name)

    def _put(self, name: str, entry: _Entry[V]) -> None:
        self._entries.pop(name, None)
        if len(self._entries) >= self._max_entries:
            del self._entries[next(iter(self._entries))]
        self._entries[name] = entry
