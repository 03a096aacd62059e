"""Window loading: finds attempts, builds a window locally if Spark is late, and reads the rows.

Loading, checking, building, skipping and saving are separate lanes. Each has its own threads or processes and its own
limit. A block or failure in one lane, or for one window, does not delay the others.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import structlog

from latermq.broker.timers.far_timers import FarTimers
from latermq.broker.timers.window_skips import WindowSkips
from latermq.clock import Clock
from latermq.config import PipelineConfig
from latermq.errors import CorruptStore, InvalidParameter, LaterMQError, ServiceUnavailable
from latermq.message.names import TIMER_TOPIC
from latermq.server.windows.attempt_files import AttemptFiles
from latermq.server.windows.lanes import Lanes
from latermq.server.windows.local_builds import BuildTimedOut, LocalBuilds, Report
from latermq.server.windows.window_skipper import Salvage, WindowSkipper
from latermq.server.windows.window_state import Reading, WindowState, new_backoff
from latermq.store.message_store import MessageStore
from latermq.timer.far.windows import Window, WindowRows

_log = structlog.get_logger(__name__)
MAX_LOADS = 8
MAX_LATE_LOADS = 2  # windows whose time is over; the remaining slots are for timers that are due now
# Windows that failed before, and checks that take long, do not use up the slots of the other windows.
MAX_CHECKS, MAX_FAST_CHECKS = 8, 2
MAX_BUILDS = 3
_WINDOWS_PER_BUILD = 16  # windows per process: starting a process takes longer than building a small window
_SLOW_SHARE = 8  # work is slow after 1/8 of pipeline.roll_deadline
_MAX_DOUBLINGS = 3  # of the time limit, so that a large build is not killed at every try
_TRIES = 3  # to read an attempt, before the broker looks for another one or builds it
_MAX_UNREAD = 4  # unreadable attempts per window, after which no further one is built
_LOOK_AGAIN_S = 30.0
_READ_LIMIT_S = 120.0  # for one piece; if a read hangs for longer, another thread reads the piece again
# Per lane: a thread that hangs in a read cannot be stopped, so the lane needs others to continue.
_THREADS = 16


def _limit_s(limit_s: float, failures: int) -> float:
    """The limit doubled with each failure, up to eightfold, so that large windows eventually succeed."""
    return limit_s * float(1 << min(failures, _MAX_DOUBLINGS))


class Files(Salvage, Protocol):
    """Access to the files of attempts. All methods block."""

    def check(self, window: Window, name: str) -> tuple[int, int | None]: ...

    def pieces(self, window: Window, name: str, *, was_checked: bool) -> tuple[int, Iterator[WindowRows]]: ...


class Builds(Protocol):
    """Local builds of windows, without Spark."""

    async def build(self, numbers: Sequence[int], limit_s: float, report: Report) -> None: ...


@dataclass
class _Build:
    numbers: list[int]
    is_retry: bool
    progress_s: float


class WindowLoader:
    """Starts the work that windows need. The loop calls `tick` several times per second."""

    def __init__(
        self,
        store: MessageStore,
        far: FarTimers,
        skips: WindowSkips,
        clock: Clock,
        client_clock: Clock,
        config: PipelineConfig,
        *,
        root_uri: str,
        address: str,
        on_loaded: Callable[[], None],
        files: Files | None = None,
        builds: Builds | None = None,
    ) -> None:
        """`clock` is the time of timers; time limits use `client_clock`."""
        self._store = store
        self._far = far
        self._skips = skips
        self._clock = clock
        self._client_clock = client_clock
        self._config = config
        self._on_loaded = on_loaded
        self._files = files or AttemptFiles(root_uri, lambda: store.store_id)
        self._builds = builds or LocalBuilds(root_uri, lambda: address, config.roll_local_rows)
        threads = {"load": _THREADS, "check": _THREADS, "skip": _THREADS, "save": 1, "names": 1}
        self._lanes = Lanes(threads, lambda: self._now_s)
        self._running_builds: dict[int, _Build] = {}  # by the number of the first window
        self._states: dict[int, WindowState] = {}
        self._names = new_backoff()
        self._unsaved_skips: set[int] = set()
        self._skipper = WindowSkipper(
            skips,
            self._files,
            lambda work: self._lanes.read_off_loop("skip", _READ_LIMIT_S, work),
            self._far.check_rows,
        )

    @property
    def failure(self) -> str:
        """The error of the first stalled window, or of saving timer names; empty if there is none."""
        errors = (self._states[number].error for number in sorted(self._states))
        return next((error for error in errors if error), self._names.error)

    def state_of(self, number: int) -> WindowState:
        """The state of a window, created on first use."""
        return self._states.setdefault(number, WindowState())

    def tick(self) -> None:
        """Start all work that is needed and not yet in progress."""
        unfinished = {window.number for window in self._far.windows.unfinished()}
        for number in self._states.keys() - unfinished:
            del self._states[number]
        self._load_wanted()
        self._check_waiting()
        self._build_late()
        self._skip_requested()
        self._save_names()

    @property
    def _now_s(self) -> float:
        return self._client_clock.monotonic_s()

    @property
    def _slow_s(self) -> float:
        """The duration after which work counts as slow, so that other windows no longer wait for it."""
        return self._config.roll_deadline / 1000 / _SLOW_SHARE

    # Loading the chosen attempt

    def _load_wanted(self) -> None:
        now_ms, now_s, windows = self._clock.now_ms(), self._now_s, self._far.windows
        busy = self._lanes.running("load")
        others = busy | {number for number, state in self._states.items() if not state.load.is_ready(now_s)}
        while len(busy) < MAX_LOADS:
            window = self._far.windows.wants(now_ms, others)
            if window is None:
                return
            late = [one for one in busy if (fed := windows.find(one)) is not None and windows.is_late(fed, now_ms)]
            if windows.is_late(window, now_ms) and len(late) >= MAX_LATE_LOADS:
                return
            self._lanes.start("load", window.number, partial(self._load, window), self.state_of(window.number).load)
            busy.add(window.number)
            others.add(window.number)

    async def _load(self, window: Window) -> None:
        """Read a window piece by piece and pass it to the stage while the stage has capacity."""
        number, attempt = window.number, window.attempt
        state = self.state_of(number)
        limit_s = _limit_s(_READ_LIMIT_S, state.load.failures)
        if state.reading is None or state.reading.attempt != attempt:
            state.reading = Reading(attempt)
        reading = state.reading
        while self._far.windows.is_wanted(window, self._clock.now_ms()):
            try:
                rows = await self._lanes.read_off_loop("load", limit_s, self._read, window, attempt, state, reading)
                if rows is not None:
                    self._far.check_rows(rows)
            except Exception as error:
                state.reading = None
                if isinstance(error, CorruptStore):
                    await self._note_damage(window, attempt, error)
                elif state.load.failures + 1 >= _TRIES and window.attempt == attempt:
                    # Other attempts have the same rows, and a new one can always be built.
                    self._far.windows.restart(number, "")
                    self._lanes.record_failure("read", number, state.unread.setdefault(attempt, new_backoff()), error)
                raise
            if window.attempt != attempt or window.is_skipped:
                state.reading = None
                return
            self._far.windows.feed(number, rows)
            if state.load.failures:
                _log.info("window loading resumed", window=number, attempt=attempt)
            state.load.reset()
            self._on_loaded()
            if rows is None:
                state.reading = None
                return

    def _read(self, window: Window, attempt: str, state: WindowState, reading: Reading) -> WindowRows | None:
        if reading.pieces is None:
            state.rows, reading.pieces = self._files.pieces(window, attempt, was_checked=state.checked == attempt)
        return next(reading.pieces, None)

    async def _note_damage(self, window: Window, attempt: str, error: CorruptStore) -> None:
        """Record a damaged attempt, which is not loaded again unless an operator requests a repair."""
        _log.error("window attempt is damaged", window=window.number, attempt=attempt, reason=error.message)
        self._far.notes.note_damage(window.number, attempt, error.message)
        state = self.state_of(window.number)
        state.check_again_s = 0.0
        state.unread.pop(attempt, None)
        if window.attempt == attempt:
            self._far.windows.restart(window.number, "")
        await self._lanes.off_loop("save", self._far.notes_writer())

    # Choosing an attempt

    def _check_waiting(self) -> None:
        now_s, flushed = self._now_s, self._flushed_entry()
        busy = self._lanes.running("check")
        long_ago_s = now_s - self._slow_s
        for window in self._far.windows.waiting():
            if len(busy) >= MAX_CHECKS:
                return
            number = window.number
            if window.attempt or window.is_skipped or number in busy or not self._is_due(window, flushed):
                continue
            state = self.state_of(number)
            if not state.check.is_ready(now_s) or (now_s < state.check_again_s and number not in self._far.reported):
                continue
            # The limit applies separately to windows that failed before and to all others.
            similar = [one for one in busy if self.state_of(one).is_suspect == state.is_suspect]
            fast = [one for one in similar if state.is_suspect or self.state_of(one).check_began_s > long_ago_s]
            if len(fast) < MAX_FAST_CHECKS:
                state.check_began_s = now_s
                self._lanes.start("check", number, partial(self._check, window, state), state.check)
                busy.add(number)

    def _is_due(self, window: Window, flushed: int) -> bool:
        """Whether to choose an attempt now: the driver offers one, or Spark is late."""
        if flushed <= window.cut_entry:
            return False  # the cut is not on disk yet, and a power failure could undo it
        return window.number in self._far.reported or self._is_late(window)

    def _flushed_entry(self) -> int:
        queue = self._store.queues.find(TIMER_TOPIC, 0)
        return 0 if queue is None else self._store.reader.flushed_end(queue)

    def _is_late(self, window: Window) -> bool:
        """Whether the broker no longer waits for Spark."""
        config = self._config
        if not config.enabled or config.roll_on == "local" or self.state_of(window.number).is_forced:
            return True
        return self._clock.now_ms() >= window.from_ms - config.roll_deadline

    async def _check(self, window: Window, state: WindowState) -> None:
        """Choose an intact attempt. If there is none, request a build or look again later."""
        offered = self._far.reported.get(window.number, "")
        limit_s = self._config.roll_timeout / 1000
        names = await self._lanes.read_off_loop("check", limit_s, self._files.names, window)
        state.check.reset()
        state.attempts = len(names)
        damaged = self._far.notes.damaged_attempts(window.number)
        for name in sorted(names, key=lambda name: name != offered):
            unread = state.unread.get(name)
            if name in damaged or (unread is not None and not unread.is_ready(self._now_s)):
                continue
            try:
                check_limit_s = _limit_s(limit_s, unread.failures if unread is not None else 0)
                rows_and_time = await self._lanes.read_off_loop("check", check_limit_s, self._files.check, window, name)
                state.rows, state.took_ms = rows_and_time
            except CorruptStore as error:
                await self._note_damage(window, name, error)
            except Exception as error:
                self._lanes.record_failure("check", window.number, state.unread.setdefault(name, new_backoff()), error)
            else:
                state.checked = name
                await self._choose(window, name, state)
                return
        self._look_later(window, names, state)

    def _look_later(self, window: Window, names: Sequence[str], state: WindowState) -> None:
        self._far.reported.pop(window.number, None)
        damaged = self._far.notes.damaged_attempts(window.number)
        unread = [state.unread[name] for name in names if name in state.unread and name not in damaged]
        state.needs_build = len(unread) < _MAX_UNREAD and all(one.failures >= _TRIES for one in unread)
        state.check_again_s = min([self._now_s + _LOOK_AGAIN_S, *(one.not_before for one in unread)])
        if state.was_built:
            state.was_built = False
            state.build.record_failure("the built attempt cannot be loaded", self._now_s)

    async def _choose(self, window: Window, attempt: str, state: WindowState) -> None:
        self._far.choose(window, attempt, state.rows, state.took_ms)
        await self._lanes.off_loop("save", self._far.save_attempts)
        if window.is_skipped:
            return
        self._far.windows.restart(window.number, attempt)
        state.settle()
        _log.info("window chosen", window=window.number, attempt=attempt)

    # Building without Spark

    def _build_late(self) -> None:
        """Start a process for windows that need a local build.

        Windows that failed before are built one at a time, in parallel with the others. A slow process does not
        delay others either: a further process starts when all running ones are slow.
        """
        if len(self._running_builds) >= MAX_BUILDS:
            return
        now_s, flushed = self._now_s, self._flushed_entry()
        busy = {number for build in self._running_builds.values() for number in build.numbers}
        wanted = [
            window.number
            for window in self._far.windows.waiting()
            if (state := self._states.get(window.number)) is not None
            and state.needs_build
            and state.build.is_ready(now_s)
            and not (window.attempt or window.is_skipped or window.number in busy)
            and flushed > window.cut_entry
            and self._is_late(window)
        ]
        fresh = [number for number in wanted if not self.state_of(number).build.failures]
        again = [number for number in wanted if self.state_of(number).build.failures]
        slow = [one for one in self._running_builds.values() if one.is_retry or now_s - one.progress_s >= self._slow_s]
        if fresh and len(slow) == len(self._running_builds):
            self._start_build(fresh[:_WINDOWS_PER_BUILD], is_retry=False)
        elif again and not any(one.is_retry for one in self._running_builds.values()):
            self._start_build(again[:1], is_retry=True)

    def _start_build(self, numbers: list[int], *, is_retry: bool) -> None:
        _log.warning("building windows without Spark", windows=numbers)
        build = _Build(numbers, is_retry, self._now_s)
        state = self.state_of(numbers[0])
        limit_s = _limit_s(self._config.roll_timeout / 1000, state.timeouts)
        task = self._lanes.start("build", numbers[0], partial(self._build, build, limit_s), state.build)
        self._running_builds[numbers[0]] = build
        task.add_done_callback(lambda _: self._running_builds.pop(numbers[0], None))

    async def _build(self, build: _Build, limit_s: float) -> None:
        left = list(build.numbers)

        def report(number: int, error: str) -> None:
            build.progress_s = self._now_s
            if number in left:
                left.remove(number)
                self._finish_build(number, error)

        try:
            await self._builds.build(build.numbers, limit_s, report)
        # Any error belongs to the window that was in progress, which may not be the first.
        except Exception as error:
            if left:
                state = self.state_of(left[0])
                state.timeouts += isinstance(error, BuildTimedOut)
                self._lanes.record_failure("build", left[0], state.build, error)

    def _finish_build(self, number: int, error: str) -> None:
        state = self.state_of(number)
        if error:
            self._lanes.record_failure("build", number, state.build, LaterMQError(error))
        else:
            state.needs_build, state.was_built, state.check_again_s = False, True, 0.0

    # Requests of operators

    async def skip(self, number: int) -> None:
        """Skip a window. Once this returns, its timers are certain to become dead letters."""
        window = self._find(number)
        if window.is_skipped:
            return
        if self._flushed_entry() <= window.cut_entry:
            # A power failure could undo the cut, and its number and entry would then belong to another window.
            raise ServiceUnavailable(f"the cut of window {number} is not on disk yet", hint="Try again in a moment")
        self._skips.request(window, self._clock.now_ms())
        self._unsaved_skips.add(number)
        try:
            await self._lanes.off_loop("save", self._far.notes_writer())
        except BaseException:
            self._skips.withdraw(window)
            raise
        finally:
            self._unsaved_skips.discard(number)
        _log.warning("window skip requested", window=number)

    async def repair(self, number: int) -> None:
        """Check all attempts of a window again, and build one at once if none can be loaded."""
        window = self._find(number)
        if window.is_skipped or window.is_loaded:
            raise InvalidParameter(
                f"window {number} is {'skipped' if window.is_skipped else 'already loaded'}",
                hint="There is nothing to repair",
            )
        state = self.state_of(number)
        had_trouble = bool(state.error)
        state.start_over()
        state.is_forced = True
        self._far.notes.forget_damage(number)
        if had_trouble and window.attempt:
            self._far.windows.restart(number, "")
        for first, build in list(self._running_builds.items()):
            if number in build.numbers and (task := self._lanes.tasks.get(("build", first))) is not None:
                task.cancel()  # it may hang; its other windows are rebuilt
        await self._lanes.off_loop("save", self._far.notes_writer())
        _log.warning("window repair started", window=number)

    def _find(self, number: int) -> Window:
        window = self._far.windows.find(number)
        if window is None:
            raise InvalidParameter(
                f"there is no window {number}", hint="`latermq pipeline windows` lists the unfinished windows"
            )
        return window

    def _skip_requested(self) -> None:
        if self._lanes.running("skip"):
            return
        for window in self._far.windows.waiting():
            if not window.is_skipped or window.number in self._unsaved_skips:
                continue
            state = self.state_of(window.number)
            if state.skip.is_ready(self._now_s) and self._skips.can_bury(window):
                self._lanes.start("skip", window.number, partial(self._bury, window, state), state.skip)
                return

    async def _bury(self, window: Window, state: WindowState) -> None:
        is_last_try = state.skip.failures >= _TRIES
        try:
            names = await self._lanes.read_off_loop("skip", _READ_LIMIT_S, self._files.names, window)
        # The last try continues with the log and the saved names alone.
        except Exception:
            if not is_last_try:
                raise
            names = []
        await self._skipper.skip(window, names, is_last_try=is_last_try)
        state.start_over()
        state.skip.reset()
        await self._lanes.off_loop("save", self._far.notes_writer())

    # Names of timers that leave the log

    def _save_names(self) -> None:
        if self._lanes.running("names") or not self._names.is_ready(self._now_s):
            return
        names = self._far.expiring_entries()
        if names is not None:
            self._lanes.start("names", 0, partial(self._write_names, names), self._names)

    async def _write_names(self, names: list[Any]) -> None:
        await self._lanes.off_loop("names", partial(self._far.save_names, names))
        self._names.reset()

    async def stop(self) -> None:
        """Stop all work in progress."""
        await self._lanes.stop(waited_for=frozenset({"save", "names"}))
