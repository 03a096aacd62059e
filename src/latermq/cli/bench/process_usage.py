"""CPU time and memory of a process, and the process that listens on a port, from /proc on Linux."""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_LISTENING = "0A"  # the state of a listening socket in /proc/net/tcp
_PROC = Path("/proc")


@dataclass(frozen=True)
class Memory:
    """Resident memory. Only `resident_bytes` includes pages of mapped files, which the kernel can reclaim."""

    resident_bytes: int
    anonymous_bytes: int


def cpu_s(pid: int) -> float | None:
    """User and system CPU time of all threads of a process, including ended ones; None if it is not readable."""
    with contextlib.suppress(OSError):
        # The numbers follow the command's name, which is in parentheses and may contain any character.
        fields = (_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
        user_ticks, system_ticks = fields[11:13]
        return (int(user_ticks) + int(system_ticks)) / _TICKS_PER_S
    return None


def memory(pid: int) -> Memory | None:
    """Current resident memory of a process; None if it is not readable."""
    with contextlib.suppress(OSError):
        lines = (_PROC / str(pid) / "status").read_text(errors="replace").splitlines()
        sizes = {name: rest.split()[0] for name, _, rest in (line.partition(":") for line in lines) if rest.split()}
        return Memory(int(sizes.get("VmRSS", 0)) * 1024, int(sizes.get("RssAnon", 0)) * 1024)
    return None


def listener_pid(port: int) -> int | None:
    """The process that listens on a TCP port, if this user may read its open files."""
    sockets = {f"socket:[{inode}]" for inode in _listening_inodes(port)}
    if not sockets:
        return None
    for folder in _PROC.iterdir():
        if folder.name.isdigit() and not sockets.isdisjoint(_open_files(folder)):
            return int(folder.name)
    return None


def _listening_inodes(port: int) -> Iterator[str]:
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in (_PROC / "net" / table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                    yield fields[9]


def _open_files(process: Path) -> Iterator[str]:
    with contextlib.suppress(OSError):
        for entry in (process / "fd").iterdir():
            with contextlib.suppress(OSError):
                yield str(entry.readlink())
