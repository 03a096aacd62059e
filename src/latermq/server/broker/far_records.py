"""Single records of far timers that have left the log: brought out of the timeline, off the loop."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future

import structlog

from latermq.errors import LaterMQError
from latermq.server.handlers.timers import Fetched
from latermq.server.windows.attempt_files import open_pipeline_root
from latermq.server.windows.daemon_threads import DaemonThreads

_log = structlog.get_logger(__name__)


class FarRecords:
    """Looks records up by entry and due time, one request after the other."""

    def __init__(self, root_uri: str, store_id: str) -> None:
        self._root_uri = root_uri
        self._store_id = store_id
        self._lookups = DaemonThreads(1, "latermq-lookups")
        self._is_stopped = False

    def fetch(self, places: Sequence[tuple[int, int]], when_done: Callable[[Fetched], None]) -> None:
        """Bring records out of the timeline; `when_done` hears of them on the loop, or what failed."""

        def look_up() -> dict[int, bytes]:
            root = open_pipeline_root(self._root_uri)
            from latermq.pipeline.timeline.lookup import find_records

            return find_records(root.uri, self._store_id, places)

        def done(future: Future[dict[int, bytes]]) -> None:
            if future.cancelled() or loop.is_closed():
                return  # nobody is there to hear of it
            error = future.exception()
            if error is None:
                told: Fetched = future.result()
            elif isinstance(error, LaterMQError):
                told = error
            else:
                _log.error("far record not found", exc_info=error)
                told = LaterMQError(f"the timeline cannot be read: {type(error).__name__}")
            loop.call_soon_threadsafe(tell, told)

        def tell(told: Fetched) -> None:
            if not self._is_stopped:  # else the store is closed, or about to be
                when_done(told)

        loop = asyncio.get_running_loop()
        self._lookups.submit(look_up).add_done_callback(done)

    def stop(self) -> None:
        """Look nothing more up. What is under way may hang: it is not waited for, and nobody hears of it."""
        self._is_stopped = True
        self._lookups.shutdown(wait=False)
