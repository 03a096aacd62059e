"""The state of all brokers once per second, asked for only while there are readers, and shared by all of them."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable

import msgspec
import structlog

from latermq.errors import Busy, LaterMQError

EVERY_S = 1.0
_log = structlog.get_logger(__name__)


class Collector:
    """Asks for one state after the other while there are streams, and gives each stream the newest.

    A stream that is read slowly skips states. No stream delays another, and none keeps old states.
    """

    def __init__(self, collect: Callable[[], Awaitable[msgspec.Struct]], max_streams: int) -> None:
        """`collect` returns the current state."""
        self._collect = collect
        self._max_streams = max_streams
        self._streams: set[asyncio.Event] = set()
        self._task: asyncio.Task[None] | None = None
        self._event = b""
        self._number = 0
        self._is_closed = False

    @property
    def streams(self) -> int:
        """The number of open streams."""
        return len(self._streams)

    @property
    def collected(self) -> int:
        """How many states have been collected."""
        return self._number

    def check_room(self) -> None:
        """Raise Busy if there may be no further stream."""
        if len(self._streams) >= self._max_streams or self._is_closed:
            raise Busy(f"{len(self._streams)} event streams are open, the limit is http.max_streams", hint="Close some")

    async def stream(self) -> AsyncGenerator[bytes, None]:
        """Yield the newest state, encoded as a server-sent event, whenever there is a newer one than the last."""
        changed = asyncio.Event()
        self._streams.add(changed)
        seen = 0
        try:
            if self._task is None:
                self._event = b""  # of the last readers
                self._task = asyncio.create_task(self._run())
            while not self._is_closed:
                if self._event and seen != self._number:
                    seen = self._number
                    yield self._event
                changed.clear()
                if seen == self._number or not self._event:
                    await changed.wait()
        finally:
            self._streams.discard(changed)
            if not self._streams and self._task is not None:
                self._task.cancel()
                self._task = None

    def close(self) -> None:
        """End all streams."""
        self._is_closed = True
        self._announce()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due_s = loop.time() + EVERY_S
            name = "state"
            try:
                data = msgspec.json.encode(await self._collect())
            except LaterMQError as error:
                name, data = "trouble", msgspec.json.encode({"detail": error.message, "hint": error.hint})
            except Exception:  # a defect must not end the streams of all pages
                _log.exception("collecting the state failed")
                name, data = "trouble", msgspec.json.encode({"detail": "the console failed; see its log", "hint": ""})
            self._number += 1
            self._event = b"id: %d\nevent: %s\ndata: %s\n\n" % (self._number, name.encode(), data)
            self._announce()
            await asyncio.sleep(max(0.0, due_s - loop.time()))

    def _announce(self) -> None:
        for changed in self._streams:
            changed.set()
