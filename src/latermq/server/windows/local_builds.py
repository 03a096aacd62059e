"""The roll without Spark, as a process of the broker's: what it tells of each window, and how long each may take."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Sequence

from latermq.errors import LaterMQError
from latermq.server.processes import describe_exit

_READ_BYTES = 1 << 16
_KEPT_BYTES = 1 << 12  # of what it printed beside its results, for the log
# A window that was rolled, and why another was not; what build_process.py prints.
ROLLED, FAILED = b"rolled ", b"failed "
ROOT_VARIABLE = "LATERMQ_PIPELINE_TIMELINE"  # where it finds the folder

# Called with a window's number and what failed; nothing did where that is empty.
Told = Callable[[int, str], None]


class RollTimedOut(LaterMQError):
    """A window was not rolled within its time, and the process was killed."""


class LocalRolls:
    """Starts the processes. Each has a session of its own, so that its children end with it."""

    def __init__(self, root_uri: str, address: Callable[[], str]) -> None:
        self._root_uri = root_uri
        self._address = address

    def command(self, numbers: Sequence[int], limit_s: float) -> list[str]:
        program = [sys.executable, "-m", "latermq.pipeline.windows.build_process", "--broker", self._address()]
        return [*program, "--limit-s", f"{limit_s:g}", *map(str, numbers)]

    async def roll(self, numbers: Sequence[int], limit_s: float, told: Told) -> None:
        """Make an attempt of each of these windows; `told` hears of each in turn.

        Raises what kept it from going on, with the first window that nothing was told of; RollTimedOut where that took
        longer than `limit_s`. Windows behind it were not begun.
        """
        process = await asyncio.create_subprocess_exec(
            *self.command(numbers, limit_s),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
            # Not on its command line, which every user of the machine can read: it may hold credentials.
            env={**os.environ, ROOT_VARIABLE: self._root_uri},
        )
        try:
            await _listen(process, len(numbers), limit_s, told)
        finally:
            _kill_group(process.pid)
            await process.wait()


async def _listen(process: asyncio.subprocess.Process, count: int, limit_s: float, told: Told) -> None:
    assert process.stdout is not None
    loop = asyncio.get_running_loop()
    unread = noise = b""
    end_s = loop.time() + limit_s
    while count:
        try:
            async with asyncio.timeout_at(end_s):
                read = await process.stdout.read(_READ_BYTES)
        except TimeoutError:
            raise RollTimedOut(
                f"rolling it took longer than {limit_s:g} s", hint="pipeline.roll_timeout says how long it may take"
            ) from None
        if not read:
            last = noise.decode(errors="replace").strip().splitlines()[-1:]
            code = await process.wait()
            raise LaterMQError(f"the process that rolls it ended: {' '.join([describe_exit(code), *last])}")
        *lines, unread = (unread + read).split(b"\n")
        unread = unread[-_KEPT_BYTES:]
        for line in lines:
            if line.startswith((ROLLED, FAILED)):
                _, number, text = (*line.decode(errors="replace").split(" ", 2), "")[:3]
                told(int(number), "" if line.startswith(ROLLED) else text or "it did not say why")
                count -= 1
                end_s = loop.time() + limit_s
            else:
                noise = (noise + line + b"\n")[-_KEPT_BYTES:]


def _kill_group(pid: int) -> None:
    """End the process and its children; those that have ended already are no error."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
