"""Whose turn it is: who has more to do than one turn allows stands in a line, and all others are served between.

A turn is the time for which one connection may hold the loop. Whoever brings something new is served at once, while
all of them together have not used up a turn since the loop last looked for more; else they wait in a short line, which
goes first and gives each a small part of a turn: enough for a plain request. Those who need more stand in the long one,
of which one gets a turn each time. So the loop looks for new work after three turns at the latest, however many
connections ask for however much.
"""

from collections import deque
from collections.abc import Callable
from typing import Protocol

NEW_SHARE = 1 / 10  # of a turn, for each in the short line

Later = Callable[[Callable[[], None]], object]


class Worker(Protocol):
    """Someone who stands in line."""

    def take_turn(self, turn_s: float) -> None:
        """Work for this long, or until nothing is left; call `join` again for more."""
        ...


class Turns:
    """The lines of one process. Before `start` nobody else needs the thread, and a turn never ends."""

    def __init__(self) -> None:
        self.turn_s = float("inf")
        self.is_used_up = False  # what is new has to wait until the loop has looked for more
        self._later: Later | None = None
        self.spent_s = 0.0  # added to by those who are served; a call for each read would cost 0.1 µs
        self._is_called = False
        self._new: deque[Worker] = deque()
        self._line: deque[Worker] = deque()
        self._used_up = 0

    def start(self, turn_s: float, later: Later) -> None:
        """`later` calls back when others had their turn."""
        self.turn_s = turn_s
        self._later = later

    def use_up(self) -> None:
        """Those who were served have used up a turn together."""
        self.is_used_up = True
        self._call()

    def join_new(self, worker: Worker) -> None:
        """Wait for a first turn."""
        self._new.append(worker)
        self._call()

    def join(self, worker: Worker) -> None:
        """Wait for another turn."""
        self._used_up += 1
        self._line.append(worker)
        self._call()

    def _call(self) -> None:
        if not self._is_called:
            self._is_called = True
            if self._later is None:
                self._run()
            else:
                self._later(self._run)

    def _run(self) -> None:
        self.spent_s = 0.0
        try:
            while self._new and self.spent_s < self.turn_s:
                self._new.popleft().take_turn(self.turn_s * NEW_SHARE)
            if self._line:
                self._line.popleft().take_turn(self.turn_s)
        finally:
            self.spent_s = 0.0
            self.is_used_up = False
            self._is_called = False
            if self._new or self._line:
                self._call()

    def statistics(self) -> dict[str, int]:
        """Who waits, and how often a turn was used up."""
        return {"in_line": len(self._new) + len(self._line), "turns_used_up": self._used_up}
