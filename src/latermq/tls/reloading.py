"""A TLS context that is rebuilt when its files change. Open connections keep the one that they began with."""

import asyncio
import ssl
from collections.abc import Callable, Sequence
from pathlib import Path

import structlog

from latermq.tls.contexts import reason_of

Stamps = tuple[tuple[int, int, int] | None, ...]
_log = structlog.get_logger(__name__)


def stamps_of(files: Sequence[str]) -> Stamps:
    """What tells a changed file from an unchanged one. It follows links. None stands for a file that is missing."""
    stamps: list[tuple[int, int, int] | None] = []
    for file in files:
        try:
            status = Path(file).stat()
        except OSError:
            stamps.append(None)
        else:
            stamps.append((status.st_ino, status.st_size, status.st_mtime_ns))
    return tuple(stamps)


class ReloadedContext:
    """The current context. `watch` and `close` are called on the loop, at most once each."""

    def __init__(self, files: Sequence[str], build: Callable[[], ssl.SSLContext]) -> None:
        """`build` reads the files. Raises what it raises."""
        self._files = files
        self._build = build
        self._loaded = stamps_of(files)
        self._seen = self._loaded
        self._broken: Stamps | None = None
        self._task: asyncio.Task[None] | None = None
        self.current = build()
        self.reloads = 0
        self.failed_reloads = 0

    def watch(self, every_s: float) -> None:
        """Look for changes at this interval."""
        self._task = asyncio.create_task(self._watch(every_s))

    async def close(self) -> None:
        """Stop looking for changes."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def check(self) -> bool:
        """Build the context again if the files have changed, and are complete. Reads the disk."""
        stamps = stamps_of(self._files)
        # A certificate and its key are two files: what has just changed may not fit together yet.
        is_settled, self._seen = stamps == self._seen, stamps
        if stamps in (self._loaded, self._broken) or not is_settled:
            return False
        try:
            context = self._build()
        except OSError as error:
            self._broken = stamps
            self.failed_reloads += 1
            _log.error(
                "the new certificate is not used",
                files=list(self._files),
                reason=reason_of(error),
                hint="Clients still get the old one: put PEM files without a password there that belong together",
            )
            return False
        if stamps_of(self._files) != stamps:
            return False  # changed while they were read
        self.current = context
        self._loaded, self._broken = stamps, None
        self.reloads += 1
        _log.info("certificate reloaded", files=list(self._files))
        return True

    async def _watch(self, every_s: float) -> None:
        while True:
            await asyncio.sleep(every_s)
            await asyncio.to_thread(self.check)
