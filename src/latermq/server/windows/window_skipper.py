"""Skipping of a window: reads all readable rows off the loop and turns them into dead letters piece by piece."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Protocol, TypeVar

import numpy as np
import structlog

from latermq.broker.timers.window_skips import LETTERS_AT_ONCE, WindowSkips
from latermq.errors import LaterMQError, StoreError
from latermq.timer.far.windows import Window, WindowRows
from latermq.timer.steps import Steps

T = TypeVar("T")
_STEPS_AT_ONCE = 200
_log = structlog.get_logger(__name__)

# Runs blocking work off the loop.
OffLoop = Callable[[Callable[[], WindowRows | None]], Awaitable[WindowRows | None]]


class Salvage(Protocol):
    """Access to the readable rows of a window. All methods block."""

    def names(self, window: Window) -> list[str]: ...

    def proven(self, window: Window, name: str) -> Iterator[WindowRows]: ...

    def salvaged(self, window: Window, troubles: list[str]) -> Iterator[WindowRows]: ...


class WindowSkipper:
    """Skips one window at a time. A run that fails or crashes is started again and repeats no dead letter."""

    def __init__(
        self, skips: WindowSkips, files: Salvage, off_loop: OffLoop, check: Callable[[WindowRows], None]
    ) -> None:
        """`check` rejects rows of an attempt that contradict the log."""
        self._check = check
        self._skips = skips
        self._files = files
        self._off_loop = off_loop

    async def skip(self, window: Window, names: list[str], *, is_last_try: bool) -> None:
        """Write dead letters for all rows that can be found, first from these attempts. Then T may pass the window.

        Before the last try, a read error fails the run: the error may be temporary, and a letter that was written
        without its body cannot be undone.
        """
        letters = 0
        troubles: list[str] = []
        is_whole = False
        for name in names:
            count, is_whole = await self._bury_attempt(window, name)
            letters += count
            if is_whole:
                break
        if not is_whole:
            letters += await self._bury_salvaged(window, troubles)
        letters += await self._bury_log(window)
        if troubles and not is_last_try:
            raise StoreError(f"not all of window {window.number} can be read: {troubles[0]}", hint="LaterMQ retries it")
        unread = await self._bury_names(window)
        self._skips.finish(window, letters + unread, unread)
        _log.warning("window skipped", window=window.number, dead_letters=letters + unread, without_body=unread)

    async def _bury_attempt(self, window: Window, name: str) -> tuple[int, bool]:
        """The number of dead letters from an attempt, and whether it was read to its end."""
        letters = 0
        pieces = self._files.proven(window, name)
        while True:
            try:
                rows = await self._off_loop(lambda: next(pieces, None))
                if rows is not None:
                    self._check(rows)
            # Unreadable attempts are the reason for the skip. Other sources may have the missing rows.
            except (LaterMQError, OSError, ValueError) as error:
                _log.warning("window attempt not read", window=window.number, attempt=name, reason=str(error))
                return letters, False
            if rows is None:
                return letters, True
            letters += await self._bury(window, rows, proven=True)

    async def _bury_salvaged(self, window: Window, troubles: list[str]) -> int:
        letters = 0
        pieces = self._files.salvaged(window, troubles)
        while True:
            try:
                rows = await self._off_loop(lambda: next(pieces, None))
            # If the folder itself cannot be read, the log and the saved names remain.
            except (LaterMQError, OSError, ValueError) as error:
                troubles.append(error.message if isinstance(error, LaterMQError) else str(error))
                return letters
            if rows is None:
                return letters
            letters += await self._bury(window, rows, proven=False)

    async def _bury_log(self, window: Window) -> int:
        letters = 0
        start: int | None = 0
        while start is not None:
            rows, start = self._skips.rows_from_log(window, start)
            letters += await self._bury(window, rows, proven=False)
            await asyncio.sleep(0)
        return letters

    async def _bury_names(self, window: Window) -> int:
        letters = 0
        start: bytes | None = b""
        while start is not None:
            rows, start = await _in_steps(self._skips.rows_from_names(window, start))
            for part in slices(rows, LETTERS_AT_ONCE, self._skips.slice_bytes):
                letters += self._skips.bury(window, part, ", and its body could not be read")
                await asyncio.sleep(0)
        return letters

    async def _bury(self, window: Window, rows: WindowRows, *, proven: bool) -> int:
        """Write dead letters in small parts, so that the loop serves other work in between."""
        letters = 0
        for part in slices(rows, LETTERS_AT_ONCE, self._skips.slice_bytes):
            waiting = part if proven else await _in_steps(self._skips.pending_rows(part))
            letters += self._skips.bury(window, waiting)
            await asyncio.sleep(0)
        return letters


async def _in_steps(steps: Steps[T]) -> T:
    """Run all steps, about 4 ms at a time."""
    taken = 0
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            result: T = stop.value
            return result
        taken += 1
        if taken % _STEPS_AT_ONCE == 0:
            await asyncio.sleep(0)


def slices(rows: WindowRows, most: int, max_bytes: int) -> Iterator[WindowRows]:
    """The same rows in pieces of at most `most` rows and `max_bytes` bytes, but at least one row each."""
    ends = np.cumsum(rows.sizes)
    start = 0
    while start < len(rows.entries):
        before = int(ends[start - 1]) if start else 0
        end = min(start + most, int(np.searchsorted(ends, before + max_bytes, side="right")))
        end = max(end, start + 1)
        part = slice(start, end)
        yield WindowRows(rows.entries[part], rows.dues[part], rows.sizes[part], rows.raw[before : int(ends[end - 1])])
        start = end
