"""Far timers: the broker's half of their way to Spark and back. It makes the cuts and knows which attempts it plays."""

from collections import Counter
from collections.abc import Callable

import numpy as np

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
from latermq.store.files.disk import Disk
from latermq.store.log_writer import Appended, Draft
from latermq.store.message_store import MessageStore
from latermq.timer.far.far_names import FarNames, Waiting
from latermq.timer.far.windows import Window, WindowRows
from latermq.timer.intake.renewal import LONGEST_WINDOW_MS
from latermq.timer.service import TimerService

PATH = "latermq.windows"
NAMES_AT_ONCE = 1_000  # some 4 ms
CUTS_AT_ONCE = 500  # after a long stop there are many to catch up with: some 10 ms of work


class FarTimers:
    """Called by the thread that appends, but for `save_attempts`."""

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
        self._attempts = _load_attempts(disk)  # that were chosen, by window
        self.offered: dict[int, str] = {}  # by a driver: attempts that nobody has looked at yet
        self.built_by: Counter[str] = Counter()  # windows that are played, by who made their attempts
        self._marks = store.waiting.saved_marks
        self._retention_ms = retention_ms
        self._expires_until = expires_until
        self._named_next = 0
        self._names = names
        timers.open_windows(self._attempts)
        self.notes = WindowNotes(disk)
        for window in self.windows.unfinished():
            window.is_skipped = self.notes.skip_of(window.number, window.cut_entry) is not None

    # Cutting

    def run(self) -> None:
        """Make the cuts that the time asks for; call it about once a second."""
        self._forget()
        # Behind a clock that was set back lies T: nothing that is due before may be Spark's.
        now_ms = max(self._clock.now_ms(), self._timers.marks.all_wake_from_ms())
        for _ in range(CUTS_AT_ONCE):
            cut = self._next_cut(now_ms)
            if cut is None:
                return
            self.append([], cut)

    @property
    def is_enabled(self) -> bool:
        """Whether new timers go to Spark: it is wanted, and a driver has begun its work."""
        return self._config.enabled and self._ingest.epoch > 0

    @property
    def is_concerned(self) -> bool:
        """Whether Spark holds timers of this broker, or may come to."""
        return self._config.enabled or self.frontier.last is not None

    def _next_cut(self, now_ms: int) -> Cut | None:
        last, window_ms = self.frontier.last, self._config.window
        target_ms = (now_ms + self._config.near_horizon) // window_ms * window_ms
        if last is None:
            # Nothing is Spark's yet, so it has nothing to hand back.
            return self.cut_at(self.next_entry, target_ms, target_ms) if self.is_enabled else None
        self._timers.intake.read_all()
        handback_ms = last.handback_ms
        if target_ms > handback_ms and (self.is_enabled or self.frontier.has_far):
            handback_ms = min(handback_ms + window_ms, target_ms) if self.frontier.has_far else target_ms
        frontier_ms = self._frontier_ms(now_ms, max(handback_ms, target_ms))
        was_off, is_off = (one == FOREVER_MS for one in (last.frontier_ms, frontier_ms))
        if handback_ms == last.handback_ms and was_off == is_off:
            return None
        return self.cut_at(self.next_entry, frontier_ms, handback_ms)

    @property
    def next_entry(self) -> int:
        """What the next record of the timer topic becomes."""
        queue = self._store.queues.find(TIMER_TOPIC, 0)
        return queue.next_offset if queue is not None else 0

    def cut_at(self, entry: int, frontier_ms: int, handback_ms: int) -> Cut:
        """The cut that follows the last one."""
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
        # While Spark lags, the wheel takes all that it can hold without renewals.
        return max(next_ms, now_ms + LONGEST_WINDOW_MS) if self.lag_ms(now_ms) > self._config.window else next_ms

    def lag_ms(self, now_ms: int) -> int:
        """How old the oldest flushed record is that Spark has not ingested."""
        queue = self._store.queues.find(TIMER_TOPIC, 0)
        if queue is None:
            return 0
        offset = max(queue.min_offset, self._ingest.offset)
        if offset >= self._store.reader.flushed_end(queue):
            return 0
        return max(0, now_ms - self._store.reader.store_timestamp_ms(queue, offset))

    def append(self, before: list[Draft], cut: Cut) -> list[Appended]:
        """Append a cut, and with it as one block what stands before it."""
        now_ms = self._clock.now_ms()
        properties = encode_properties(cut_properties(cut)).encode()
        drafts = [*before, Draft(TIMER_TOPIC, 0, b"", properties, now_ms, self._store_host)]
        appended = self._store.writer.append_all(drafts, self._store.writer.monotonic_store_ms(TIMER_TOPIC, now_ms))
        assert appended[-1].queue_offset == cut.entry, "a cut stands where it says"
        self.frontier.add(cut)
        self.windows.open(cut)
        return appended

    def _forget(self) -> None:
        marks = self._store.waiting.saved_marks
        if marks is not None and marks is not self._marks:
            self._marks = marks
            queue = self._store.queues.ensure(TIMER_TOPIC, 0)
            # Whatever is in the log may be cancelled, ingested, or read again by an engine that is filled anew.
            self.frontier.forget(queue.min_offset, marks.wake_ms)

    # Windows

    def states(self) -> list[Window]:
        """All windows that are not done with."""
        return self.windows.unfinished()

    def ready(self, number: int, attempt: str) -> None:
        """A driver says that an attempt is complete; it is looked at when the window's turn comes."""
        if self.windows.find(number) is None:
            raise InvalidParameter(f"there is no window {number}", hint="It may be done with: ask for the state again")
        if not is_file_name(attempt) or attempt.startswith("."):
            raise InvalidParameter(f"{attempt[:40]!r} is no name of an attempt")
        self.offered[number] = attempt

    def check_rows(self, rows: WindowRows) -> None:
        """Refuse rows of an attempt that are not what the log, as far as it goes back, says of their entries.

        A timer that is the broker's own would else be delivered at whatever time the row says.
        """
        queue = self._store.queues.find(TIMER_TOPIC, 0)
        first = max(queue.min_offset, self.frontier.ownership.known_from) if queue is not None else 0
        kept = rows.entries >= first
        if queue is None or not kept.any():
            return
        order = np.argsort(rows.entries[kept], kind="stable")
        entries, dues, sizes = (column[kept][order] for column in (rows.entries, rows.dues, rows.sizes))
        if entries[-1] >= queue.next_offset:
            raise CorruptStore(f"it has a timer of entry {entries[-1]}, which is not there yet")
        found = queue.gather(entries)
        kinds, own_dues = kinds_and_dues(found["tags"].astype(np.int64))
        is_own = (own_dues == dues) & schedules(kinds) & (found["size"] == sizes)
        if not is_own.all():
            raise CorruptStore(f"its timer of entry {entries[np.argmin(is_own)]} is not what the log has there")
        is_near = self.frontier.is_near(entries, dues)
        if is_near.any():
            raise CorruptStore(f"its timer of entry {entries[np.argmax(is_near)]} was never Spark's")

    def choose(self, number: int, attempt: str) -> None:
        """Note which attempt of a window is going to be played; `save_attempts` makes it durable."""
        self._attempts = {
            window.number: self._attempts[window.number]
            for window in self.windows.unfinished()
            if window.number in self._attempts
        } | {number: attempt}
        self.offered.pop(number, None)
        self.built_by[attempt.partition("-")[0]] += 1

    def save_attempts(self) -> None:
        """Make the choice durable: nothing of an attempt is staged before. Blocks; may run beside the others."""
        self._disk.replace(PATH, encode_checked(self._attempts))

    def notes_writer(self) -> Callable[[], None]:
        """What makes the notes on windows durable as they are now. Blocks; may run beside the others, in order."""
        return self.notes.writer({window.number for window in self.windows.unfinished()})

    # Retention

    def needed_from(self) -> int:
        """The log offset from which on Spark, or a roll without it, still needs every record."""
        queue = self._store.queues.find(TIMER_TOPIC, 0)
        if queue is None or self.frontier.last is None:
            return self._store.log.end
        if not self.is_enabled and self.frontier.far_until_ms < self._saved_wake_ms:
            return self._store.log.end
        needed = min(self._ingest.offset, self._names.upto, self._first_needed_cut(self.frontier.last))
        entry = queue.entry(max(queue.min_offset, needed))
        return entry[0] if entry else self._store.log.end

    @property
    def _saved_wake_ms(self) -> int:
        """T as a start would find it: windows that end behind it are played again."""
        marks = self._store.waiting.saved_marks
        return marks.wake_ms if marks is not None else 0

    def _first_needed_cut(self, last: Cut) -> int:
        """The entry from which on the log alone tells what a start without a checkpoint or an engine has to know.

        That is how far cuts have come, which windows are not played, and what of these was cancelled or moved since.
        """
        return min(cut.entry for cut in (*self.frontier.windows_after(self._saved_wake_ms), last))

    # Names of what leaves the log

    def names_to_keep(self) -> list[Waiting] | None:
        """The next entries of the timer topic whose records are about to leave the log; None where none is."""
        queue = self._store.queues.find(TIMER_TOPIC, 0)
        if queue is None or self.frontier.last is None:
            return None
        start = max(queue.min_offset, self._names.upto)
        # Only what the engine on disk has heard of: cancels and moves behind act again after a death, by these names.
        # Where the engine is lost or changed all do that are behind the cut of a window which is not played.
        marks = self._store.waiting.saved_marks
        upto = min(marks.put_upto if marks is not None else 0, self._first_needed_cut(self.frontier.last))
        found = queue.array(start, min(NAMES_AT_ONCE, upto - start))
        found = found[: np.count_nonzero(found["offset"] < self._expires_until())]
        if not len(found):
            return None
        entries = np.arange(start, start + len(found), dtype=np.int64)
        codes, physical = found["tags"].astype(np.int64), found["offset"].astype(np.int64)
        kinds, dues = kinds_and_dues(codes)
        # Whatever RocketMQ wrote is older than the first cut, and so the broker's.
        is_far = self.frontier.ownership.far_timers(kinds, entries, dues) & is_timer_code(codes)
        waits = is_far & (dues >= self._timers.marks.all_wake_from_ms())
        takes = is_timer_code(codes) & cancels(kinds)
        rows = np.flatnonzero(waits | takes)
        records = (self._store.log.read(int(physical[row]), int(found["size"][row])) for row in rows)
        waiting = [
            Waiting(int(entries[row]), int(kinds[row]), int(dues[row]), bool(waits[row]), record_properties(record))
            for row, record in zip(rows.tolist(), records, strict=True)
        ]
        self._named_next = start + len(found)
        return waiting

    def keep_names(self, waiting: list[Waiting]) -> None:
        """Write what `names_to_keep` told. Blocks; may run beside the others, once at a time."""
        self._names.adopt(waiting, self._named_next, retention_ms=self._retention_ms)

    def sweep_names(self) -> None:
        """Let go of names that nobody asks for any more; a bounded piece."""
        self._names.sweep(self._timers.marks.all_wake_from_ms(), self._clock.now_ms())


def _load_attempts(disk: Disk) -> dict[int, str]:
    data = disk.read(PATH)
    if data is None:
        return {}
    return decode_checked(data, dict[int, str], PATH, f"Remove {PATH}: attempts are then chosen anew")
