"""Keeps the broker supplied with windows: looks for attempts, makes one itself where Spark is late, and reads them.

Reading what is played, checking what is to be, and rolling are lanes of their own, each with its own threads or
processes and bounded by itself. What blocks or fails in one lane, or for one window, holds up no other.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

import structlog

from latermq.broker.broker import Broker
from latermq.errors import CorruptStore, LaterMQError, StoreError
from latermq.message.names import TIMER_TOPIC
from latermq.server.attempt_files import AttemptFiles
from latermq.server.backoff import Backoff
from latermq.server.local_rolls import LocalRolls, RollTimedOut, Told
from latermq.server.window_care import Care, Reading
from latermq.timer.windows import Window, WindowRows

_log = structlog.get_logger(__name__)
T = TypeVar("T")
FEEDS_AT_ONCE = 4
CHECKS_AT_ONCE = 2
ROLLS_AT_ONCE = 2
_ROLLED_AT_ONCE = 16  # by one process, whose start takes longer than a small roll
_SLOW_SHARE = 8  # of pipeline.roll_deadline; a roll that takes longer keeps no other waiting
_MOST_DOUBLINGS = 3  # of the time that a roll may take: a large window is not killed for ever
_TRIES = 3  # to read an attempt, before another one is looked for or made
_MOST_UNREAD = 4  # attempts of a window that cannot be read; then no further one is made
_LOOK_AGAIN_S = 30.0
_READ_LIMIT_S = 120.0  # for one piece; what hangs for longer is read anew by another thread
# Of each lane: a thread that hangs in a read cannot be ended, and the others go on without it.
_THREADS = 16


class Files(Protocol):
    """What the keeper needs of the attempts' files; all of it blocks."""

    def names(self, window: Window) -> list[str]: ...

    def check(self, window: Window, name: str) -> int: ...

    def pieces(self, window: Window, name: str, *, was_checked: bool) -> tuple[int, Iterator[WindowRows]]: ...


class Rolls(Protocol):
    """The roll without Spark."""

    async def roll(self, numbers: Sequence[int], limit_s: float, told: Told) -> None: ...


@dataclass
class _Rolling:
    numbers: list[int]
    is_retry: bool
    progress_s: float


