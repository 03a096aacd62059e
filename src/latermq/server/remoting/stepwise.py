"""Requests that take many steps: a slice of each in turn, so that everybody else is served between.

A handler that may have much to do is a generator of steps (`timer/steps.py`), made an ordinary handler by `stepwise`.
What one slice is enough for is answered at once, as by any other handler.
"""

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass

from latermq.errors import FlowControl, ServiceUnavailable
from latermq.protocol.remoting.frames import FLAG_ONEWAY, Command
from latermq.server.remoting.connection import MAX_UNDER_WAY, Connection
from latermq.timer.steps import Steps, too_many_steps

SLICE_STEPS = 250  # some 5 ms
MAX_RUNNING = 100

Reply = bytes | None
Later = Callable[[Callable[[], None]], object]
Stepwise = Callable[[Connection, Command], Steps[Reply]]


def do_now(work: Callable[[], None]) -> None:
    """Nobody else is to be served."""
    work()


@dataclass(slots=True)
class _LookUp:
    connection: Connection
    command: Command
    steps: Steps[Reply]
    limit: int  # of steps; 0: none
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

    def statistics(self) -> dict[str, int]:
        """How many are under way."""
        connections = Counter(look_up.connection for look_up in self._running)
        return {
            "look_ups": len(self._running),
            "max_look_ups": MAX_RUNNING,
            "connection_look_ups": max(connections.values(), default=0),
            "max_connection_look_ups": MAX_UNDER_WAY,
        }

    def stepwise(self, handler: Stepwise) -> Callable[[Connection, Command], Reply]:
        """The handler that takes the steps of this one, as many as there are."""
        return lambda connection, command: self.answer(connection, command, handler(connection, command), limit=0)

    def answer(
        self, connection: Connection, command: Command, steps: Steps[Reply], *, limit: int | None = None
    ) -> Reply:
        """The reply, where one slice is enough for it; otherwise None, and it is sent when it is ready."""
        if self._is_stopped:  # what it needed from elsewhere came too late
            steps.close()
            raise _stopping()
        look_up = _LookUp(connection, command, steps, self._limit if limit is None else limit)
        try:
            self._take_slice(look_up)
        except StopIteration as stop:
            reply: Reply = stop.value
            return reply
        if len(self._running) >= MAX_RUNNING:
            steps.close()
            raise FlowControl(f"{MAX_RUNNING} look-ups are under way", hint="Ask again in a moment")
        connection.begin_work()
        self._running.append(look_up)
        if len(self._running) == 1:
            self._later(self._go_on)
        return None

    def _take_slice(self, look_up: _LookUp) -> None:
        """Raises StopIteration at the end."""
        for _ in range(SLICE_STEPS):
            next(look_up.steps)
        look_up.taken += SLICE_STEPS
        if look_up.limit and look_up.taken >= look_up.limit:
            look_up.steps.close()
            raise too_many_steps(look_up.limit)

    def _go_on(self) -> None:
        """A slice for the one that waits longest."""
        if not self._running:
            return
        look_up = self._running.popleft()
        try:
            self._take_slice(look_up)
        except StopIteration as stop:
            self._end(look_up, stop.value)
        except Exception as error:
            self._end(look_up, look_up.connection.refuse(look_up.command, error))
        else:
            self._running.append(look_up)
        finally:  # whatever became of this one, the others go on
            if self._running:
                self._later(self._go_on)

    def _end(self, look_up: _LookUp, reply: Reply) -> None:
        if reply is not None and not look_up.command.flag & FLAG_ONEWAY:
            look_up.connection.send(reply)
        look_up.connection.end_work()
        self._settle()

    def stop(self) -> None:
        """Give up what is under way: nothing may be read or written any more."""
        self._is_stopped = True
        while self._running:
            look_up = self._running.popleft()
            look_up.steps.close()
            self._end(look_up, look_up.connection.refuse(look_up.command, _stopping()))


def _stopping() -> ServiceUnavailable:
    return ServiceUnavailable("the broker is stopping", hint="Ask again")
