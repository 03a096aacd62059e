"""Requests that take many steps: a slice of each in turn, so that all other clients are served in between.

A handler that may have much to do is a generator of steps (`timer/steps.py`), and the row of its request says so.
Requests that need no more than one slice are answered at once, like all others.
"""

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from latermq.errors import FlowControl, ServiceUnavailable
from latermq.protocol.remoting.frames import FLAG_ONEWAY, Command
from latermq.server.remoting.connection import MAX_UNDER_WAY, Connection
from latermq.timer.steps import Steps, too_many_steps

SLICE_STEPS = 250  # some 5 ms
MAX_RUNNING = 100
MAX_TABLES = 6  # that are made in slices at a time

Reply = bytes | None
Later = Callable[[Callable[[], None]], object]
Handler = Callable[[Connection, Command, Any], Reply]
SlicedHandler = Callable[[Connection, Command, Any], Steps[Reply]]


class Slices(Enum):
    """How many slices a request may take."""

    ALL = auto()  # as many as there is work: what it looks at is bounded by other limits
    SEARCH = auto()  # `timer.max_lookup` steps: what it looks through depends on what clients have stored
    TABLE = auto()  # as many as there is work, but few such requests at a time: each answer may take 20 MB until sent


def call_now(work: Callable[[], None]) -> None:
    """For tools and tests, where nobody else needs the thread."""
    work()


@dataclass(slots=True)
class _Request:
    connection: Connection
    command: Command
    steps: Steps[Reply]
    limit: int  # of steps; 0: none
    taken: int = 0


class SlicedRequests:
    """Those that are under way. `later` calls back when others had their turn; `settle` follows each that ended."""

    def __init__(self, limit: int, later: Later = call_now, settle: Callable[[], None] = lambda: None) -> None:
        """`limit` is how many steps a search may take."""
        self._limit = limit
        self._later = later
        self._settle = settle
        self._running: deque[_Request] = deque()
        self._is_stopped = False
        self._tables = 0

    def __len__(self) -> int:
        return len(self._running)

    def statistics(self) -> dict[str, int]:
        """How many are under way."""
        connections = Counter(request.connection for request in self._running)
        return {
            "look_ups": len(self._running),
            "max_look_ups": MAX_RUNNING,
            "connection_look_ups": max(connections.values(), default=0),
            "max_connection_look_ups": MAX_UNDER_WAY,
            "operators_tables": self._tables,
            "max_operators_tables": MAX_TABLES,
        }

    def handler(self, handler: SlicedHandler, slices: Slices) -> Handler:
        """The handler that takes the steps of this one in slices."""
        if slices is Slices.TABLE:
            handler = self._few_tables(handler)
        limit = self._limit if slices is Slices.SEARCH else 0
        return lambda connection, command, asked: self.answer(
            connection, command, handler(connection, command, asked), limit=limit
        )

    def _few_tables(self, handler: SlicedHandler) -> SlicedHandler:
        """The same handler, which waits behind its first step for its turn."""

        def steps(connection: Connection, command: Command, asked: Any) -> Steps[Reply]:
            made = handler(connection, command, asked)
            try:
                next(made)  # until here it has read what is asked, and refused what it must
            except StopIteration as stop:
                reply: Reply = stop.value
                return reply
            while self._tables >= MAX_TABLES:
                yield
            self._tables += 1
            try:
                return (yield from made)
            finally:
                self._tables -= 1

        return steps

    def answer(
        self, connection: Connection, command: Command, steps: Steps[Reply], *, limit: int | None = None
    ) -> Reply:
        """The reply, where one slice is enough for it; otherwise None, and it is sent when it is ready."""
        if self._is_stopped:  # what it needed from elsewhere came too late
            steps.close()
            raise _stopping()
        request = _Request(connection, command, steps, self._limit if limit is None else limit)
        try:
            self._take_slice(request)
        except StopIteration as stop:
            reply: Reply = stop.value
            return reply
        if len(self._running) >= MAX_RUNNING:
            steps.close()
            raise FlowControl(f"{MAX_RUNNING} look-ups are under way", hint="Ask again in a moment")
        connection.begin_work()
        self._running.append(request)
        if len(self._running) == 1:
            self._later(self._go_on)
        return None

    def _take_slice(self, request: _Request) -> None:
        """Raises StopIteration at the end."""
        for _ in range(SLICE_STEPS):
            next(request.steps)
        request.taken += SLICE_STEPS
        if request.limit and request.taken >= request.limit:
            request.steps.close()
            raise too_many_steps(request.limit)

    def _go_on(self) -> None:
        """A slice for the one that waits longest."""
        if not self._running:
            return
        request = self._running.popleft()
        try:
            self._take_slice(request)
        except StopIteration as stop:
            self._end(request, stop.value)
        except Exception as error:
            self._end(request, request.connection.refuse(request.command, error))
        else:
            self._running.append(request)
        finally:  # whatever became of this one, the others go on
            if self._running:
                self._later(self._go_on)

    def _end(self, request: _Request, reply: Reply) -> None:
        if reply is not None and not request.command.flag & FLAG_ONEWAY:
            request.connection.send(reply)
        request.connection.end_work()
        self._settle()

    def stop(self) -> None:
        """Give up what is under way: nothing may be read or written any more."""
        self._is_stopped = True
        while self._running:
            request = self._running.popleft()
            request.steps.close()
            self._end(request, request.connection.refuse(request.command, _stopping()))


def _stopping() -> ServiceUnavailable:
    return ServiceUnavailable("the broker is stopping", hint="Ask again")
