"""Operators' requests about windows: list their states, check one again, skip one."""

import asyncio
from collections.abc import Coroutine
from typing import Any, Protocol

import structlog

from latermq.broker.timers.far_timers import FarTimers
from latermq.clock import Clock
from latermq.errors import Busy, LaterMQError
from latermq.protocol.remoting.codes import Request
from latermq.protocol.remoting.frames import Command, encode_response
from latermq.protocol.remoting.json_body import encode_body
from latermq.protocol.remoting.pipeline import WindowNumberHeader, WindowReports
from latermq.server.change_log import Change
from latermq.server.handlers.async_replies import answer, refuse
from latermq.server.remoting.access import GET, UPDATE, on_cluster
from latermq.server.remoting.connection import Connection
from latermq.server.remoting.endpoints import Endpoint
from latermq.server.windows.window_reports import report_windows
from latermq.server.windows.window_state import WindowState

MAX_RUNNING = 100  # requests that wait for the check of a window

_log = structlog.get_logger(__name__)


class Loader(Protocol):
    """The component that loads windows."""

    def state_of(self, number: int) -> WindowState: ...

    async def repair(self, number: int) -> None: ...

    async def skip(self, number: int) -> None: ...


class WindowRequests:
    """Forwards these requests to the window loader."""

    def __init__(self, far: FarTimers, clock: Clock, broker_name: str, loader: Loader) -> None:
        self._far = far
        self._clock = clock
        self._broker_name = broker_name
        self._loader = loader
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def endpoints(self) -> list[Endpoint]:
        repair = Change("window repair requested", ("number",))
        skip = Change("window skip requested by an operator", ("number",))
        return [
            Endpoint(Request.WINDOW_STATES, self._states, on_cluster(GET)),
            Endpoint(Request.REPAIR_WINDOW, self._repair, on_cluster(UPDATE), WindowNumberHeader, change=repair),
            Endpoint(Request.SKIP_WINDOW, self._skip, on_cluster(UPDATE), WindowNumberHeader, change=skip),
        ]

    def _states(self, connection: Connection, command: Command, _: None) -> bytes:
        reports = report_windows(self._far, self._loader.state_of)
        body = encode_body(WindowReports(self._broker_name, self._clock.now_ms(), reports))
        return encode_response(command, body=body)

    def _repair(self, connection: Connection, command: Command, header: WindowNumberHeader) -> None:
        self._check_room()
        number = header.number
        self._answer_when_done(connection, command, self._loader.repair(number))

    def _skip(self, connection: Connection, command: Command, header: WindowNumberHeader) -> None:
        self._check_room()
        number = header.number
        self._answer_when_done(connection, command, self._loader.skip(number))

    def statistics(self) -> dict[str, int]:
        """How many requests wait, and the limit."""
        return {"window_requests": len(self._tasks), "max_window_requests": MAX_RUNNING}

    def _check_room(self) -> None:
        if len(self._tasks) >= MAX_RUNNING:
            raise Busy(f"{MAX_RUNNING} requests about windows are in progress", hint="Try again in a moment")

    def _answer_when_done(self, connection: Connection, command: Command, work: Coroutine[Any, Any, None]) -> None:
        """Reply after the work is done, so that a confirmed change survives a crash."""

        async def run() -> None:
            try:
                await work
            except LaterMQError as error:
                refuse(connection, command, error)
            except Exception as error:
                _log.error("request about a window failed", exc_info=error)
                refuse(connection, command, LaterMQError(f"the request failed: {type(error).__name__}"))
            else:
                answer(connection, command, encode_response(command))

        task = asyncio.get_running_loop().create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
