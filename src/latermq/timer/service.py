"""The timer service: runs timers and delay levels. A timer passes through five steps, as in RIP-43:

1. Read: the intake follows the timer topic's queue.
2. Put: the write queue writes flushed timers to the engine and removes cancelled ones.
3. Load: the loader reads upcoming slots from the engine ahead of time.
4. Build: the builder fetches the records and stages the blocks that replace them.
5. Deliver: the delivery appends these blocks to their real topics at their due millisecond.

All steps run on the thread that also appends. Each call does a bounded amount of work. Delivered and cancelled timers
form one set, and each step checks it before it passes a timer on. Windows handed back by Spark join at step 4. So do
delay levels, because their queues are already in due order.
"""

from collections import Counter
from collections.abc import Callable

from latermq.config import TimerConfig
from latermq.errors import StoreError
from latermq.message.record import record_properties
from latermq.message.stamp import Stamp
from latermq.message.timer_code import real_topic
from latermq.retry import Backoff
from latermq.store.checkpoint import TimerMarks
from latermq.store.message_store import MessageStore
from latermq.store.ranges import RangeSet
from latermq.timer.counters import Counters, Tallies
from latermq.timer.delivery.builder import Builder
from latermq.timer.delivery.clock_guard import ClockGuard
from latermq.timer.delivery.delivered_counts import DeliveredCounts
from latermq.timer.delivery.delivery import Delivery
from latermq.timer.delivery.in_flight import InFlight
from latermq.timer.delivery.level_sources import LevelSources
from latermq.timer.delivery.timer_source import TimerSource
from latermq.timer.engine.interface import Engine
from latermq.timer.engine.slot_order import SlotOrders
from latermq.timer.far.frontier import Frontier
from latermq.timer.far.windows import Window, Windows
from latermq.timer.flow_control import TimerLimits
from latermq.timer.intake.cancellations import Cancellations
from latermq.timer.intake.intake import Intake
from latermq.timer.intake.loader import RETRY_MS, Loader
from latermq.timer.intake.marks import Marks
from latermq.timer.intake.settled import Settled
from latermq.timer.intake.timer_topic import TimerTopic
from latermq.timer.intake.write_queue import WriteQueue
from latermq.timer.levels import LevelTable
from latermq.timer.pending_slots import PendingSlots

CLOCK_CHECK_MS = 1_000  # a clock change is noticed at the next check
WINDOW_AHEAD_MS = 10_000  # how long before it is built a window's row is read


