"""Long requests, run in slices by turns so that all other clients are served in between.

A handler of a potentially long request is a generator of steps (`timer/steps.py`), and its row in the request table
says so. Requests that fit in one slice are answered at once, like all others.
"""

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from latermq.errors import FlowControl, ServiceUnavailable
from latermq.protocol.remoting.frames import FLAG_ONEWAY, Command
from latermq.server.remoting.connection import MAX_SLICED_REQUESTS, Connection
from latermq.timer.steps import Steps, too_many_steps

SLICE_STEPS = 250  # about 5 ms
MAX_RUNNING = 100
MAX_TABLES = 6  # table requests that run at the same time

Reply = bytes | None
Later = Callable[[Callable[[], None]], object]
Handler = Callable[[Connection, Command, Any], Reply]
SlicedHandler = Callable[[Connection, Command, Any], Steps[Reply]]


class Slices(Enum):
    """How many slices a request may take."""

    ALL = auto()  # as many as needed: other limits bound the work
    SEARCH = auto()  # `timer.max_lookup` steps: the work depends on what clients have stored
    TABLE = auto()  # as many as needed, but few requests at a time: each answer may take 20 MB until it is sent


def call_now(work: Callable[[], None]) -> None:
    """Do the work at once, for tools and tests in which nothing else needs the thread."""
    work()


@dataclass(slots=True)
class _Request:
    connection: Connection
    command: Command
    steps: Steps[Reply]
    limit: int  # of steps; 0: none
    step_count: int = 0


class SlicedRequests:
    """The running requests. `later` calls back after other work has had its turn; `on_end` runs after each request."""

    def __init__(self, limit: int, later: Later = call_now, on_end: Callable[[], None] = lambda: None) -> None:
        """`limit` is the maximum number of steps of a search."""
        self._limit = limit
        self._later = later
        self._on_end = on_end
        self._running: deque[_Request] = deque()
        self._is_stopped = False
        self._tables = 0

    def __len__(self) -> int:
        return len(self._running)

    def statistics(self) -> dict[str, int]:
        """Counts of running requests, and their limits."""
        connections = Counter(request.connection for request in self._running)
        return {
            "look_ups": len(self._running),
            "max_look_ups": MAX_RUNNING,
            "connection_look_ups": max(connections.values(), default=0),
            "max_connection_look_ups": MAX_SLICED_REQUESTS,
            "operators_tables": self._tables,
            "max_operators_tables": MAX_TABLES,
        }

    def handler(self, handler: SlicedHandler, slices: Slices) -> Handler:
        """Return a handler that runs the steps of this one in slices."""
        if slices is Slices.TABLE:
            handler = self._limit_tables(handler)
        limit = self._limit if slices is Slices.SEARCH else 0
        return lambda connection, command, content: self.answer(
            connection, command, handler(connection, command, content), limit=limit
        )

    def _limit_tables(self, handler: SlicedHandler) -> SlicedHandler:
        """Return the same handler with a wait after its first step while too many tables are in progress."""

        def steps(connection: Connection, command: Command, content: Any) -> Steps[Reply]:
            table_steps = handler(connection, command, content)
            try:
                next(table_steps)  # in this step it reads the request, or refuses it
            except StopIteration as stop:
                reply: Reply = stop.value
                return reply
            while self._tables >= MAX_TABLES:
                yield
            self._tables += 1
            try:
                return (yield from table_steps)
            finally:
                self._tables -= 1

        return steps

    def answer(
        self, connection: Connection, command: Command, steps: Steps[Reply], *, limit: int | None = None
    ) -> Reply:
        """Return the reply if one slice is enough. Otherwise return None and send the reply when it is ready."""
        if self._is_stopped:  # data that the request waited for arrived too late
            steps.close()
            raise _stopping()
        request = _Request(connection, command, steps, self._limit if limit is None else limit)
        try:
            self._run_slice(request)
        except StopIteration as stop:
            reply: Reply = stop.value
            return reply
        if len(self._running) >= MAX_RUNNING:
            steps.close()
            raise FlowControl(f"{MAX_RUNNING} look-ups are in progress", hint="Try again in a moment")
        connection.begin_work()
        self._running.append(request)
        if len(self._running) == 1:
            self._later(self._run_next)
        return None

    def _run_slice(self, request: _Request) -> None:
        """Run one slice. Raises StopIteration when the request is finished."""
        for _ in range(SLICE_STEPS):
            next(request.steps)
        request.step_count += SLICE_STEPS
        if request.limit and request.step_count >= request.limit:
            request.steps.close()
            raise too_many_steps(request.limit)

    def _run_next(self) -> None:
        """Run a slice of the request that has waited longest."""
        if not self._running:
            return
        request = self._running.popleft()
        try:
            self._run_slice(request)
        except StopIteration as stop:
            self._end(request, stop.value)
        except Exception as error:
            self._end(request, request.connection.refuse(request.command, error))
        else:
            self._running.append(request)
        finally:  # the others continue, whatever happened to this one
            if self._running:
                self._later(self._run_next)

    def _end(self, request: _Request, reply: Reply) -> None:
        if reply is not None and not request.command.flag & FLAG_ONEWAY:
            request.connection.send(reply)
        request.connection.end_work()
        self._on_end()

    def stop(self) -> None:
        """Abandon all running requests. From here on nothing may be read or written."""
        self._is_stopped = True
        while self._running:
            request = self._running.popleft()
            request.steps.close()
            self._end(request, request.connection.refuse(request.command, _stopping()))


def _stopping() -> ServiceUnavailable:
    return ServiceUnavailable("the broker is stopping", hint="Try again")
