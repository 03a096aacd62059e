"""A clock that tests set through a FIFO: `clock.source=fifo:PATH`. Deliveries use it; sockets do not."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

from latermq.clock import Clock, SimulatedClock, SystemClock
from latermq.errors import ConfigError

_FIFO_PREFIX = "fifo:"


class ClockFifo:
    """Sets a clock from the lines of a FIFO.

    `1800000000000` advances the time to this epoch millisecond. `step 60000` moves only the wall clock, by this many
    milliseconds.
    """

    def __init__(self, path: Path, clock: SimulatedClock) -> None:
        self._clock = clock
        # Open for reading and writing, so that the FIFO does not reach its end when a writer closes it.
        self._fd = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        self._rest = b""

    def start(self, on_change: Callable[[], None]) -> None:
        """Start to read the FIFO."""
        asyncio.get_running_loop().add_reader(self._fd, self._read, on_change)

    def _read(self, on_change: Callable[[], None]) -> None:
        *lines, self._rest = (self._rest + os.read(self._fd, 65_536)).split(b"\n")
        for line in lines:
            word, _, number = line.decode().partition(" ")
            if word == "step":
                self._clock.step(int(number))
            elif word:
                self._clock.advance(int(word) - self._clock.now_ms())
        if lines:
            on_change()

    def stop(self) -> None:
        """Close the FIFO."""
        asyncio.get_running_loop().remove_reader(self._fd)
        os.close(self._fd)


def open_clock(source: str) -> tuple[Clock, ClockFifo | None]:
    """The clock that `clock.source` names, and its FIFO if it has one."""
    if source == "system":
        return SystemClock(), None
    path = Path(source.removeprefix(_FIFO_PREFIX))
    if not source.startswith(_FIFO_PREFIX) or not path.is_fifo():
        raise ConfigError(f"clock.source is {source!r}", hint="Write system, or fifo:PATH with the path of a FIFO")
    clock = SimulatedClock(SystemClock().now_ms(), boot_id="")  # the next process cannot continue from its uptime
    return clock, ClockFifo(path, clock)
