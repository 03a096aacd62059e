"""Keeps the broker supplied with windows: looks for attempts, makes one itself where Spark is late, and reads them.

Everything that blocks runs on a thread of its own; the roll without Spark is a process of its own (invariant 9).
"""

import asyncio
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import structlog

from latermq.broker.broker import Broker
from latermq.errors import ConfigError, LaterMQError
from latermq.message.names import TIMER_TOPIC
from latermq.server.pending_service import Fetched
from latermq.server.processes import describe_exit
from latermq.timer.windows import Window, WindowRows

if TYPE_CHECKING:
    import pyarrow as pa

    from latermq.pipeline.attempts import Attempt
    from latermq.pipeline.root import Root

_log = structlog.get_logger(__name__)
_ROLLED_AT_ONCE = 16  # by one process, whose start takes longer than a small roll
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 30.0


class WindowKeeper:
    """Its `tick` is called a few times a second on the loop; one thing at a time is under way beside it."""

    def __init__(self, broker: Broker, *, root_uri: str, address: str, on_fed: Callable[[], None]) -> None:
        self._broker = broker
        self._far = broker.far
        self._root_uri = root_uri
        self._address = address
        self._on_fed = on_fed
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="latermq-windows")
        self._lookups = ThreadPoolExecutor(max_workers=1, thread_name_prefix="latermq-lookups")
        self._under_way: asyncio.Task[None] | None = None
        self._rolling: asyncio.subprocess.Process | None = None
        self._reading: tuple[int, str, Iterator[WindowRows]] | None = None
        self._bad: set[tuple[int, str]] = set()  # attempts that turned out to be damaged
        self._pause_s = 0.0
        self._not_before_s = 0.0
        self.failure = ""

    def tick(self) -> None:
        """Start what is to be done next, if nothing is under way."""
        if self._under_way is not None and not self._under_way.done():
            return
        loop = asyncio.get_running_loop()
        if loop.time() < self._not_before_s:
            return
        now_ms = self._broker.clock.now_ms()
        wanted = self._far.windows.wants(now_ms)
        if wanted is not None:
            self._under_way = loop.create_task(self._guarded(self._feed(wanted)))
            return
        window = next((one for one in self._far.windows.waiting() if not one.attempt and self._is_due(one)), None)
        if window is not None:
            self._under_way = loop.create_task(self._guarded(self._supply(window)))
            return
        names = self._far.names_to_keep()
        if names is not None:
            self._under_way = loop.create_task(self._guarded(self._beside(self._far.keep_names, names)))

    def _is_due(self, window: Window) -> bool:
        """Whether an attempt is to be chosen now: a driver offers one, or it is time to have one."""
        queue = self._broker.store.find_queue(TIMER_TOPIC, 0)
        if queue is None or self._broker.store.flushed_end(queue) <= window.cut_entry:
            return False  # a cut that a power cut may take back has no window
        return window.number in self._far.offered or self._is_late(window)

    async def _guarded(self, step: Any) -> None:
        """Nothing that fails here may stop the broker: near timers go on, and it is tried again."""
        try:
            await step
        except Exception as error:
            told = error.message if isinstance(error, LaterMQError) else f"{type(error).__name__}: {error}"
            if told != self.failure:
                self.failure = told
                _log.error("windows wait", reason=told, hint=getattr(error, "hint", ""))
            self._pause_s = min(max(_FIRST_PAUSE_S, 2 * self._pause_s), _LONGEST_PAUSE_S)
            self._not_before_s = asyncio.get_running_loop().time() + self._pause_s
            return
        if self.failure:
            self.failure = ""
            _log.info("windows go on")
        self._pause_s = 0.0

    async def _beside(self, work: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._worker, work, *arguments)

    # Choosing an attempt

    async def _supply(self, window: Window) -> None:
        attempt = await self._beside(self._find, window, self._far.offered.get(window.number, ""))
        if not attempt and self._is_late(window):
            await self._roll(window)
            attempt = await self._beside(self._find, window, "")
        if attempt:
            await self._choose(window, attempt)
        else:
            self._far.offered.pop(window.number, None)

    def _is_late(self, window: Window) -> bool:
        """Whether Spark is not waited for any longer."""
        config = self._broker.config.pipeline
        if not config.enabled or config.roll_on == "local":
            return True
        return self._broker.clock.now_ms() >= window.from_ms - config.roll_deadline

    async def _choose(self, window: Window, attempt: str) -> None:
        self._far.choose(window.number, attempt)
        await self._beside(self._far.save_attempts)
        self._far.windows.restart(window.number, attempt)
        _log.info("window chosen", window=window.number, attempt=attempt)

    def _find(self, window: Window, offered: str) -> str:
        """The name of a whole attempt of this window, the offered one first; empty where there is none."""
        from latermq.pipeline.attempts import attempts_of

        root = self._root()
        store_id = self._broker.store.store_id
        names = [name for name in attempts_of(root, store_id, window.number) if name != offered]
        for name in [offered, *names] if offered else names:
            if (window.number, name) in self._bad:
                continue
            try:
                self._open(root, window, name)
            except LaterMQError as error:
                self._bad.add((window.number, name))
                _log.error("window attempt is damaged", window=window.number, attempt=name, reason=error.message)
                continue
            return name
        return ""

    def _root(self) -> "Root":
        try:
            from latermq.pipeline.root import open_root
        except ImportError as error:
            raise ConfigError(
                f"windows cannot be read without {error.name}",
                hint="Install latermq with its pipeline: latermq[pipeline]",
            ) from None
        return open_root(self._root_uri)

    def _open(self, root: "Root", window: Window, name: str) -> "Attempt":
        """An attempt that is whole and of this very window."""
        from latermq.pipeline import window as windows
        from latermq.pipeline.attempts import check_attempt, read_attempt

        store_id = self._broker.store.store_id
        attempt = read_attempt(root, store_id, window.number, name)
        own = windows.Window(store_id, window.number, window.cut_entry, window.from_ms, window.until_ms)
        if attempt.window != own:
            raise LaterMQError(f"it is of another window than {own}")
        check_attempt(root, attempt)
        return attempt

    # Rolling without Spark

    async def _roll(self, window: Window) -> None:
        """Make an attempt in a process of its own."""
        numbers = [one.number for one in self._far.windows.waiting() if not one.attempt and self._is_due(one)]
        numbers = numbers[numbers.index(window.number) :][:_ROLLED_AT_ONCE]
        _log.warning("windows rolled without Spark", windows=numbers, due_from_ms=window.from_ms)
        command = [
            sys.executable, "-m", "latermq.pipeline.roll_process", "--broker", self._address, "--root", self._root_uri,
            *map(str, numbers),
        ]  # fmt: skip
        self._rolling = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        _, told = await self._rolling.communicate()
        code, self._rolling = self._rolling.returncode or 0, None
        if code:
            last = told.decode(errors="replace").strip().splitlines()[-1:]
            raise LaterMQError(f"window {window.number} could not be rolled: {describe_exit(code)}, {' '.join(last)}")

    # Reading

    async def _feed(self, window: Window) -> None:
        """Read the next piece of a window and give it to the stage."""
        number, attempt = window.number, window.attempt
        try:
            rows = await self._beside(self._read, window, attempt)
        except LaterMQError as error:
            self._reading = None
            self._bad.add((number, attempt))
            # Others have the same rows, and one more can always be made.
            self._far.windows.restart(number, "")
            raise LaterMQError(f"attempt {attempt} of window {number} cannot be read: {error.message}") from error
        self._far.windows.feed(number, rows)
        self._on_fed()

    def _read(self, window: Window, attempt: str) -> WindowRows | None:
        if self._reading is None or self._reading[:2] != (window.number, attempt):
            root = self._root()
            self._reading = (window.number, attempt, _pieces(root, self._open(root, window, attempt)))
        rows = next(self._reading[2], None)
        if rows is None:
            self._reading = None
        return rows

    # Single records

    def fetch(self, places: Sequence[tuple[int, int]], when_done: Callable[[Fetched], None]) -> None:
        """Bring records of far timers out of the timeline; `when_done` hears of them on the loop, or what failed."""

        def look_up() -> dict[int, bytes]:
            from latermq.pipeline.lookup import find_records

            return find_records(self._root().uri, self._broker.store.store_id, places)

        def done(future: Future[dict[int, bytes]]) -> None:
            error = future.exception()
            if error is None:
                told: Fetched = future.result()
            elif isinstance(error, LaterMQError):
                told = error
            else:
                _log.error("far record not found", exc_info=error)
                told = LaterMQError(f"the timeline cannot be read: {type(error).__name__}")
            loop.call_soon_threadsafe(when_done, told)

        loop = asyncio.get_running_loop()
        self._lookups.submit(look_up).add_done_callback(done)

    async def stop(self) -> None:
        """End what is under way."""
        if self._rolling is not None:
            self._rolling.kill()
        if self._under_way is not None:
            self._under_way.cancel()
            await asyncio.gather(self._under_way, return_exceptions=True)
        for pool in (self._worker, self._lookups):
            pool.shutdown(wait=True, cancel_futures=True)


def _pieces(root: "Root", attempt: "Attempt") -> Iterator[WindowRows]:
    from latermq.pipeline.attempts import read_rows

    for table in read_rows(root, attempt):
        yield _rows(table)


def _rows(table: "pa.Table") -> WindowRows:
    """A row group as the stage takes it: the records of a column already lie end to end."""
    record = table.column("record").combine_chunks()
    _, offsets, data = record.buffers()
    ends = np.frombuffer(offsets, np.int32)[record.offset : record.offset + len(record) + 1].astype(np.int64)
    raw = bytes(memoryview(data)[int(ends[0]) : int(ends[-1])]) if len(record) else b""
    entries, dues = (table.column(name).to_numpy().astype(np.int64) for name in ("entry_offset", "due_ms"))
    return WindowRows(entries, dues, np.diff(ends), raw)
