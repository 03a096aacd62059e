"""Finds processes that a test session started and did not end, including detached ones."""

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# Children inherit the environment, so this also finds daemons without a parent, but no process of another session.
MARK = "LATERMQ_TEST_SESSION"
GRACE_S = 5.0


@dataclass(frozen=True)
class Leftover:
    pid: int
    command: str
    started_by: str

    def __str__(self) -> str:
        return f"pid {self.pid}, started by {self.started_by}: {self.command}"


def mark_session() -> str:
    """Mark this process and all its future children. Return the mark."""
    mark = f"{os.getpid()}-{time.monotonic_ns()}"
    os.environ[MARK] = mark
    return mark


def leftovers(mark: str) -> list[Leftover]:
    return [found for pid in _pids() if (found := _marked_process(pid, mark)) is not None]


def leftovers_after_grace(mark: str, grace_s: float = GRACE_S) -> list[Leftover]:
    """Return the processes that still run after terminated processes had time to end."""
    deadline_s = time.monotonic() + grace_s
    while (found := leftovers(mark)) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    return found


def kill_all(found: list[Leftover]) -> None:
    for leftover in found:
        try:
            os.kill(leftover.pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def _pids() -> Iterator[int]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            yield int(entry.name)


def _marked_process(pid: int, mark: str) -> Leftover | None:
    folder = Path("/proc") / str(pid)
    try:
        variables = (folder / "environ").read_bytes().split(b"\0")
        command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return None  # it has just ended, or belongs to another user
    # A zombie has no environment any more. Python's own tracker of shared memory ends with this process.
    if f"{MARK}={mark}".encode() not in variables or "multiprocessing.resource_tracker" in command:
        return None
    started_by = next((v for v in variables if v.startswith(b"PYTEST_CURRENT_TEST=")), b"=no test")
    return Leftover(pid, command, started_by.partition(b"=")[2].decode(errors="replace"))
