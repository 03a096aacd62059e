"""Far timers, on the broker's side: makes the cuts, and records which attempts of windows are loaded."""

from collections import Counter
from collections.abc import Callable

import numpy as np
from msgspec.structs import replace

from latermq.broker.timers.ingest_mark import IngestMark
from latermq.broker.timers.window_notes import WindowNotes
from latermq.clock import Clock
from latermq.config import PipelineConfig
from latermq.errors import CorruptStore, InvalidParameter
from latermq.handover.checked_file import decode_checked, encode_checked
from latermq.handover.cut import FOREVER_MS, Cut, cut_properties
from latermq.message.names import TIMER_TOPIC, is_file_name
from latermq.message.properties import encode_properties
from latermq.message.record import record_properties
from latermq.message.timer_code import cancels, is_timer_code, kinds_and_dues, schedules
from latermq.model.pipeline_state import ChosenWindow
from latermq.store.files.disk import Disk
from latermq.store.log_writer import Appended, Draft
from latermq.store.message_store import MessageStore
from latermq.timer.far.far_names import FarNames, Waiting
from latermq.timer.far.windows import Window, WindowRows
from latermq.timer.intake.renewal import LONGEST_WINDOW_MS
from latermq.timer.service import TimerService

PATH = "latermq.windows"
_BUILT_HERE = "local"  # attempts that the broker built begin with it
NAMES_AT_ONCE = 1_000  # about 4 ms
LAST_WINDOWS = 20  # that operators are shown
CUTS_AT_ONCE = 500  # a broker that was stopped for long must make many: about 10 ms


