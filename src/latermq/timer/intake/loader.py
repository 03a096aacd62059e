"""The loader: reads upcoming slots from the engine ahead of time, as sources for the builder."""

from latermq.config import TimerConfig
from latermq.errors import StoreError
from latermq.message.slots import SLOT_MS, last_slot_start, slot_of
from latermq.retry import Backoff
from latermq.timer.delivery.lateness import PUNCTUAL_MS
from latermq.timer.delivery.timer_source import TimerSource
from latermq.timer.engine.interface import Engine, Units
from latermq.timer.intake.settled import Settled
from latermq.timer.intake.write_queue import WriteQueue

RETRY_MS = 1_000  # the pause of a step that failed for a temporary reason, such as a full disk


class Loader:
    """Two sources: timers on time, and those overdue at the broker's start."""

    def __init__(self, engine: Engine, settled: Settled, write_queue: WriteQueue, config: TimerConfig) -> None:
        self._engine = engine
        self._settled = settled
        self._write_queue = write_queue
        self._config = config
        self._split_ms = 0
        self.live = TimerSource(engine, 0, None, write_queue.from_engine)
        self.backlog = TimerSource(engine, 0, 0, write_queue.from_engine)
        self._backoff = Backoff(RETRY_MS, RETRY_MS)

    def begin(self, wake_ms: int, now_ms: int) -> None:
        """At a start: begin at `wake_ms`, before which no timer is pending."""
        self._split_ms = split_ms = max(0, last_slot_start(now_ms - PUNCTUAL_MS))
        start_ms = min(split_ms, max(0, slot_of(wake_ms)))
        from_engine = self._write_queue.from_engine
        self.backlog = TimerSource(self._engine, start_ms, split_ms, from_engine)
        self.live = TimerSource(self._engine, split_ms, None, from_engine, first_ms=split_ms)

    def load(self, now_ms: int) -> bool:
        """Read a piece of the timers that wake within the staging period; return whether there is more."""
        if not self._backoff.is_ready(now_ms):
            return False
        until_ms = now_ms + self._config.stage_ahead + SLOT_MS
        more, error = False, None
        for source in (self.live, self.backlog):
            before_ms = source.horizon_ms
            try:
                more = source.load(until_ms, self._config.max_loaded) or more
            except StoreError as failure:
                error = failure
            if source.horizon_ms > before_ms:
                # The engine does not have these yet, and their slots are not read again.
                for units in self._write_queue.pieces():
                    soon = units.where(source.covers(units.wakes) & (units.wakes > before_ms))
                    source.add(self._settled.waiting(soon))
        if error is None:
            self._backoff.reset()
        else:
            self._backoff.record_failure(error.remark, now_ms)
        return more

    def add(self, units: Units) -> None:
        """Add new timers that wake within the loaded slots, since these are not read from the engine again."""
        for source in (self.backlog, self.live):
            source.add(units.where(source.covers(units.wakes)))

    @property
    def failure(self) -> str:
        return self._backoff.error

    @property
    def is_reading(self) -> bool:
        """Whether a slot is partly read. Nothing may be put into the engine until it is complete."""
        return self.live.is_reading or self.backlog.is_reading

    @property
    def rows(self) -> int:
        """Number of loaded timers."""
        return self.live.rows + self.backlog.rows

    def covered_ms(self, due_ms: int) -> int:
        """Return for a due time the time up to which cancels of window timers are loaded."""
        source = self.live if due_ms > self._split_ms else self.backlog
        return source.horizon_ms - (SLOT_MS if source.is_reading else 0)

    def all_wake_from_ms(self) -> int:
        """Return a lower bound of the wake times of timers in the engine, or loaded and not yet popped."""
        return min(self.live.all_wake_from_ms(), self.backlog.all_wake_from_ms())

    def head_due_ms(self) -> int | None:
        """Return when the next loaded timer wakes; None if none is loaded."""
        heads = (self.live.head_due_ms(), self.backlog.head_due_ms())
        return min((head for head in heads if head is not None), default=None)
