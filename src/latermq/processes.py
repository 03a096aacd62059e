"""Child processes: started apart from their parent's terminal, ended with their children, and their exit codes."""

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, STDOUT, Process
from collections.abc import Mapping, Sequence
from typing import Any

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def die_with_parent(parent_pid: int) -> None:
    """Have the kernel kill this process when its parent dies for any reason. Exit at once if it is already dead."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"prctl(PR_SET_PDEATHSIG): {os.strerror(error)}")
    # If the parent died before the call above, this process already has another parent.
    if os.getppid() != parent_pid:
        sys.exit(1)


async def start_worker(
    command: Sequence[str], *, environment: Mapping[str, str] | None = None, has_requests: bool = False
) -> Process:
    """Start a process that works for this one, in a session of its own, so that `end_worker` ends its children too.

    With `has_requests` it is asked through its input, and its errors are apart from its output. If this task is
    cancelled meanwhile, no process is left behind.
    """
    starting = asyncio.ensure_future(
        asyncio.create_subprocess_exec(
            *command,
            stdin=PIPE if has_requests else DEVNULL,
            stdout=PIPE,
            stderr=PIPE if has_requests else STDOUT,
            start_new_session=True,
            env={**os.environ, **(environment or {})},
        )
    )
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        await _wait_for(starting)
        if starting.exception() is None:
            await end_worker(starting.result())
        raise


async def end_worker(process: Process) -> None:
    """Kill a worker and its children. If this task is cancelled meanwhile, no process and no pipe is left behind."""
    with contextlib.suppress(ProcessLookupError, PermissionError):  # it has exited
        os.killpg(process.pid, signal.SIGKILL)
    await _wait_for(asyncio.ensure_future(process.wait()))


async def _wait_for(future: "asyncio.Future[Any]") -> None:
    """Wait even if this task is cancelled again, and ignore whether it fails."""
    while not future.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait([future])


def describe_exit(code: int) -> str:
    """Describe an exit code of subprocess: `exit code 1`, `killed by SIGKILL`."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