class FarTimers:
    """Called by the appending thread, except for the methods that say otherwise."""

    def __init__(
        self,
        disk: Disk,
        store: MessageStore,
        timers: TimerService,
        ingest: IngestMark,
        names: FarNames,
        clock: Clock,
        config: PipelineConfig,
        *,
        store_host: bytes,
        retention_ms: int,
        expires_until: Callable[[], int],
    ) -> None:
        """`expires_until` returns the log offset before which records expire."""
        self._disk = disk
        self._store = store
        self._timers = timers
        self._ingest = ingest
        self._clock = clock
        self._config = config
        self._store_host = store_host
        self.frontier = timers.frontier
        self.windows = timers.windows
        self._attempts = _load_attempts(disk)  # chosen attempts, by window
        self.reported: dict[int, str] = {}  # reported by a driver and not checked yet, by window
        self.built_by: Counter[str] = Counter()  # number of chosen attempts, by builder
        self._chosen: dict[int, ChosenWindow] = {}  # the latest of them, by window
        self.keeps_far_timers = False  # whether the last cut keeps timers here that would be Spark's, because it lags
        self._marks = store.waiting.saved_marks
        self._retention_ms = retention_ms
        self._expires_until = expires_until
        self._names_end = 0
        self._names = names
        timers.open_windows(self._attempts)
        self.notes = WindowNotes(disk)
        for window in self.windows.unfinished():
            window.is_skipped = self.notes.skip_of(window.number, window.cut_entry) is not None
            if window.attempt:
                self._note_chosen(ChosenWindow(window.number, window.from_ms, window.until_ms, window.attempt))

    # Cuts

    def run(self) -> None:
        """Make the cuts that are due now; call it about once per second."""
        self._forget_frontiers()
        # If the clock was set back, T is ahead of it. No timer due before T may be Spark's.
        now_ms = max(self._clock.now_ms(), self._timers.marks.all_wake_from_ms())
        for _ in range(CUTS_AT_ONCE):
            cut = self._next_cut(now_ms)
            if cut is None:
                return
            self.append([], cut)
            if cut.frontier_ms != FOREVER_MS:
                self.keeps_far_timers = self._is_behind(now_ms)

    @property
    def is_enabled(self) -> bool:
        """Whether new timers go to Spark: the pipeline is enabled, and a driver has begun."""
        return self._config.enabled and self._ingest.epoch > 0

    @property
    def uses_pipeline(self) -> bool:
        """Whether Spark has, or may get, timers of this broker."""
        return self._config.enabled or self.frontier.last is not None

    def _next_cut(self, now_ms: int) -> Cut | None:
        last, window_ms = self.frontier.last, self._config.window
        target_ms = (now_ms + self._config.near_horizon) // window_ms * window_ms
        if last is None:
            # Spark has no timers yet, so it has none to hand back.
            return self.cut_at(self.next_entry, target_ms, target_ms) if self.is_enabled else None
        self._timers.intake.read_all()
        handback_ms = last.handback_ms
        if target_ms > handback_ms and (self.is_enabled or self.frontier.has_far):
            handback_ms = min(handback_ms + window_ms, target_ms) if self.frontier.has_far else target_ms
        frontier_ms = self._frontier_ms(now_ms, max(handback_ms, target_ms))
        was_near_only, is_near_only = (one == FOREVER_MS for one in (last.frontier_ms, frontier_ms))
        if handback_ms == last.handback_ms and was_near_only == is_near_only:
            return None
        return self.cut_at(self.next_entry, frontier_ms, handback_ms)

    @property
    def next_entry(self) -> int:
        """The entry that the next record of the timer topic gets."""
        queue = self._store.queues.find(TIMER_TOPIC, 0)
        return queue.next_offset if queue is not None else 0

    def cut_at(self, entry: int, frontier_ms: int, handback_ms: int) -> Cut:
        """Return the cut after the last one."""
        last = self.frontier.last
        return Cut(
            number=last.number + 1 if last else 1,
            entry=entry,
            frontier_ms=frontier_ms,
            handback_ms=handback_ms,
            last_frontier_ms=last.frontier_ms if last else FOREVER_MS,
            last_handback_ms=last.handback_ms if last else handback_ms,
            far_until_ms=self.frontier.far_until_ms,
        )

    def _frontier_ms(self, now_ms: int, next_ms: int) -> int:
        if not self.is_enabled:
            return FOREVER_MS
        # While Spark lags, the wheel accepts every timer that it can store without a renewal.
        return max(next_ms, now_ms + LONGEST_WINDOW_MS) if self._is_behind(now_ms) else next_ms

    def _is_behind(self, now_ms: int) -> bool:
        return self.lag_ms(now_ms) > self._config.window

    def deadline_ms(self) -> int | None:
        """Return when the broker starts to build the next window that has no attempt; None if all have one."""
        waiting = [
            window.from_ms
            for window in self.windows.unfinished()
            if not window.attempt and not window.is_skipped and window.number not in self.reported
        ]
        return min(waiting) - self._config.roll_deadline if waiting else None

    def lag_ms(self, now_ms: int) -> int:
        """Return the age of the oldest flushed record that Spark has not ingested."""
        queue = self._store.queues.find(TIMER_TOPIC, 0)
        if queue is None:
            return 0
        offset = max(queue.min_offset, self._ingest.offset)
        if offset >= self._store.reader.flushed_end(queue):
            return 0
        return max(0, now_ms - self._store.reader.store_timestamp_ms(queue, offset))

    def append(self, before: list[Draft], cut: Cut) -> list[Appended]:
        """Append a cut, in one block with the records before it."""
        now_ms = self._clock.now_ms()
        properties = encode_properties(cut_properties(cut)).encode()
        drafts = [*before, Draft(TIMER_TOPIC, 0, b"", properties, now_ms, self._store_host)]
        appended = self._store.writer.append_all(drafts, self._store.writer.monotonic_store_ms(TIMER_TOPIC, now_ms))
        assert appended[-1].queue_offset == cut.entry, "a cut contains its own entry"
        self.frontier.add(cut)
        self.windows.open(cut)
        return appended

    def _forget_frontiers(self) -> None:
        marks = self._store.waiting.saved_marks
        if marks is not None and marks is not self._marks:
            self._marks = marks
            queue = self._store.queues.ensure(TIMER_TOPIC, 0)
            # Every entry in the log may be cancelled, ingested, or read again to rebuild an engine.
            self.frontier.forget(queue.min_offset, marks.wake_ms)

    # Windows

    def unfinished_windows(self) -> list[Window]:
        """Return all windows that are not fully delivered."""
        return self.windows.unfinished()

    def report_ready(self, number: int, attempt: str) -> None:
        """Note that a driver has completed an attempt. It is checked when the window is about to be loaded."""
        if self.windows.find(number) is None:
            raise InvalidParameter(
                f"there is no window {number}", hint="It may be finished: request the pipeline's state again"
            )
        if not is_file_name(attempt) or attempt.startswith("."):
            raise InvalidParameter(f"{attempt[:40]!r} is not a valid name of an attempt")
        self.reported[number] = attempt

    def check_rows(self, rows: WindowRows) -> None:
        """Reject an attempt whose rows differ from their entries in the log, as far back as the log reaches.

        Otherwise a timer of the broker's own could be delivered at the time in a wrong row.
        """
        queue = self._store.queues.find(TIMER_TOPIC, 0)
        first = max(queue.min_offset, self.frontier.ownership.known_from) if queue is not None else 0
        is_in_log = rows.entries >= first
        if queue is None or not is_in_log.any():
            return
        order = np.argsort(rows.entries[is_in_log], kind="stable")
        entries, dues, sizes = (column[is_in_log][order] for column in (rows.entries, rows.dues, rows.sizes))
        if entries[-1] >= queue.next_offset:
            raise CorruptStore(f"it has a timer of entry {entries[-1]}, which does not exist yet")
        found = queue.gather(entries)
        kinds, log_dues = kinds_and_dues(found["tags"].astype(np.int64))
        is_equal = (log_dues == dues) & schedules(kinds) & (found["size"] == sizes)
        if not is_equal.all():
            raise CorruptStore(f"its timer of entry {entries[np.argmin(is_equal)]} differs from the log")
        is_near = self.frontier.is_near(entries, dues)
        if is_near.any():
            raise CorruptStore(f"its timer of entry {entries[np.argmax(is_near)]} was never Spark's")

    def choose(self, window: Window, attempt: str, rows: int | None = None, took_ms: int | None = None) -> None:
        """Choose the attempt of a window to load; `save_attempts` makes the choice durable.

        Its rows, and how long it took to build them, are for operators.
        """
        number = window.number
        self._attempts = {
            window.number: self._attempts[window.number]
            for window in self.windows.unfinished()
            if window.number in self._attempts
        } | {number: attempt}
        self.reported.pop(number, None)
        chosen = ChosenWindow(number, window.from_ms, window.until_ms, attempt, rows=rows, took_ms=took_ms)
        if chosen.built_by != _BUILT_HERE:
            chosen.epoch = self._ingest.epoch
        self.built_by[chosen.built_by] += 1
        self._note_chosen(chosen)

    def _note_chosen(self, chosen: ChosenWindow) -> None:
        self._chosen[chosen.number] = chosen
        for number in sorted(self._chosen)[:-LAST_WINDOWS]:
            del self._chosen[number]

    def last_windows(self) -> list[ChosenWindow]:
        """Return the latest windows that have an attempt, finished or not, in order."""
        unfinished = {window.number for window in self.windows.unfinished()}
        return [replace(self._chosen[number], is_finished=number not in unfinished) for number in sorted(self._chosen)]

    def save_attempts(self) -> None:
        """Write the choices to disk, before any row of an attempt is staged. Blocks; may run off the event loop."""
        self._disk.replace(PATH, encode_checked(self._attempts))

    def notes_writer(self) -> Callable[[], None]:
        """Return a blocking function that writes the current window notes; may run off the event loop, in order."""
        return self.notes.writer({window.number for window in self.windows.unfinished()})

    # Retention

    def needed_from(self) -> int:
        """Return the log offset from which Spark, or a build without Spark, still needs every record."""
        queue = self._store.queues.find(TIMER_TOPIC, 0)
        if queue is None or self.frontier.last is None:
            return self._store.log.end
        if not self.is_enabled and self.frontier.far_until_ms < self._saved_wake_ms:
            return self._store.log.end
        first_needed = min(self._ingest.offset, self._names.saved_upto, self._first_needed_cut(self.frontier.last))
        entry = queue.entry(max(queue.min_offset, first_needed))
        return entry[0] if entry else self._store.log.end

    @property
    def _saved_wake_ms(self) -> int:
        """T as on disk: after a restart, windows that end later are loaded again."""
        marks = self._store.waiting.saved_marks
        return marks.wake_ms if marks is not None else 0

    def _first_needed_cut(self, last: Cut) -> int:
        """Return the first entry that a start without a checkpoint or an engine must read from the log.

        From there it learns the last cut, the windows that are not loaded, and later cancels and moves of their timers.
        """
        return min(cut.entry for cut in (*self.frontier.windows_after(self._saved_wake_ms), last))

    # Names of timers that leave the log

    def expiring_entries(self) -> list[Waiting] | None:
        """Return the next entries whose names must be saved before their records leave the log; None if none.

        The list is empty if there are none, but the last names are not on disk yet.
        """
        queue = self._store.queues.find(TIMER_TOPIC, 0)
        if queue is None or self.frontier.last is None:
            return None
        start = max(queue.min_offset, self._names.upto)
        # Stop at the last entry that the engine has on disk: after a crash, later cancels and moves are applied again,
        # by these names. If the engine is lost or changed, this concerns all after the cut of a window not yet loaded.
        marks = self._store.waiting.saved_marks
        upto = min(marks.put_upto if marks is not None else 0, self._first_needed_cut(self.frontier.last))
        found = queue.array(start, min(NAMES_AT_ONCE, upto - start))
        found = found[: np.count_nonzero(found["offset"] < self._expires_until())]
        if not len(found):
            self._names_end = self._names.upto
            return [] if self._names.saved_upto < self._names.upto else None
        entries = np.arange(start, start + len(found), dtype=np.int64)
        codes, physical = found["tags"].astype(np.int64), found["offset"].astype(np.int64)
        kinds, dues = kinds_and_dues(codes)
        # Entries that RocketMQ wrote precede the first cut, so they are the broker's.
        is_far = self.frontier.ownership.far_timers(kinds, entries, dues) & is_timer_code(codes)
        is_waiting = is_far & (dues >= self._timers.marks.all_wake_from_ms())
        is_cancel = is_timer_code(codes) & cancels(kinds)
        rows = np.flatnonzero(is_waiting | is_cancel)
        records = (self._store.log.read(int(physical[row]), int(found["size"][row])) for row in rows)
        waiting = [
            Waiting(
                int(entries[row]), int(kinds[row]), int(dues[row]), bool(is_waiting[row]), record_properties(record)
            )
            for row, record in zip(rows.tolist(), records, strict=True)
        ]
        self._names_end = start + len(found)
        return waiting

    def save_names(self, waiting: list[Waiting]) -> None:
        """Save the names of `expiring_entries`. Blocks; may run off the event loop, one call at a time."""
        if self._names_end > self._names.upto:
            self._names.adopt(waiting, self._names_end, retention_ms=self._retention_ms)
        else:
            self._names.save()

    def sweep_names(self) -> None:
        """Delete names that are no longer needed, a bounded number per call."""
        self._names.sweep(self._timers.marks.all_wake_from_ms(), self._clock.now_ms())


def _load_attempts(disk: Disk) -> dict[int, str]:
    data = disk.read(PATH)
    if data is None:
        return {}
    return decode_checked(data, dict[int, str], PATH, f"Remove {PATH}: attempts are then chosen again")
