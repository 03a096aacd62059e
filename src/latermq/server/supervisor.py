"""Supervisor of a server's child processes: starts them in order, restarts those that exit, stops them in reverse."""

import asyncio
import contextlib
import os
import signal
import time
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field

import structlog

from latermq.processes import describe_exit
from latermq.retry import Backoff
from latermq.server.serve_record import READY as PART_READY
from latermq.server.serve_record import RESTARTING, STARTING, PartRecord

READY = "latermq ready: "  # a part prints this with its name and address once it accepts connections

_FIRST_PAUSE_S = 0.5
_MAX_PAUSE_S = 30.0
_STABLE_AFTER_S = 60.0  # a part that ran this long counts as stable, and the pause starts again at its first value
_STOP_TIMEOUT_S = 60.0  # for the broker's last flush on a slow disk

Addresses = Mapping[str, str]


@dataclass(frozen=True)
class Part:
    """One process of the server."""

    name: str
    # Returns the command line, given the addresses of the parts that are ready. On a restart these include the part's
    # own address, so that a part on a port chosen by the kernel keeps its port.
    command: Callable[[Addresses], Sequence[str]]
    # Whether the server is ready without it. The supervisor does not wait for it, and retries a failed start forever.
    is_optional: bool = False
    # Passes the settings, since every user of the machine can read command lines.
    environment: Mapping[str, str] = field(default_factory=dict)


class PartFailed(Exception):
    """A part ended before it was ever ready: starting it again would not help."""

    def __init__(self, part: str, code: int) -> None:
        super().__init__(f"the {part} did not start: {describe_exit(code)}")
        self.code = code


class Supervisor:
    """Runs all parts, from the first start to the last stop."""

    def __init__(
        self,
        parts: Sequence[Part],
        on_ready: Callable[[Addresses], None],
        on_change: Callable[[Sequence[PartRecord]], None] = lambda records: None,
    ) -> None:
        """`on_change` receives the records of all parts whenever one starts, is ready, or ends."""
        self._parts = parts
        self._on_ready = on_ready
        self._on_change = on_change
        self._records = {part.name: PartRecord(part.name, is_optional=part.is_optional) for part in parts}
        self._addresses: dict[str, str] = {}
        self._processes: dict[str, Process] = {}
        self._stop = asyncio.Event()
        self._log = structlog.get_logger()

    async def run(self) -> int:
        """Run until SIGTERM or SIGINT, or until a part cannot start; the exit code."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)
        run_task = asyncio.create_task(self._run_all())
        stop_task = asyncio.create_task(self._stop.wait())
        await asyncio.wait([run_task, stop_task], return_when=asyncio.FIRST_COMPLETED)
        stop_task.cancel()
        run_task.cancel()
        failure: PartFailed | None = None
        try:
            with contextlib.suppress(asyncio.CancelledError):
                await run_task
        except* PartFailed as failures:
            failure = failures.exceptions[0]  # type: ignore[assignment]
        finally:
            stopped_cleanly = await self._stop_all()
        if failure is not None:
            self._log.error(str(failure))
            return 2 if failure.code == 2 else 1
        return 0 if stopped_cleanly else 1

    async def _run_all(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for part in self._parts:
                ready = asyncio.Event()
                tasks.create_task(self._run_part(part, ready))
                if not part.is_optional:
                    await ready.wait()
            self._on_ready(self._addresses)

    async def _run_part(self, part: Part, ready: asyncio.Event) -> None:
        """Start a part, and restart it whenever it exits."""
        loop = asyncio.get_running_loop()
        backoff = Backoff(_FIRST_PAUSE_S, _MAX_PAUSE_S)
        while True:
            started_s = loop.time()
            process = await self._start(part)
            async for line in _lines_of(process):
                if line.startswith(READY):
                    self._addresses[part.name] = line.split()[-1]
                    self._log.info(f"{part.name} is ready", address=self._addresses[part.name], pid=process.pid)
                    ready.set()
                    self._record(part, PART_READY, pid=process.pid)
            code = await process.wait()
            del self._processes[part.name]
            if not ready.is_set() and not part.is_optional:
                raise PartFailed(part.name, code)
            if loop.time() - started_s > _STABLE_AFTER_S:
                backoff.reset()
            pause_s = backoff.next_pause()
            self._log.warning(f"{part.name} exited and is being restarted", reason=describe_exit(code), pause_s=pause_s)
            self._records[part.name].restarts += 1
            self._record(part, RESTARTING, reason=describe_exit(code))
            await asyncio.sleep(pause_s)

    def _record(self, part: Part, state: str, *, pid: int = 0, reason: str | None = None) -> None:
        record = self._records[part.name]
        record.state, record.pid, record.since_ms = state, pid, time.time_ns() // 1_000_000
        record.address = self._addresses.get(part.name, "")
        record.reason = record.reason if reason is None else reason
        self._on_change(list(self._records.values()))

    async def _start(self, part: Part) -> Process:
        process = await asyncio.create_subprocess_exec(
            *part.command(self._addresses),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, **part.environment},
            # Not in the terminal's foreground group: Ctrl-C reaches only this process, which stops the parts in order.
            process_group=0,
        )
        self._processes[part.name] = process
        self._record(part, STARTING, pid=process.pid)
        return process

    def _on_signal(self, number: signal.Signals) -> None:
        if not self._stop.is_set():
            self._log.info("stopping", signal=number.name)
            self._stop.set()
            return
        self._log.warning("second stop request: killing all parts", signal=number.name)
        for process in self._processes.values():
            process.kill()

    async def _stop_all(self) -> bool:
        """Stop the parts, last first; whether all of them exited cleanly."""
        clean = True
        for part in reversed(self._parts):
            process = self._processes.get(part.name)
            if process is None:
                continue
            code = await _stop(process)
            # A part that is still loading has no signal handler yet, and no state to lose.
            if code not in (0, -signal.SIGTERM):
                self._log.error(f"{part.name} did not stop cleanly", reason=describe_exit(code))
                clean = clean and part.is_optional
        return clean


async def _stop(process: Process) -> int:
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        return await asyncio.wait_for(process.wait(), _STOP_TIMEOUT_S)
    except TimeoutError:
        process.kill()
        return await process.wait()


async def _lines_of(process: Process) -> AsyncIterator[str]:
    assert process.stdout is not None
    async for line in process.stdout:
        yield line.decode(errors="replace").rstrip("\n")
