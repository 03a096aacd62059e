"""A clock of a broker process that a test controls, over the FIFO of `clock.source=fifo:PATH`."""

import fcntl
import os
import struct
import termios
from pathlib import Path
from types import TracebackType

from tests.interop.waiting import wait_until

READ_TIMEOUT_S = 20.0


class FifoClock:
    """Controls one broker process at a time. A new process starts with the system time until the clock is set again."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self._path = path
        # Opened for reading too, because a FIFO without a reader cannot be opened for writing.
        self._fd = os.open(path, os.O_RDWR | os.O_NONBLOCK)

    @property
    def settings(self) -> tuple[str, ...]:
        """The command-line options for a broker with this clock."""
        return ("--set", f"clock.source=fifo:{self._path}")

    def advance_to(self, now_ms: int) -> None:
        """Advance to this time. Requests that reach the broker afterwards see the new time."""
        self._write(str(now_ms))

    def step(self, by_ms: int) -> None:
        """Step only the wall clock."""
        self._write(f"step {by_ms}")

    def _write(self, line: str) -> None:
        os.write(self._fd, line.encode() + b"\n")
        wait_until(lambda: self._unread_bytes() == 0, READ_TIMEOUT_S, "the broker has read the time")

    def _unread_bytes(self) -> int:
        unread_bytes: int = struct.unpack("i", fcntl.ioctl(self._fd, termios.FIONREAD, bytes(4)))[0]
        return unread_bytes

    def __enter__(self) -> "FifoClock":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        os.close(self._fd)
