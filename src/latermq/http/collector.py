"""The state of all brokers: once per second while there are readers, who share it, and less often for alerts."""

import asyncio
import contextlib
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

    def __init__(
        self, collect: Callable[[], Awaitable[msgspec.Struct]], max_streams: int, watch_every_s: float | None = None
    ) -> None:
        """`collect` returns the current state, and is also called every `watch_every_s` without readers."""
        self._collect = collect
        self._max_streams = max_streams
        self._watch_every_s = watch_every_s
        self._first_reader = asyncio.Event()
        self._streams: set[asyncio.Event] = set()
        self._task: asyncio.Task[None] | None = None
        self._event = b""
        self._number = 0
        self._newest: msgspec.Struct | None = None
        self._newest_s = -EVERY_S
        self._turn = asyncio.Lock()
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

    async def newest(self) -> msgspec.Struct:
        """Return a state that is at most a second old. Requests at the same time share one."""
        loop = asyncio.get_running_loop()
        async with self._turn:
            if self._newest is None or loop.time() - self._newest_s >= EVERY_S:
                self._newest = None  # of a failed attempt there is nothing to show
                self._newest = await self._collect()
                self._newest_s = loop.time()
            return self._newest

    async def stream(self) -> AsyncGenerator[bytes, None]:
        """Yield the newest state, encoded as a server-sent event, whenever there is a newer one than the last."""
        changed = asyncio.Event()
        self._streams.add(changed)
        seen = 0
        try:
            if len(self._streams) == 1:
                self._event = b""  # of the last readers
                self._first_reader.set()
            self._begin()
            while not self._is_closed:
                if self._event and seen != self._number:
                    seen = self._number
                    yield self._event
                changed.clear()
                if seen == self._number or not self._event:
                    await changed.wait()
        finally:
            self._streams.discard(changed)
            if not self._streams and (self._watch_every_s is None or self._is_closed):
                self._end()

    def watch(self) -> None:
        """Begin to collect without readers, if that was asked for."""
        if self._watch_every_s is not None:
            self._begin()

    def close(self) -> None:
        """End all streams, and stop watching."""
        self._is_closed = True
        self._announce()
        if not self._streams:
            self._end()

    def _begin(self) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    def _end(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            begun_s = loop.time()
            self._first_reader.clear()
            name = "state"
            try:
                self._newest_s = -EVERY_S
                data = msgspec.json.encode(await self.newest())
            except LaterMQError as error:
                name, data = "trouble", msgspec.json.encode({"detail": error.message, "hint": error.hint})
            except Exception:  # a defect must not end the streams of all pages
                _log.exception("collecting the state failed")
                name, data = "trouble", msgspec.json.encode({"detail": "the console failed; see its log", "hint": ""})
            self._number += 1
            self._event = b"id: %d\nevent: %s\ndata: %s\n\n" % (self._number, name.encode(), data)
            self._announce()
            await self._pause(begun_s)

    async def _pause(self, begun_s: float) -> None:
        """Wait until the next state is due. A first reader gets one at once."""
        loop = asyncio.get_running_loop()
        if self._watch_every_s is not None and not self._streams:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._first_reader.wait(), max(0.0, begun_s + self._watch_every_s - loop.time()))
        else:
            await asyncio.sleep(max(0.0, begun_s + EVERY_S - loop.time()))

    def _announce(self) -> None:
        for changed in self._streams:
            changed.set()
