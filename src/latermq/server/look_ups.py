"""Requests whose look-ups take many steps: a slice of each in turn, so that everybody else is served between."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from latermq.errors import FlowControl, LaterMQError, ServiceUnavailable
from latermq.protocol.remoting.frames import Command
from latermq.server.admin_ground import answer, refuse
from latermq.server.connection import Connection
from latermq.timer.steps import Steps, too_many_steps

SLICE_STEPS = 250  # some 5 ms
MAX_RUNNING = 100

Reply = bytes | None
Later = Callable[[Callable[[], None]], object]


def do_now(work: Callable[[], None]) -> None:
    """Nobody else is to be served."""
    work()


@dataclass(slots=True)
class _LookUp:
    connection: Connection
    command: Command
    steps: Steps[Reply]
    taken: int = 0


class LookUps:
    """Those that are under way. `later` calls back when others had their turn; `settle` follows each that ended."""

    def __init__(self, limit: int, later: Later = do_now, settle: Callable[[], None] = lambda: None) -> None:
        """`limit` is how many steps one may take."""
        self._limit = limit
        self._later = later
        self._settle = settle
        self._running: deque[_LookUp] = deque()
        self._is_stopped = False

    def __len__(self) -> int:
        return len(self._running)

    def answer(self, connection: Connection, command: Command, steps: Steps[Reply]) -> Reply:
        """The reply, where one slice is enough for it; otherwise None, and it is sent when it is ready."""
        if self._is_stopped:  # what it needed from elsewhere came too late
            steps.close()
            raise _stopping()
        look_up = _LookUp(connection, command, steps)
        try:
            self._take_slice(look_up)
        except StopIteration as stop:
            reply: Reply = stop.value
            return reply
        if len(self._running) >= MAX_RUNNING:
            steps.close()
            raise FlowControl(f"{MAX_RUNNING} look-ups are under way", hint="Ask again in a moment")
        self._running.append(look_up)
        if len(self._running) == 1:
            self._later(self._go_on)
        return None

    def _take_slice(self, look_up: _LookUp) -> None:
        """Raises StopIteration at the end."""
        for _ in range(SLICE_STEPS):
            next(look_up.steps)
        look_up.taken += SLICE_STEPS
        if look_up.taken >= self._limit:
            look_up.steps.close()
            raise too_many_steps(self._limit)

    def _go_on(self) -> None:
        """A slice for the one that waits longest."""
        if not self._running:
            return
        look_up = self._running.popleft()
        try:
            self._take_slice(look_up)
        except StopIteration as stop:
            if stop.value is not None:
                answer(look_up.connection, look_up.command, stop.value)
            self._settle()
        except LaterMQError as error:
            refuse(look_up.connection, look_up.command, error)
            self._settle()
        else:
            self._running.append(look_up)
        finally:  # whatever became of this one, the others go on
            if self._running:
                self._later(self._go_on)

    def stop(self) -> None:
        """Give up what is under way: nothing may be read or written any more."""
        self._is_stopped = True
        while self._running:
            look_up = self._running.popleft()
            look_up.steps.close()
            refuse(look_up.connection, look_up.command, _stopping())


def _stopping() -> ServiceUnavailable:
    return ServiceUnavailable("the broker is stopping", hint="Ask again")
