"""Lookups of single far-timer records that have left the log. The timeline is read off the loop."""

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
    """Looks up records by entry and due time, one request after another."""

    def __init__(self, root_uri: str, store_id: str) -> None:
        self._root_uri = root_uri
        self._store_id = store_id
        self._lookups = DaemonThreads(1, "latermq-lookups")
        self._is_stopped = False

    def fetch(self, places: Sequence[tuple[int, int]], when_done: Callable[[Fetched], None]) -> None:
        """Read records from the timeline. `when_done` runs on the loop with the records or the error."""

        def look_up() -> dict[int, bytes]:
            root = open_pipeline_root(self._root_uri)
            from latermq.pipeline.timeline.lookup import find_records

            return find_records(root.uri, self._store_id, places)

        def done(future: Future[dict[int, bytes]]) -> None:
            if future.cancelled() or loop.is_closed():
                return  # there is no loop to receive the result
            error = future.exception()
            if error is None:
                result: Fetched = future.result()
            elif isinstance(error, LaterMQError):
                result = error
            else:
                _log.error("far record not found", exc_info=error)
                result = LaterMQError(f"the timeline cannot be read: {type(error).__name__}")
            loop.call_soon_threadsafe(deliver, result)

        def deliver(result: Fetched) -> None:
            if not self._is_stopped:  # otherwise the store is closed, or about to be
                when_done(result)

        loop = asyncio.get_running_loop()
        self._lookups.submit(look_up).add_done_callback(done)

    def stop(self) -> None:
        """Start no further lookups. A running one may hang, so this does not wait for it and drops its result."""
        self._is_stopped = True
        self._lookups.shutdown(wait=False)
