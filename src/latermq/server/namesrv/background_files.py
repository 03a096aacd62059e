"""Small files that are replaced off the event loop. The newest content wins, and one write runs at a time."""

import asyncio
from collections.abc import Callable

from latermq.errors import StoreError
from latermq.server.windows.daemon_threads import DaemonThreads
from latermq.store.files.disk import Disk

Done = Callable[[StoreError | None], None]  # called once, with the error or None
RunWork = Callable[[Callable[[], None], Done], None]  # runs work here or on a thread, and reports the outcome


def at_once(work: Callable[[], None], done: Done) -> None:
    """Run the work synchronously, for callers without an event loop."""
    try:
        work()
    except StoreError as error:
        done(error)
    else:
        done(None)


class BackgroundThread:
    """Runs work on a thread and reports the outcome on the running loop."""

    def __init__(self, name: str) -> None:
        self._threads = DaemonThreads(1, name)

    def __call__(self, work: Callable[[], None], done: Done) -> None:
        loop = asyncio.get_running_loop()

        def run() -> None:
            try:
                at_once(work, lambda error: self._report(loop, done, error))
            except Exception as error:  # the waiting caller must receive every error
                self._report(loop, done, StoreError(f"writing failed: {type(error).__name__}: {error}"))

        self._threads.submit(run)

    def stop(self) -> None:
        """Wait for running work to end, and start no more."""
        self._threads.shutdown(wait=True)

    @staticmethod
    def _report(loop: asyncio.AbstractEventLoop, done: Done, error: StoreError | None) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(done, error)


class BackgroundFile:
    """One file. Changes that arrive during a write wait, and are then written together."""

    def __init__(self, disk: Disk, path: str, content: Callable[[], bytes], run_work: RunWork = at_once) -> None:
        """`content` returns the bytes to write. It is called once for all changes that are written together."""
        self._disk = disk
        self._path = path
        self._make = content
        self._run_work = run_work
        self._writing = False
        self._waiting: list[Done] = []
        self._changed = False
        self.written = disk.read(path) or b""  # the content on disk

    @property
    def waiting(self) -> int:
        """The number of changes that wait for the next write, without those that are being written."""
        return len(self._waiting)

    def change(self, done: Done) -> None:
        """Write the content soon. If the write fails, changes made meanwhile fail too: they may depend on it."""
        self._changed = True
        self._waiting.append(done)
        if not self._writing:
            self._begin()

    def finish(self) -> None:
        """Write unsaved content synchronously. Called at exit, when no thread writes any more."""
        if self._changed or self._writing:
            self._disk.replace(self._path, self._make())

    def _begin(self) -> None:
        waiting, self._waiting = self._waiting, []
        data = self._make()
        self._writing, self._changed = True, False

        def done(error: StoreError | None) -> None:
            self._writing = False
            failed: list[Done] = []
            if error is None:
                self.written = data
            else:
                failed, self._waiting, self._changed = self._waiting, [], False
            for report in waiting + failed:
                report(error)
            if self._waiting and not self._writing:
                self._begin()

        self._run_work(lambda: self._disk.replace(self._path, data), done)
