"""Background threads of the log: one syncs it, the other allocates disk space and memory ahead of the writer.

The log is synced when senders wait for it, and also at a fixed interval.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from functools import partial

from latermq.errors import StoreError


class _Worker:
    """A thread that runs on request. Requests that arrive during a run lead to one more run."""

    def __init__(self) -> None:
        self._request = threading.Event()
        self._is_stopping = False

    def _start(self, name: str, run: Callable[[], None]) -> None:
        self._thread = threading.Thread(target=run, name=name, daemon=True)
        self._thread.start()

    def request(self) -> None:
        """Run as soon as the current run is done."""
        self._request.set()

    def stop(self) -> None:
        """Stop the thread after its last run."""
        self._is_stopping = True
        self._request.set()
        self._thread.join()


class Flusher(_Worker):
    """Runs `flush` on a separate thread. One sync serves all requests that arrived during the previous sync."""

    def __init__(self, flush: Callable[[], int], *, every_s: float) -> None:
        super().__init__()
        self._flush = flush
        self._every_s = every_s

    def start(self, *, on_flushed: Callable[[int], None], on_failed: Callable[[BaseException], None]) -> None:
        """Start the thread. Both callbacks run on the loop."""
        loop = asyncio.get_running_loop()
        self._start("latermq-flush", partial(self._run, loop, on_flushed, on_failed))

    def _run(
        self,
        loop: asyncio.AbstractEventLoop,
        on_flushed: Callable[[int], None],
        on_failed: Callable[[BaseException], None],
    ) -> None:
        while not self._is_stopping:
            self._request.wait(self._every_s)
            self._request.clear()
            try:
                flushed = self._flush()
            except BaseException as error:
                # After a failed sync the state on disk is unknown, and a further sync could falsely report success.
                loop.call_soon_threadsafe(on_failed, error)
                return
            loop.call_soon_threadsafe(on_flushed, flushed)


class Preparer(_Worker):
    """Runs `prepare` on a separate thread on request. It ignores store errors: the writer meets and reports them.

    It exists before the store, which sends the requests, and is started with the store's `prepare`.
    """

    def start(self, prepare: Callable[[], None]) -> None:
        """Start the thread, with a first run."""
        self._start("latermq-prepare", partial(self._run, prepare))
        self.request()

    def _run(self, prepare: Callable[[], None]) -> None:
        while not self._is_stopping:
            self._request.wait()
            self._request.clear()
            if not self._is_stopping:
                with contextlib.suppress(StoreError):
                    prepare()
