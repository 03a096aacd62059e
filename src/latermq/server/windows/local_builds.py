"""Local builds of windows without Spark: a child process of the broker, its reports and its time limit per window."""

import asyncio
import sys
from collections.abc import Callable, Sequence

from latermq.errors import LaterMQError
from latermq.processes import describe_exit, end_worker, start_worker

_READ_BYTES = 1 << 16
_KEPT_BYTES = 1 << 12  # of its other output, for the log
# Line prefixes that build_process.py prints: a window was built, or why it was not.
BUILT, FAILED = b"built ", b"failed "
ROOT_VARIABLE = "LATERMQ_PIPELINE_TIMELINE"  # passes the folder to the process

# Called with a window's number and the error, which is empty on success.
Report = Callable[[int, str], None]


class BuildTimedOut(LaterMQError):
    """The build of a window exceeded its time limit, and the process was killed."""


class LocalBuilds:
    """Starts the processes. Each runs in a separate session, so that its children can be killed with it."""

    def __init__(self, root_uri: str, address: Callable[[], str], max_rows: int) -> None:
        """`max_rows` is the limit of rows per window."""
        self._root_uri = root_uri
        self._max_rows = max_rows
        self._address = address

    def command(self, numbers: Sequence[int], limit_s: float) -> list[str]:
        program = [sys.executable, "-m", "latermq.pipeline.windows.build_process", "--broker", self._address()]
        limits = ["--limit-s", f"{limit_s:g}", "--max-rows", str(self._max_rows)]
        return [*program, *limits, *map(str, numbers)]

    async def build(self, numbers: Sequence[int], limit_s: float, report: Report) -> None:
        """Build an attempt of each of these windows. `told` is called for each in turn.

        An error belongs to the first window that was not reported. It is BuildTimedOut if that window took longer than
        `limit_s`. Later windows were not started.
        """
        process = await start_worker(
            self.command(numbers, limit_s),
            # Not on the command line, which every user of the machine can read: the URI may hold credentials.
            environment={ROOT_VARIABLE: self._root_uri},
        )
        try:
            await _listen(process, len(numbers), limit_s, report)
        finally:
            await end_worker(process)


async def _listen(process: asyncio.subprocess.Process, count: int, limit_s: float, report: Report) -> None:
    assert process.stdout is not None
    loop = asyncio.get_running_loop()
    unread = noise = b""
    end_s = loop.time() + limit_s
    while count:
        try:
            async with asyncio.timeout_at(end_s):
                read = await process.stdout.read(_READ_BYTES)
        except TimeoutError:
            raise BuildTimedOut(
                f"the build took longer than {limit_s:g} s", hint="pipeline.roll_timeout is the time limit"
            ) from None
        if not read:
            last = noise.decode(errors="replace").strip().splitlines()[-1:]
            code = await process.wait()
            raise LaterMQError(f"the build process exited: {' '.join([describe_exit(code), *last])}")
        *lines, unread = (unread + read).split(b"\n")
        unread = unread[-_KEPT_BYTES:]
        for line in lines:
            if line.startswith((BUILT, FAILED)):
                _, number, text = (*line.decode(errors="replace").split(" ", 2), "")[:3]
                report(int(number), "" if line.startswith(BUILT) else text or "unknown reason")
                count -= 1
                end_s = loop.time() + limit_s
            else:
                noise = (noise + line + b"\n")[-_KEPT_BYTES:]
