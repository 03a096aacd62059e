"""The cost of a stage: wall and CPU time, bytes written, and memory, of this process and all that it started."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.bench.load import Figures

_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Usage:
    """What a tree of processes has used so far."""

    cpu_s: float
    written_bytes: int


@contextmanager
def measured(figures: Figures, stage: str) -> Iterator[None]:
    """Add the wall time, CPU time and written bytes of a block to the figures."""
    before, began_s = usage(), time.monotonic()
    yield
    took_s, after = time.monotonic() - began_s, usage()
    figures[f"{stage} (s)"] = took_s
    figures[f"{stage} (CPU s)"] = after.cpu_s - before.cpu_s
    figures[f"{stage}, written (MB)"] = (after.written_bytes - before.written_bytes) / 1e6


def usage() -> Usage:
    """The usage of this process and its descendants. Of those that have ended, only the CPU time is known."""
    cpu_s, written = 0.0, 0
    for pid in _tree(os.getpid()):
        fields = _stat(pid)
        cpu_s += sum(map(int, fields[11:15])) / _TICKS if fields else 0.0
        written += _written(pid)
    return Usage(cpu_s, written)


def peak_memory_bytes() -> dict[str, int]:
    """The largest resident memory so far, by command: of all processes of that command together."""
    found: dict[str, int] = {}
    for pid in _tree(os.getpid()):
        try:
            status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        except OSError:
            continue
        name = status["Name"].strip()
        found[name] = found.get(name, 0) + int(status.get("VmHWM", "0 kB").split()[0]) * 1024
    return found


def _tree(root: int) -> list[int]:
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (fields := _stat(int(entry.name))):
            parents[int(entry.name)] = int(fields[1])
    tree = [root]
    for pid in tree:
        tree.extend(child for child, parent in parents.items() if parent == pid)
    return tree


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the command. Empty if the process has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _written(pid: int) -> int:
    try:
        fields = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
    except OSError:
        return 0
    return int(fields["write_bytes"]) - int(fields["cancelled_write_bytes"])
