"""Counters of data requests. One request costs an addition; the rest happens once per interval."""

from collections.abc import Callable

from latermq.audit.records import CountKey

_MERGED_AT_ONCE = 1_024  # tallies, in about 1 ms


class Tally:
    """A counter that a connection keeps for one kind of request."""

    __slots__ = ("_counters", "count", "key")

    def __init__(self, key: CountKey, counters: "Counters") -> None:
        self.key = key
        self.count = 0
        self._counters = counters

    def add(self, count: int) -> None:
        """Count requests."""
        self.count += count
        if self.count == count:
            self._counters.started(self)


class Counters:
    """All counters of a process. Those of the same kind are added up, so that their number is bounded."""

    def __init__(self, max_kinds: int, write: Callable[[dict[CountKey, int]], None]) -> None:
        """`write` receives the counts after each interval, or when there are too many kinds to keep."""
        self._max_kinds = max_kinds
        self._write = write
        self._started: list[Tally] = []  # they hold what was counted since the last merge
        self._counts: dict[CountKey, int] = {}

    def __len__(self) -> int:
        return len(self._counts) + len(self._started)

    def tally(self, key: CountKey) -> Tally:
        """A counter for requests of one kind."""
        return Tally(key, self)

    def add(self, key: CountKey) -> None:
        """Count one request."""
        self._counts[key] = self._counts.get(key, 0) + 1
        if len(self._counts) >= self._max_kinds:
            self.flush()

    def started(self, tally: Tally) -> None:
        """A tally counts again, for the first time since it was merged."""
        self._started.append(tally)
        if len(self._started) >= _MERGED_AT_ONCE:
            self._merge()
            if len(self._counts) >= self._max_kinds:
                self.flush()

    def flush(self) -> None:
        """Write what was counted, and start at zero."""
        self._merge()
        if self._counts:
            counts, self._counts = self._counts, {}
            self._write(counts)

    def _merge(self) -> None:
        started, self._started = self._started, []
        counts = self._counts
        for tally in started:
            counts[tally.key] = counts.get(tally.key, 0) + tally.count
            tally.count = 0
