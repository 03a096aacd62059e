"""Background threads of the log: one syncs it, the other allocates disk space and memory ahead of the writer.

The log is synced when senders wait for it, and also at a fixed interval.
"""

import asyncio
import contextlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable

from latermq.errors import StoreError


class _Worker(ABC):
    """A thread that runs on request. Requests that arrive during a run lead to one more run."""

    def __init__(self, name: str) -> None:
        self._wanted = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def request(self) -> None:
        """Run as soon as the current run is done."""
        self._wanted.set()

    def stop(self) -> None:
        """Stop the thread after its last run."""
        self._stopping = True
        self._wanted.set()
        self._thread.join()

    @abstractmethod
    def _run(self) -> None:
        """Run until `_stopping`."""


class Flusher(_Worker):
    """Runs `flush` on a separate thread. One sync serves all requests that arrived during the previous sync."""

    def __init__(
        self,
        flush: Callable[[], int],
        *,
        every_s: float,
        on_flushed: Callable[[int], None],
        on_failed: Callable[[BaseException], None],
    ) -> None:
        self._flush = flush
        self._every_s = every_s
        self._on_flushed = on_flushed
        self._on_failed = on_failed
        self._loop = asyncio.get_running_loop()
        super().__init__("latermq-flush")

    def _run(self) -> None:
        while not self._stopping:
            self._wanted.wait(self._every_s)
            self._wanted.clear()
            try:
                flushed = self._flush()
            except BaseException as error:
                # After a failed sync the state on disk is unknown, and a further sync could falsely report success.
                self._loop.call_soon_threadsafe(self._on_failed, error)
                return
            self._loop.call_soon_threadsafe(self._on_flushed, flushed)


class Preparer(_Worker):
    """Runs `prepare` on a separate thread on request. It ignores store errors: the writer meets and reports them."""

    def __init__(self, prepare: Callable[[], None]) -> None:
        self._prepare = prepare
        super().__init__("latermq-prepare")
        self.request()

    def _run(self) -> None:
        while not self._stopping:
            self._wanted.wait()
            self._wanted.clear()
            if not self._stopping:
                with contextlib.suppress(StoreError):
                    self._prepare()
