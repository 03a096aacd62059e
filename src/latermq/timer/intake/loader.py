"""The loader: reads coming slots back from the engine ahead of their time, as sources of the blocks to be built."""

from latermq.config import TimerConfig
from latermq.errors import StoreError
from latermq.message.slots import SLOT_MS, last_slot_start, slot_of
from latermq.timer.delivery.lateness import PUNCTUAL_MS
from latermq.timer.delivery.timer_source import TimerSource
from latermq.timer.engine.interface import Engine, Units
from latermq.timer.intake.pause import Pause
from latermq.timer.intake.settled import Settled
from latermq.timer.intake.write_queue import WriteQueue


class Loader:
    """Two sources: timers that are on time, and those that were overdue when the broker started."""

    def __init__(self, engine: Engine, settled: Settled, write_queue: WriteQueue, config: TimerConfig) -> None:
        self._engine = engine
        self._settled = settled
        self._write_queue = write_queue
        self._config = config
        self._split_ms = 0
        self.live = TimerSource(engine, 0, None, write_queue.from_engine)
        self.backlog = TimerSource(engine, 0, 0, write_queue.from_engine)
        self._pause = Pause()

    def begin(self, wake_ms: int, now_ms: int) -> None:
        """At a start: nothing that wakes before `wake_ms` waits."""
        self._split_ms = split_ms = max(0, last_slot_start(now_ms - PUNCTUAL_MS))
        start_ms = min(split_ms, max(0, slot_of(wake_ms)))
        from_engine = self._write_queue.from_engine
        self.backlog = TimerSource(self._engine, start_ms, split_ms, from_engine)
        self.live = TimerSource(self._engine, split_ms, None, from_engine, first_ms=split_ms)

    def load(self, now_ms: int) -> bool:
        """Read a piece of what wakes within the time that is staged ahead; whether there is more."""
        if self._pause.is_on(now_ms):
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
                # The engine does not have these yet, and will not be asked for their slots again.
                for units in self._write_queue.pieces():
                    soon = units.where(source.covers(units.wakes) & (units.wakes > before_ms))
                    source.add(self._settled.waiting(soon))
        if error is None:
            self._pause.end()
        else:
            self._pause.begin(error, now_ms)
        return more

    def add(self, units: Units) -> None:
        """New timers: those that wake within the loaded slots are not read back from the engine."""
        for source in (self.backlog, self.live):
            source.add(units.where(source.covers(units.wakes)))

    @property
    def failure(self) -> str:
        return self._pause.failure

    @property
    def is_reading(self) -> bool:
        """Whether a slot is half read: nothing may be put into the engine meanwhile."""
        return self.live.is_reading or self.backlog.is_reading

    @property
    def rows(self) -> int:
        """How many timers are loaded."""
        return self.live.rows + self.backlog.rows

    def covered_ms(self, due_ms: int) -> int:
        """Up to when cancels of windows' timers are loaded, where one is due at this time."""
        source = self.live if due_ms > self._split_ms else self.backlog
        return source.horizon_ms - (SLOT_MS if source.is_reading else 0)

    def all_wake_from_ms(self) -> int:
        """Nothing in the engine or loaded that was not popped from here wakes before this time."""
        return min(self.live.all_wake_from_ms(), self.backlog.all_wake_from_ms())

    def head_due_ms(self) -> int | None:
        """When the next loaded timer wakes, None where none is loaded."""
        heads = (self.live.head_due_ms(), self.backlog.head_due_ms())
        return min((head for head in heads if head is not None), default=None)
