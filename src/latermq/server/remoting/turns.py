"""Fair turns: connections with more work than one turn allows wait in line, and all others are served in between.

A turn is the time for which one connection may occupy the event loop. New requests are served at once until, together,
they have used up a turn since the loop last polled. After that, their connections wait in a short line. It has priority
and gives each connection a small part of a turn, enough for a plain request. Connections that need more wait in a long
line, and one of them gets a turn each time. The loop therefore polls for new work after three turns at the latest,
regardless of the number of connections and of their requests.
"""

from collections import deque
from collections.abc import Callable
from typing import Protocol

NEW_SHARE = 1 / 10  # of a turn, for each connection in the short line

Later = Callable[[Callable[[], None]], object]


class Worker(Protocol):
    """A connection that waits in line."""

    def run_turn(self, turn_s: float) -> None:
        """Work for this long or until nothing is left; call `Turns.join` again if work remains."""
        ...


class Turns:
    """The lines of one process. Before `start` nothing else needs the thread, and a turn never ends."""

    def __init__(self) -> None:
        self.turn_s = float("inf")
        self.is_used_up = False  # new requests must wait until the loop has polled
        self._later: Later | None = None
        self.spent_s = 0.0  # connections add to it directly; a method call per read would cost 0.1 µs
        self._is_scheduled = False
        self._new: deque[Worker] = deque()
        self._line: deque[Worker] = deque()
        self._used_up = 0

    def start(self, turn_s: float, later: Later) -> None:
        """Limit turns to `turn_s`. `later` calls back after other work has had its turn."""
        self.turn_s = turn_s
        self._later = later

    def use_up(self) -> None:
        """Note that the connections served so far have together used up a turn."""
        self.is_used_up = True
        self._schedule()

    def join_new(self, worker: Worker) -> None:
        """Wait for a first turn."""
        self._new.append(worker)
        self._schedule()

    def join(self, worker: Worker) -> None:
        """Wait for another turn."""
        self._used_up += 1
        self._line.append(worker)
        self._schedule()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            if self._later is None:
                self._run()
            else:
                self._later(self._run)

    def _run(self) -> None:
        self.spent_s = 0.0
        try:
            while self._new and self.spent_s < self.turn_s:
                self._new.popleft().run_turn(self.turn_s * NEW_SHARE)
            if self._line:
                self._line.popleft().run_turn(self.turn_s)
        finally:
            self.spent_s = 0.0
            self.is_used_up = False
            self._is_scheduled = False
            if self._new or self._line:
                self._schedule()

    def statistics(self) -> dict[str, int]:
        """How many connections wait, and how often a turn was used up."""
        return {"in_line": len(self._new) + len(self._line), "turns_used_up": self._used_up}
