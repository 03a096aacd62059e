"""The time of a broker process in the hand of a test: a FIFO that `clock.source=fifo:PATH` reads."""

import fcntl
import os
import struct
import termios
from pathlib import Path
from types import TracebackType

from tests.interop.waiting import wait_until

READ_TIMEOUT_S = 20.0


class FedClock:
    """Feeds one broker process at a time; a new one starts with the system's time and must be told again."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self._path = path
        # For reading as well, so that it can be opened before the broker is there.
        self._fd = os.open(path, os.O_RDWR | os.O_NONBLOCK)

    @property
    def settings(self) -> tuple[str, ...]:
        """The options with which a broker goes by this clock."""
        return ("--set", f"clock.source=fifo:{self._path}")

    def pass_until(self, now_ms: int) -> None:
        """Let time pass until then. Whatever reaches the broker afterwards finds the new time."""
        self._feed(str(now_ms))

    def step(self, by_ms: int) -> None:
        """Set the wall clock alone."""
        self._feed(f"step {by_ms}")

    def _feed(self, line: str) -> None:
        os.write(self._fd, line.encode() + b"\n")
        wait_until(lambda: self._unread_bytes() == 0, READ_TIMEOUT_S, "the broker has read the time")

    def _unread_bytes(self) -> int:
        waiting: int = struct.unpack("i", fcntl.ioctl(self._fd, termios.FIONREAD, bytes(4)))[0]
        return waiting

    def __enter__(self) -> "FedClock":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        os.close(self._fd)
