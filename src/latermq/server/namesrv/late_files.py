"""Small files that are replaced beside the event loop: the newest content counts, and one write runs at a time."""

import asyncio
from collections.abc import Callable

from latermq.errors import StoreError
from latermq.server.windows.daemon_threads import DaemonThreads
from latermq.store.files.disk import Disk

Done = Callable[[StoreError | None], None]  # told once, with what went wrong
Doing = Callable[[Callable[[], None], Done], None]  # does some work, now or beside, and tells what came of it


def at_once(work: Callable[[], None], done: Done) -> None:
    """Do the work here and now: for those who have no loop to hold up."""
    try:
        work()
    except StoreError as error:
        done(error)
    else:
        done(None)


class BesideTheLoop:
    """Does work in a thread and tells of it on the running loop."""

    def __init__(self, name: str) -> None:
        self._threads = DaemonThreads(1, name)

    def __call__(self, work: Callable[[], None], done: Done) -> None:
        loop = asyncio.get_running_loop()

        def told() -> None:
            try:
                at_once(work, lambda error: self._tell(loop, done, error))
            except Exception as error:  # whatever it is, who waits must hear of it
                self._tell(loop, done, StoreError(f"writing failed: {type(error).__name__}: {error}"))

        self._threads.submit(told)

    def stop(self) -> None:
        """Let what is under way end, and begin nothing more."""
        self._threads.shutdown(wait=True)

    @staticmethod
    def _tell(loop: asyncio.AbstractEventLoop, done: Done, error: StoreError | None) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(done, error)


class LateFile:
    """One file. A change that comes while another is written waits, and is written together with those after it."""

    def __init__(self, disk: Disk, path: str, content: Callable[[], bytes], doing: Doing = at_once) -> None:
        """`content` makes what is to be written, once for all changes that are written together."""
        self._disk = disk
        self._path = path
        self._make = content
        self._doing = doing
        self._writing = False
        self._waiting: list[Done] = []
        self._changed = False
        self.written = disk.read(path) or b""  # what is on disk

    @property
    def waiting(self) -> int:
        """How many changes are not on disk yet, apart from those that are being written."""
        return len(self._waiting)

    def change(self, done: Done) -> None:
        """Write the content soon. Where that fails, so does every change that came meanwhile: it may build on this."""
        self._changed = True
        self._waiting.append(done)
        if not self._writing:
            self._begin()

    def finish(self) -> None:
        """Write what was not written yet, now: for the end, when nothing is done beside any more."""
        if self._changed or self._writing:
            self._disk.replace(self._path, self._make())

    def _begin(self) -> None:
        told, self._waiting = self._waiting, []
        data = self._make()
        self._writing, self._changed = True, False

        def done(error: StoreError | None) -> None:
            self._writing = False
            failed: list[Done] = []
            if error is None:
                self.written = data
            else:
                failed, self._waiting, self._changed = self._waiting, [], False
            for tell in told + failed:
                tell(error)
            if self._waiting and not self._writing:
                self._begin()

        self._doing(lambda: self._disk.replace(self._path, data), done)