class WindowKeeper:
    """Its `tick` is called a few times a second on the loop, and starts what is to be done."""

    def __init__(
        self,
        broker: Broker,
        *,
        root_uri: str,
        address: str,
        on_fed: Callable[[], None],
        files: Files | None = None,
        rolls: Rolls | None = None,
    ) -> None:
        self._broker = broker
        self._far = broker.far
        self._on_fed = on_fed
        self._files = files or AttemptFiles(root_uri, lambda: broker.store.store_id)
        self._rolls = rolls or LocalRolls(root_uri, lambda: address)
        self._pools = {
            lane: ThreadPoolExecutor(max_workers=threads, thread_name_prefix=f"latermq-{lane}")
            for lane, threads in (("feed", _THREADS), ("check", _THREADS), ("save", 1), ("names", 1))
        }
        self._tasks: dict[tuple[str, int], asyncio.Task[None]] = {}
        self._rolling: dict[int, _Rolling] = {}  # by the first window of each
        self._cares: dict[int, Care] = {}
        self._names = Backoff()

    @property
    def failure(self) -> str:
        """What the first window that cannot go on waits for."""
        told = (self._cares[number].error for number in sorted(self._cares))
        return next((one for one in told if one), self._names.error)

    def care(self, number: int) -> Care:
        """What is known of a window."""
        return self._cares.setdefault(number, Care())

    def tick(self) -> None:
        """Start what is to be done and is not under way."""
        unfinished = {window.number for window in self._far.windows.unfinished()}
        for number in self._cares.keys() - unfinished:
            del self._cares[number]
        self._feed_wanted()
        self._check_waiting()
        self._roll_late()
        self._keep_names()

    @property
    def _now_s(self) -> float:
        return self._broker.client_clock.monotonic_s()

    # Lanes

    def _start(self, lane: str, number: int, step: Callable[[], Coroutine[Any, Any, None]], backoff: Backoff) -> None:
        key = (lane, number)
        task = asyncio.get_running_loop().create_task(self._guarded(lane, number, step, backoff))
        self._tasks[key] = task
        task.add_done_callback(lambda _: self._tasks.pop(key, None))

    async def _guarded(
        self, lane: str, number: int, step: Callable[[], Coroutine[Any, Any, None]], backoff: Backoff
    ) -> None:
        """Nothing that fails here may stop the broker: near timers go on, and it is tried again."""
        try:
            await step()
        except Exception as error:
            self._met(lane, number, backoff, error)

    def _met(self, lane: str, number: int, backoff: Backoff, error: Exception) -> None:
        told = error.message if isinstance(error, LaterMQError) else f"{type(error).__name__}: {error}"
        if told != backoff.error:
            _log.error("window stalled", window=number, step=lane, reason=told, hint=getattr(error, "hint", ""))
        backoff.met(told, self._now_s)

    def _under_way(self, lane: str) -> set[int]:
        return {number for own, number in self._tasks if own == lane}

    async def _beside(self, lane: str, work: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pools[lane], work, *arguments)

    async def _read_beside(self, lane: str, limit_s: float, work: Callable[..., T], *arguments: Any) -> T:
        """The same for what only reads: where it hangs, the thread is left behind."""
        try:
            async with asyncio.timeout(limit_s):
                return await self._beside(lane, work, *arguments)
        except TimeoutError:
            raise StoreError(f"reading took longer than {limit_s:g} s", hint="Check pipeline.timeline") from None

    def _limit_s(self, limit_s: float, failures: int) -> float:
        """What is merely slow succeeds in the end, however large it is."""
        return limit_s * float(1 << min(failures, _MOST_DOUBLINGS))

    # Reading what is played

    def _feed_wanted(self) -> None:
        now_ms, now_s = self._broker.clock.now_ms(), self._now_s
        busy = self._under_way("feed")
        others = busy | {number for number, care in self._cares.items() if not care.feed.is_ready(now_s)}
        while len(busy) < FEEDS_AT_ONCE:
            window = self._far.windows.wants(now_ms, others)
            if window is None:
                return
            self._start("feed", window.number, partial(self._feed, window), self.care(window.number).feed)
            busy.add(window.number)
            others.add(window.number)

    async def _feed(self, window: Window) -> None:
        """Read a window piece by piece and give it to the stage, as long as that has room."""
        number, attempt = window.number, window.attempt
        care = self.care(number)
        limit_s = self._limit_s(_READ_LIMIT_S, care.feed.failures)
        if care.reading is None or care.reading.attempt != attempt:
            care.reading = Reading(attempt)
        reading = care.reading
        while self._far.windows.is_wanted(window, self._broker.clock.now_ms()):
            try:
                rows = await self._read_beside("feed", limit_s, self._read, window, attempt, care, reading)
            except Exception as error:
                care.reading = None
                if isinstance(error, CorruptStore):
                    await self._note_damage(window, attempt, error)
                elif care.feed.failures + 1 >= _TRIES and window.attempt == attempt:
                    # Others have the same rows, and one more can always be made.
                    self._far.windows.restart(number, "")
                    self._met("read", number, care.unread.setdefault(attempt, Backoff()), error)
                raise
            if window.attempt != attempt or window.is_skipped:
                care.reading = None
                return
            self._far.windows.feed(number, rows)
            if care.feed.failures:
                _log.info("window goes on", window=number, attempt=attempt)
            care.feed.over()
            self._on_fed()
            if rows is None:
                care.reading = None
                return

    def _read(self, window: Window, attempt: str, care: Care, reading: Reading) -> WindowRows | None:
        if reading.pieces is None:
            care.rows, reading.pieces = self._files.pieces(window, attempt, was_checked=care.checked == attempt)
        return next(reading.pieces, None)

    async def _note_damage(self, window: Window, attempt: str, error: CorruptStore) -> None:
        """The attempt is never played again, unless an operator asks for it."""
        _log.error("window attempt is damaged", window=window.number, attempt=attempt, reason=error.message)
        self._far.notes.note_damage(window.number, attempt, error.message)
        care = self.care(window.number)
        care.check_again_s = 0.0
        care.unread.pop(attempt, None)
        if window.attempt == attempt:
            self._far.windows.restart(window.number, "")
        await self._beside("save", self._far.notes_writer())

    # Choosing an attempt

    def _check_waiting(self) -> None:
        now_s, flushed = self._now_s, self._flushed_entry()
        busy = self._under_way("check")
        for window in self._far.windows.waiting():
            if len(busy) >= CHECKS_AT_ONCE:
                return
            number = window.number
            if window.attempt or window.is_skipped or number in busy or not self._is_due(window, flushed):
                continue
            care = self.care(number)
            if care.check.is_ready(now_s) and (now_s >= care.check_again_s or number in self._far.offered):
                self._start("check", number, partial(self._check, window, care), care.check)
                busy.add(number)

    def _is_due(self, window: Window, flushed: int) -> bool:
        """Whether an attempt is to be chosen now: a driver offers one, or it is time to have one."""
        if flushed <= window.cut_entry:
            return False  # a cut that a power cut may take back has no window
        return window.number in self._far.offered or self._is_late(window)

    def _flushed_entry(self) -> int:
        queue = self._broker.store.find_queue(TIMER_TOPIC, 0)
        return 0 if queue is None else self._broker.store.flushed_end(queue)

    def _is_late(self, window: Window) -> bool:
        """Whether Spark is not waited for any longer."""
        config = self._broker.config.pipeline
        if not config.enabled or config.roll_on == "local" or self.care(window.number).is_forced:
            return True
        return self._broker.clock.now_ms() >= window.from_ms - config.roll_deadline

    async def _check(self, window: Window, care: Care) -> None:
        """Choose an attempt that is whole; where there is none, have one made or look again later."""
        offered = self._far.offered.get(window.number, "")
        limit_s = self._broker.config.pipeline.roll_timeout / 1000
        names = await self._read_beside("check", limit_s, self._files.names, window)
        care.check.over()
        care.attempts = len(names)
        damaged = self._far.notes.damaged(window.number)
        for name in sorted(names, key=lambda name: name != offered):
            unread = care.unread.get(name)
            if name in damaged or (unread is not None and not unread.is_ready(self._now_s)):
                continue
            try:
                may_take_s = self._limit_s(limit_s, unread.failures if unread is not None else 0)
                care.rows = await self._read_beside("check", may_take_s, self._files.check, window, name)
            except CorruptStore as error:
                await self._note_damage(window, name, error)
            except Exception as error:
                self._met("check", window.number, care.unread.setdefault(name, Backoff()), error)
            else:
                care.checked = name
                await self._choose(window, name, care)
                return
        self._look_later(window, names, care)

    def _look_later(self, window: Window, names: Sequence[str], care: Care) -> None:
        self._far.offered.pop(window.number, None)
        damaged = self._far.notes.damaged(window.number)
        unread = [care.unread[name] for name in names if name in care.unread and name not in damaged]
        care.needs_roll = len(unread) < _MOST_UNREAD and all(one.failures >= _TRIES for one in unread)
        care.check_again_s = min([self._now_s + _LOOK_AGAIN_S, *(one.not_before_s for one in unread)])
        if care.was_rolled:
            care.was_rolled = False
            care.roll.met("the attempt that was made cannot be played", self._now_s)

    async def _choose(self, window: Window, attempt: str, care: Care) -> None:
        self._far.choose(window.number, attempt)
        await self._beside("save", self._far.save_attempts)
        if window.is_skipped:
            return
        self._far.windows.restart(window.number, attempt)
        care.settle()
        _log.info("window chosen", window=window.number, attempt=attempt)

    # Rolling without Spark

    def _roll_late(self) -> None:
        """Start a process for what is to be rolled.

        Windows that failed before are rolled one at a time, beside the others; so is what takes long.
        """
        if len(self._rolling) >= ROLLS_AT_ONCE:
            return
        now_s, flushed = self._now_s, self._flushed_entry()
        busy = {number for rolling in self._rolling.values() for number in rolling.numbers}
        wanted = [
            window.number
            for window in self._far.windows.waiting()
            if (care := self._cares.get(window.number)) is not None
            and care.needs_roll
            and care.roll.is_ready(now_s)
            and not (window.attempt or window.is_skipped or window.number in busy)
            and flushed > window.cut_entry
            and self._is_late(window)
        ]
        fresh = [number for number in wanted if not self.care(number).roll.failures]
        again = [number for number in wanted if self.care(number).roll.failures]
        slow_s = self._broker.config.pipeline.roll_deadline / 1000 / _SLOW_SHARE
        slow = [one for one in self._rolling.values() if one.is_retry or now_s - one.progress_s >= slow_s]
        if fresh and len(slow) == len(self._rolling):
            self._start_roll(fresh[:_ROLLED_AT_ONCE], is_retry=False)
        elif again and not any(one.is_retry for one in self._rolling.values()):
            self._start_roll(again[:1], is_retry=True)

    def _start_roll(self, numbers: list[int], *, is_retry: bool) -> None:
        _log.warning("windows rolled without Spark", windows=numbers)
        rolling = self._rolling[numbers[0]] = _Rolling(numbers, is_retry, self._now_s)
        care = self.care(numbers[0])
        limit_s = self._limit_s(self._broker.config.pipeline.roll_timeout / 1000, care.timeouts)
        self._start("roll", numbers[0], partial(self._roll, rolling, limit_s), care.roll)

    async def _roll(self, rolling: _Rolling, limit_s: float) -> None:
        left = list(rolling.numbers)

        def told(number: int, error: str) -> None:
            rolling.progress_s = self._now_s
            if number in left:
                left.remove(number)
                self._rolled(number, error)

        try:
            await self._rolls.roll(rolling.numbers, limit_s, told)
        # Whatever it is, it concerns the window that was under way, which may not be the first.
        except Exception as error:
            if left:
                care = self.care(left[0])
                care.timeouts += isinstance(error, RollTimedOut)
                self._met("roll", left[0], care.roll, error)
        finally:
            del self._rolling[rolling.numbers[0]]

    def _rolled(self, number: int, error: str) -> None:
        care = self.care(number)
        if error:
            self._met("roll", number, care.roll, LaterMQError(error))
        else:
            care.needs_roll, care.was_rolled, care.check_again_s = False, True, 0.0

    # Names of what leaves the log

    def _keep_names(self) -> None:
        if self._under_way("names") or not self._names.is_ready(self._now_s):
            return
        names = self._far.names_to_keep()
        if names is not None:
            self._start("names", 0, partial(self._write_names, names), self._names)

    async def _write_names(self, names: list[Any]) -> None:
        await self._beside("names", self._far.keep_names, names)
        self._names.over()

    async def stop(self) -> None:
        """End what is under way."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for lane, pool in self._pools.items():
            # What only reads need not be waited for, and may hang.
            pool.shutdown(wait=lane in ("save", "names"), cancel_futures=True)