class TimerService:
    """All pending timers and delayed messages of one broker.

    Only the engine's `sync` runs outside the appending thread.
    """

    def __init__(
        self,
        store: MessageStore,
        engine: Engine,
        levels: LevelTable,
        guard: ClockGuard,
        config: TimerConfig,
        stamp: Stamp,
        *,
        renewal_window_ms: int,
        marks: TimerMarks | None,
        is_engine_whole: bool,
        place_of: Callable[[str, int], int | str],
        on_delivered: Callable[[str, int], None],
    ) -> None:
        """`marks` come from the checkpoint; None without a checkpoint.

        An engine that is not whole does not hold what the marks promise. It is cleared and refilled from the whole
        timer topic. `place_of` maps a topic and a queue id to the queue that receives the message, or to the reason why
        there is none.
        """
        self._store = store
        self._config = config
        self.engine = engine
        self.guard = guard
        self.noted = False  # whether a delayed message was stored since the last round
        self._start_wake_ms = marks.wake_ms if marks else 0
        self._forgotten_ms = 0
        self._put_backoff = Backoff(RETRY_MS, RETRY_MS)

        self.frontier = Frontier(marks.cuts, marks.far_until_ms, marks.frontiers) if marks else Frontier()
        self.topic = TimerTopic(store, self.frontier, renewal_window_ms)
        self.settled = Settled(store, self.topic, marks)
        self.counters = Counters(marks.pending if marks else {})
        self.pending = self.counters.pending  # number of pending timers per topic
        self._orders = SlotOrders(config.max_loaded)

        if is_engine_whole:
            read_from = max(self.topic.first_entry, marks.put_upto if marks else 0)
            # The engine may hold any entry older than this start, whatever the marks say: a crash does not remove
            # entries.
            engine_upto = self.topic.next_entry
        else:
            engine.clear()
            read_from = engine_upto = self.topic.first_entry
        self.write_queue = WriteQueue(
            engine, self.settled, read_from=read_from, engine_upto=engine_upto, counts_slots=bool(config.slot_limit)
        )
        self.loader = Loader(engine, self.settled, self.write_queue, config)
        self.intake = Intake(
            store, self.topic, self.settled, self.write_queue, self.loader, self._orders, config, read_from=read_from
        )
        self.cancellations = Cancellations(self.topic, self.settled, self.write_queue, self._orders)
        self.windows = Windows(
            self.frontier,
            self.settled.is_far_waiting,
            self.loader.covered_ms,
            max_bytes=int(config.stage),
            ahead_ms=WINDOW_AHEAD_MS + config.stage_ahead,
        )

        self._levels = LevelSources(store, levels, guard.wall_ms())
        self._in_flight = InFlight(store, stamp, config)
        self._builder = Builder(
            store, self._levels, self.loader, self.windows, self.settled, self._in_flight, stamp, config
        )
        self.delivered = DeliveredCounts(self.counters)
        self.delivery = Delivery(
            store, self.settled, self._in_flight, self.delivered, place_of=place_of, on_delivered=on_delivered
        )

        self.marks = Marks(
            store, self.topic, self.settled, self.write_queue, self.loader, self.windows, self._in_flight
        )
        self.slots = PendingSlots(engine, self.intake, self.write_queue, self.settled, self.marks, self._orders)
        self.limits = TimerLimits(self.topic, self.write_queue, self.slots, self.counters, config)

    # Start

    def start(self, now_ms: int) -> None:
        """Start from the checkpoint and the log. The caller has already replayed the cancels and moves from P on."""
        self.settled.adopt(self._store.waiting.delivered.pop(0, RangeSet()))
        self.loader.begin(self._start_wake_ms, now_ms)
        self.counters.start()
        self._store.waiting.attach_timers(self.checkpoint, self.engine.sync)

    def open_windows(self, attempts: dict[int, str]) -> None:
        """Open the windows that are not fully delivered, with the attempts that were chosen for them."""
        self.windows.open_all(self.frontier.windows_after(self.settled.wake_ms), attempts)
        for window in self.windows.unfinished():
            window.is_loaded = self.settled.far_spans.end_of_run(window.from_ms) >= window.until_ms

    def recount(self) -> None:
        """Count the pending timers per topic by reading every record. For stores that RocketMQ wrote."""
        records = (
            self._store.log.read(offset, size)
            for units in self.slots.waiting_from(0, 0)
            for offset, size in zip(units.physical_offsets.tolist(), units.sizes.tolist(), strict=True)
        )
        found = Counter(real_topic(record_properties(record)) for record in records)
        self.pending.clear()
        self.pending.update(found)
        self.counters.start()

    # Stored messages

    def note_level(self, level: int, due_ms: int, offset: int) -> None:
        """Note that a message of this level was stored."""
        self._levels.note(level, due_ms, offset)
        self.noted = True

    def note_timer(self) -> None:
        """Note that a record was stored in the timer topic."""
        self.noted = True

    # Rounds

    def run(self) -> int:
        """Do a bounded amount of work in each step; return how many milliseconds may pass until the next call."""
        now_ms = self.guard.now_ms()
        if now_ms is None:
            return CLOCK_CHECK_MS
        self.noted = False
        self.delivery.deliver(now_ms)  # first, because it is due now; the other steps work ahead of time
        self.marks.tidy(now_ms)
        more = self.intake.read()
        more = self._put(now_ms) or more
        more = self.loader.load(now_ms) or more
        more = self._builder.build(now_ms) or more
        if more:
            return 0
        waits = (CLOCK_CHECK_MS, self.delivery.wait_ms(now_ms), self._builder.wait_ms(now_ms))
        return max(0, min(wait_ms for wait_ms in waits if wait_ms is not None))

    def _put(self, now_ms: int) -> bool:
        """Write flushed timers to the engine; return whether there are more."""
        if self.loader.is_reading or not self._put_backoff.is_ready(now_ms):
            return False
        try:
            self._forget_saved()  # first, because it frees space for the writes
            more = self.write_queue.write(self._store.log.flushed, now_ms)
        except StoreError as error:
            self._put_backoff.record_failure(error.remark, now_ms)
            return False
        self._put_backoff.reset()
        return more

    def _forget_saved(self) -> None:
        """Forget everything that the checkpoint on disk no longer needs."""
        saved = self._store.waiting.saved_marks
        if saved is not None and saved.wake_ms > self._forgotten_ms:
            assert saved.wake_ms <= self.settled.wake_ms, "T only grows, and the checkpoint has an earlier one"
            self.engine.forget_below(saved.wake_ms)
            self._forgotten_ms = saved.wake_ms
            self._orders.forget_below(saved.wake_ms)
            self.windows.close_before(saved.wake_ms)
            self.settled.forget_adopted(saved.wake_ms)

    # Marks

    def checkpoint(self) -> tuple[TimerMarks, list[tuple[int, int]]]:
        """Return the timer part of the checkpoint, and the entries delivered beyond its marks."""
        self.marks.advance()
        settled = self.settled
        marks = TimerMarks(
            engine=self._config.engine,
            mark=self.engine.mark(),
            put_upto=self.write_queue.put_upto,
            wake_ms=settled.wake_ms,
            done_upto=settled.delivered_upto,
            done_wake_ms=settled.delivered_wake_ms,
            near_done_wake_ms=settled.near_delivered_wake_ms,
            far_done=settled.far_spans.ranges(),
            pending={topic: count for topic, count in self.pending.items() if count},
            cuts=self.frontier.cuts(),
            frontiers=self.frontier.ownership.rows,
            far_until_ms=self.frontier.far_until_ms,
        )
        return marks, settled.delivered_ranges()

    def level_marks(self) -> dict[int, int]:
        """Return for each level the offset below which everything is delivered, as of the last checkpoint."""
        return self._levels.marks()

    def needed_from(self) -> int:
        """The log offset of the first record that is still pending; retention stops there (invariant 8)."""
        return min(self.marks.needed_from(), self._levels.needed_from())

    # For operators

    @property
    def tallies(self) -> Tallies:
        return self.counters.tallies

    @property
    def failure(self) -> str:
        """Why a step is stalled; empty if all steps make progress."""
        return (
            self._in_flight.kept_back.failure or self._builder.failure or self._put_backoff.error or self.loader.failure
        )

    def late_timers(self, now_ms: int) -> tuple[int, int]:
        """Return the number of overdue timers in memory, and by how many milliseconds the earliest is late."""
        sources: list[TimerSource | Window] = [self.loader.live, self.loader.backlog, *self.windows.sources()]
        count = self._in_flight.late_timers(now_ms) + sum(source.count_due(now_ms) for source in sources)
        heads = [source.head_due_ms() for source in sources]
        firsts = [int(dues[0]) for is_far in (False, True) for dues in self._in_flight.timer_dues(is_far=is_far)]
        first_ms = min([*firsts, *(head for head in heads if head is not None)], default=now_ms)
        return count, max(0, now_ms - first_ms)

    def statistics(self) -> dict[str, int]:
        """Number of timers at each step, and number of deliveries."""
        return {
            "timers_pending": self.pending.total(),
            "timers_unread": self.intake.unread_rows,
            "timers_unput": self.write_queue.rows,
            "timers_loaded": self.loader.rows,
            "timers_cancelled_in_memory": self.settled.cancelled_rows,
            "timers_in_kept_orders": self._orders.rows,
            "timers_done_beyond_marks": self.settled.rows,
            **self.engine.statistics(),
            **self.delivery_statistics(),
        }

    def delivery_statistics(self) -> dict[str, int]:
        """Statistics of building and delivery only. Counting in the engine takes several milliseconds."""
        return {
            **self._in_flight.statistics(),
            "delivered": self.delivered.delivered,
            "undeliverable": self.delivered.dead_letters,
            "level_runs": self._levels.run_count,
        }
