"""Threads that work for the log: one syncs it, for senders that wait and every so often for everybody; one takes disk
space and memory before the writer needs them."""

import asyncio
import contextlib
import threading
from collections.abc import Callable

from latermq.errors import StoreError


class Flusher:
    """Runs `flush` on a thread of its own. One sync serves everyone who asked while the one before was running."""

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
        self._wanted = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="latermq-flush", daemon=True)
        self._thread.start()

    def request(self) -> None:
        """Sync as soon as the one under way is done."""
        self._wanted.set()

    def stop(self) -> None:
        """End the thread after its last sync."""
        self._stopping = True
        self._wanted.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping:
            self._wanted.wait(self._every_s)
            self._wanted.clear()
            try:
                flushed = self._flush()
            except BaseException as error:
                # After a failed sync nobody knows what is on disk: no further one may pretend that all is well.
                self._loop.call_soon_threadsafe(self._on_failed, error)
                return
            self._loop.call_soon_threadsafe(self._on_flushed, flushed)


class Preparer:
    """Runs `prepare` on a thread of its own when it is asked to. What fails the writer meets, and tells, itself."""

    def __init__(self, prepare: Callable[[], None]) -> None:
        self._prepare = prepare
        self._wanted = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="latermq-prepare", daemon=True)
        self._thread.start()
        self.request()

    def request(self) -> None:
        """Prepare as soon as the one under way is done."""
        self._wanted.set()

    def stop(self) -> None:
        """End the thread."""
        self._stopping = True
        self._wanted.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping:
            self._wanted.wait()
            self._wanted.clear()
            if not self._stopping:
                with contextlib.suppress(StoreError):
                    self._prepare()
