"""Timers: from the timer topic into the engine, out of it again ahead of their time, and the marks of both.

Five steps joined by bounded hand-overs, after RIP-43: `read` follows the timer topic's queue, `put` writes what is
flushed into the engine, `load` reads the coming slots back; the delivery then fetches their records (building) and puts
them to their topics (delivery.py). They all run on the one thread that also appends, a bounded piece at a time.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Protocol

import numpy as np

from latermq.arrays import Bools, Ints
from latermq.config import TimerConfig
from latermq.errors import FlowControl, StoreError
from latermq.message.names import TIMER_TOPIC
from latermq.message.record import record_properties
from latermq.message.timer_code import CANCEL, CUT, is_timer_code, kinds_and_dues, real_topic
from latermq.store.checkpoint import TimerMarks
from latermq.store.consume_queue import ConsumeQueue
from latermq.store.message_store import MessageStore
from latermq.store.ranges import RangeSet
from latermq.timer.counters import Tallies
from latermq.timer.delivery.lateness import DELAY_BOUNDS_MS, PUNCTUAL_MS, Distribution
from latermq.timer.delivery.timer_source import TimerSource
from latermq.timer.engine.interface import SLOT_MS, Engine, Units, slot_of
from latermq.timer.engine.slot_order import SlotOrder, SlotOrders
from latermq.timer.far.frontier import Frontier
from latermq.timer.far.windows import Window, Windows
from latermq.timer.intake.cancellations import GONE, TAKEN_SIZE, Taken, Taking, Verdict, notes_of
from latermq.timer.intake.delivered_set import Done, not_in
from latermq.timer.intake.renewal import wakes_of
from latermq.timer.intake.write_queue import Unput

READ_AT_ONCE = 16_384  # entries that one step takes from the queue: about 1 ms
PUT_AT_ONCE = 16_384
REMOVE_AT_ONCE = 4_096
RETRY_MS = 1_000
TIDY_ROWS = 100_000  # ids of deliveries above which the marks are moved on, whatever the checkpoints do
# Then what is on time waits for what is late: 16 MB, and at most as much in a checkpoint.
MAX_DONE_ROWS = 1_000_000
WINDOW_AHEAD_MS = 10_000  # so much earlier than it is built a window's row is read


def slot_below(wake_ms: int) -> int:
    """The slot of one time."""
    return max(0, (wake_ms - 1) // SLOT_MS * SLOT_MS)


_NONE = 1 << 62


class HeldDues(Protocol):
    """Whoever holds what was taken from the sources."""

    def __call__(self, *, is_far: bool) -> Iterator[Ints]: ...


def _nothing_held(*, is_far: bool) -> Iterator[Ints]:
    return iter(())


class Timers:
    """All timers of one broker. Everything but `sync` is called by the thread that appends."""

    def __init__(
        self, store: MessageStore, engine: Engine, config: TimerConfig, *, window_ms: int, marks: TimerMarks | None
    ) -> None:
        """`engine` holds what `marks` says, or is empty where there are none."""
        self._store = store
        self.engine = engine
        self._config = config
        self.window_ms = window_ms
        # Of the broker's own timers and of Spark's: the marks of the two go on independently.
        self._done, self._far_done = Done(), Done()
        self._tidy_above = TIDY_ROWS
        self._tidied_at_ms = 0
        self._done_upto = marks.done_upto if marks else 0
        self._done_wake_ms = marks.done_wake_ms if marks else 0
        self._start_wake_ms = marks.wake_ms if marks else 0
        self._last_wake_ms = max(self._start_wake_ms, self._done_wake_ms)  # T as it was last told,
        # and the same for the broker's own timers, which a window that is missing does not hold back.
        self._near_done_wake_ms = max(self._done_wake_ms, marks.near_done_wake_ms if marks else 0)
        self._last_near_ms = max(self._last_wake_ms, self._near_done_wake_ms)
        self._far_spans = RangeSet(marks.far_done if marks else ())  # due times at which all of Spark's are done
        self._now_ms = 0
        queue = self._queue()
        self._read_next = max(queue.min_offset if queue else 0, marks.put_upto if marks else 0)
        self._new_from = queue.next_offset if queue else 0
        # What is older than this start may be in the engine, whatever the marks say: a crash need not take it out.
        self._engine_upto = self._new_from
        self._unput = Unput(counts_slots=bool(config.slot_limit))
        # Not put at all, since T has passed the time at which they wake: the clock was set back, or has not come to
        # where it was before a restart. They hold P until they are delivered.
        self._held = Units.join([])
        self._first_held = _NONE
        self._taken = Taken()
        self.pending: Counter[str] = Counter(marks.pending if marks else {})
        self.tallies = Tallies(Counter())
        self.delays = Distribution(DELAY_BOUNDS_MS)  # how long timers were asked to wait
        self._forgotten_ms = 0
        self._retry_at_ms = self._read_again_at_ms = 0
        self.failure = ""
        self._orders = SlotOrders(config.max_loaded)
        self.read_rows = self.put_rows = self.delivered_rows = 0
        self.frontier = Frontier(marks.cuts, marks.far_until_ms, marks.frontiers) if marks else Frontier()
        ahead_ms = WINDOW_AHEAD_MS + config.stage_ahead
        self.windows = Windows(self.frontier, max_bytes=int(config.stage), ahead_ms=ahead_ms)
        self.windows.still_wanted = self._window_rows_wanted
        self.windows.covered_ms = self._covered_ms
        self._has_windows = False  # once those of the checkpoint are opened: before, they hold T where it is
        self._adopted_done = RangeSet()  # delivered before the start, and their records are gone
        self._adopted_until_ms = self._split_ms = 0
        self.live = TimerSource(engine, 0, None, self._of_engine)
        self.backlog = TimerSource(engine, 0, 0, self._of_engine)
        # What the delivery holds of these sources: when it wakes, in order in each array.
        self.held_dues: HeldDues = _nothing_held

    def sources(self) -> list[TimerSource | Window]:
        """All that timers come from now."""
        return [self.live, self.backlog, *self.windows.sources()]

    def _queue(self) -> ConsumeQueue | None:
        return self._store.queues.find(TIMER_TOPIC, 0)

    # Starting

    def start(self, now_ms: int) -> None:
        """Begin with what the checkpoint and the log say; cancels and moves from P on are marked by the caller."""
        self._adopt_delivered(self._store.waiting.delivered.pop(0, RangeSet()))
        split_ms = max(0, (now_ms - PUNCTUAL_MS) // SLOT_MS * SLOT_MS)
        start_ms = min(split_ms, slot_below(self._start_wake_ms))
        self.backlog = TimerSource(self.engine, start_ms, split_ms, self._of_engine)
        self.live = TimerSource(self.engine, split_ms, None, self._of_engine, first_ms=split_ms)
        self._split_ms = split_ms
        # Nothing was delivered before it was due: of these no timer of the broker's own wakes behind the log's end.
        self._adopted_until_ms = max(self.frontier.handback_ms, self._store.writer.last_store_timestamp_ms + 1)
        self.tallies = Tallies(Counter(self.pending))
        self._store.waiting.attach_timers(self.marks, self.engine.sync)

    def rebuild(self) -> None:
        """The engine has lost what it held: fill it again from the whole timer topic."""
        self.engine.clear()
        queue = self._queue()
        self._read_next = self._engine_upto = queue.min_offset if queue else 0

    def open_windows(self, attempts: dict[int, str]) -> None:
        """Open the windows that are not done with, for which these attempts were chosen."""
        self.windows.open_all(self.frontier.windows_after(self._last_wake_ms), attempts)
        for window in self.windows.unfinished():
            window.is_loaded = self._far_spans.end_of_run(window.from_ms) >= window.until_ms
        self._has_windows = True

    @property
    def put_upto_at_start(self) -> int:
        """The entry from which on cancels and moves have to be read again."""
        return self._read_next

    def _adopt_delivered(self, delivered: RangeSet) -> None:
        queue = self._queue()
        if queue is None or not len(delivered):
            return
        parts = [np.arange(start, end, dtype=np.int64) for start, end in delivered.ranges()]
        all_entries = np.concatenate(parts)
        entries = all_entries[(all_entries >= queue.min_offset) & (all_entries < queue.next_offset)]
        found = queue.gather(entries)
        physical = found["offset"].astype(np.int64)
        kept = physical >= self._store.log.start
        entries, physical = entries[kept], physical[kept]
        _, dues = self.read_codes(found[kept]["tags"].astype(np.int64), physical)
        wakes, _ = self._wakes_of(entries, dues, physical)
        near = self.frontier.is_near(entries, dues)
        self._done.add(entries[near], wakes[near])
        self._far_done.add(entries[~near], wakes[~near])
        # Only windows hold what has left the log; nobody knows when these were due before their windows are played.
        self._adopted_done.add_all(np.setdiff1d(all_entries, entries))

    def _wakes_of(self, entries: Ints, dues: Ints, physical: Ints) -> tuple[Ints, Bools]:
        """When these timers wake, and which of them roll then. Spark's never roll."""
        wakes, rolls = dues.copy(), np.zeros(len(dues), bool)
        near = self.frontier.is_near(entries, dues)
        wakes[near], rolls[near] = wakes_of(self._store.log, entries[near], dues[near], physical[near], self.window_ms)
        return wakes, rolls

    # The first step: reading the timer topic

    def step(self, now_ms: int) -> bool:
        """Do a bounded piece of each step; whether there is more to do at once."""
        self._now_ms = now_ms
        if self._done.rows + self._far_done.rows >= self._tidy_above or (
            self.is_ahead and abs(now_ms - self._tidied_at_ms) >= RETRY_MS
        ):
            self._advance()
        more = self._read()
        more = self._put_flushed(now_ms) or more
        return self._load(now_ms) or more

    def _read(self) -> bool:
        """Follow the timer topic: what wakes within the loaded slots goes to them at once."""
        queue = self._queue()
        if queue is None or self._unput.rows >= self._config.max_waiting:
            return False
        self._read_next = max(self._read_next, queue.min_offset)
        found = queue.array(self._read_next, READ_AT_ONCE)
        if not len(found):
            return False
        entries = np.arange(self._read_next, self._read_next + len(found), dtype=np.int64)
        self._read_next += len(found)
        self.read_rows += len(found)
        units = self._units(entries, found["offset"].astype(np.int64), found["size"].astype(np.int64), found["tags"])
        units = self._still_wanted(units)
        self._unput.add(units)
        self._orders.note_added(units)
        for source in (self.backlog, self.live):
            source.add(units.where(source.covers(units.wakes)))
        return self._read_next < queue.next_offset

    def read_all(self) -> None:
        """Whoever looks at what is pending sees what was stored before."""
        while self._read():
            pass

    def _units(self, entries: Ints, physical: Ints, sizes: Ints, codes: Ints) -> Units:
        """The timers among these entries of the topic's queue."""
        kinds, dues = self.read_codes(codes.astype(np.int64), physical)
        timers = (kinds != CANCEL) & (kinds != CUT)
        # The last store time stands for all: they were stored a moment ago, and reading each one's takes 0.2 µs.
        self.delays.add(dues[timers & (entries >= self._new_from)] - self._store.writer.last_store_timestamp_ms)
        near = self.frontier.is_near(entries, dues)
        self.frontier.note_far(dues[timers & ~near])
        timers &= near
        entries, physical, sizes, dues = entries[timers], physical[timers], sizes[timers], dues[timers]
        wakes, rolls = wakes_of(self._store.log, entries, dues, physical, self.window_ms)
        return Units(entries, wakes, physical, sizes, rolls)

    def read_codes(self, codes: Ints, physical: Ints) -> tuple[Ints, Ints]:
        """What these queue entries are, and when they are due."""
        foreign = ~is_timer_code(codes)
        if foreign.any():  # RocketMQ wrote the queue: the records tell
            codes = codes.copy()
            for row in np.flatnonzero(foreign).tolist():
                codes[row] = self._store.reader.waiting_code_at(int(physical[row]))
        return kinds_and_dues(codes)

    def _still_wanted(self, units: Units) -> Units:
        """Without those that are delivered, cancelled or moved."""
        told = self._is_told_near(units.entries, units.wakes)
        wanted = self._done.missing(units.entries) & self.not_cancelled(units.entries) & ~told
        if len(self._adopted_done):  # the log may have lost a record since the checkpoint that an engine still knows
            wanted &= self._adopted_done.missing(units.entries)
        return units.where(wanted)

    def _is_told_near(self, entries: Ints, wakes: Ints) -> Bools:
        """Which of these, if they are the broker's own, the marks know to be done."""
        return (entries < self._done_upto) & (wakes < self._near_done_wake_ms)

    def _is_told_far(self, entries: Ints, dues: Ints) -> Bools:
        """The same if they are Spark's."""
        below_marks = (entries < self._done_upto) & (dues < self._done_wake_ms)
        return below_marks | ~self._far_spans.missing(dues)

    def is_done(self, entries: Ints, dues: Ints, physical: Ints) -> Bools:
        """Which of these timers are delivered or rolled. `physical` is GONE of what has left the log."""
        wakes, near = dues.copy(), physical != GONE
        near[near] = self.frontier.is_near(entries[near], dues[near])
        wakes[near], _ = self._wakes_of(entries[near], dues[near], physical[near])
        is_done = np.where(near, self._is_told_near(entries, wakes), self._is_told_far(entries, dues))
        delivered = self._store.waiting.delivered.get(0, RangeSet())  # which `start` makes its own
        for known in (self._done, self._far_done, self._adopted_done, delivered):
            is_done |= ~known.missing(entries)
        return is_done

    def _window_rows_wanted(self, entries: Ints, dues: Ints) -> Bools:
        told = self._is_told_far(entries, dues)
        wanted = self._far_done.missing(entries) & self.not_cancelled(entries) & ~told
        if len(self._adopted_done):
            wanted &= self._adopted_done.missing(entries)
        return wanted

    def _covered_ms(self, due_ms: int) -> int:
        """Up to when cancels of windows' timers are loaded, where one is due at this time."""
        source = self.live if due_ms > self._split_ms else self.backlog
        return source.horizon_ms - (SLOT_MS if source.is_reading else 0)

    def _of_engine(self, units: Units) -> Units:
        """What is wanted of this that the engine holds: after a crash it may have what is still on its way to it."""
        notes = units.sizes == TAKEN_SIZE
        if notes.any():
            self._taken.add(units.where(notes), 0, np.ones(np.count_nonzero(notes), bool))
            units = units.where(~notes)
        known = units.entries < self._first_unput()
        if len(self._held.entries):
            known &= not_in(units.entries, np.sort(self._held.entries))
        return self._still_wanted(units.where(known))

    # The second: putting into the engine

    def _put_flushed(self, now_ms: int) -> bool:
        """Put what is below F into the engine, then remove what was taken; whether there is more."""
        if self.live.is_reading or self.backlog.is_reading or 0 < self._retry_at_ms - now_ms <= RETRY_MS:
            return False
        flushed = self._store.log.flushed
        try:
            # First, since it makes room for what follows.
            self._forget_saved()
            if count := self._put_first(flushed, now_ms):
                self._unput.drop_first(count)
                self.put_rows += count
                return True
            more = self._remove_flushed(flushed, now_ms)
        except StoreError as error:
            self.failure = error.remark
            self._retry_at_ms = now_ms + RETRY_MS
            return False
        self._retry_at_ms = 0
        if not self._read_again_at_ms:
            self.failure = ""
        return more

    def _put_first(self, flushed: int, now_ms: int) -> int:
        """How many of those that wait to be put are in the engine now, or need not be."""
        if not self._unput.rows:
            return 0
        units = self._unput.first_below(flushed, PUT_AT_ONCE)
        wanted = self._still_wanted(units)
        held = wanted.wakes < self._last_near_ms
        self.engine.put(wanted.where(~held), now_ms)
        if held.any():
            self._held = Units.join([self._held, wanted.where(held)])
            self._look_at_held()
        return len(units.entries)

    def _remove_flushed(self, flushed: int, now_ms: int) -> bool:
        """Remove what was taken by cancels and moves below F; whether there is more.

        Only what went in can come out: of what is taken before it is put, nothing goes in.
        """
        verdicts = self._taken.first_below(flushed, REMOVE_AT_ONCE)
        if verdicts:
            self.engine.remove(Units.join([verdict.units for verdict in verdicts]), now_ms)
            notes = Units.join([verdict.notes for verdict in verdicts])
            # What is due before T is done with, and an engine takes nothing of that time.
            self.engine.put(notes.where(notes.wakes >= self._last_wake_ms), now_ms)
            self._taken.drop_first(len(verdicts))
        return bool(verdicts)

    def _forget_saved(self) -> None:
        """Let the engine forget what the checkpoint on disk does not need."""
        saved = self._store.waiting.saved_marks
        if saved is not None and saved.wake_ms > self._forgotten_ms:
            self.engine.forget_below(saved.wake_ms)
            self._forgotten_ms = saved.wake_ms
            self._orders.forget_below(saved.wake_ms)
            self.windows.close_before(saved.wake_ms)
            if len(self._adopted_done) and saved.wake_ms >= self._adopted_until_ms:
                self._adopted_done = RangeSet()

    # The third: loading the coming slots

    def _load(self, now_ms: int) -> bool:
        if 0 < self._read_again_at_ms - now_ms <= RETRY_MS:
            return False
        self._read_again_at_ms = 0
        until_ms = now_ms + self._config.stage_ahead + SLOT_MS
        more = False
        for source in (self.live, self.backlog):
            before_ms = source.horizon_ms
            try:
                more = source.load(until_ms, self._config.max_loaded) or more
            except StoreError as error:
                self.failure = error.remark
                self._read_again_at_ms = now_ms + RETRY_MS
            if source.horizon_ms > before_ms:
                # The engine does not have these yet, and will not be asked for their slots again.
                for units in (*self._unput, self._held):
                    soon = units.where(source.covers(units.wakes) & (units.wakes > before_ms))
                    source.add(self._still_wanted(soon))
        return more

    # Cancelling and delivering

    def not_cancelled(self, entries: Ints) -> Bools:
        """For each of these entries whether no cancel or move took it, as far as that is not in the engine yet."""
        return self._taken.missing(entries)

    def taking(self, entries: Ints, dues: Ints, physical: Ints, sizes: Ints) -> Taking:
        """What a cancel or a move of these has to do here. `physical` is GONE of what has left the log.

        What Spark holds and has not handed back is none of the broker's business: the cancel lies before the cut by
        which that comes back, and the roll leaves it out.
        """
        # Cuts decide about what is in the log; only Spark's timers outlive it.
        near = physical != GONE
        near[near] = self.frontier.is_near(entries[near], dues[near])
        acts = near | (dues < self.frontier.handback_ms)
        near = near[acts]
        entries, physical, sizes, dues = (column[acts] for column in (entries, physical, sizes, dues))
        wakes, rolls = dues.copy(), np.zeros(len(dues), bool)
        wakes[near], rolls[near] = wakes_of(self._store.log, entries[near], dues[near], physical[near], self.window_ms)
        return Taking(Units(entries, wakes, physical, sizes, rolls), near, np.flatnonzero(acts))

    def take_out(self, entry: int, end_offset: int, taking: Taking) -> None:
        """A cancel or a move was appended as `entry` and takes these. Nothing here can fail."""
        self._taken.add(taking.units, entry, ~taking.is_near)
        self._orders.note_taken(taking.units)
        self._tell_engine(entry, end_offset, taking.units, taking.is_near)

    def take_all_out(self, by: Ints, ends: Ints, taking: Taking) -> None:
        """The same for many, of each of which it is known who took it and where that one's record ends, in order."""
        by, ends = by[taking.rows], ends[taking.rows]
        self._taken.add_all(taking.units, by, ~taking.is_near)
        self._orders.note_taken(taking.units)
        for start in range(0, len(by), REMOVE_AT_ONCE):
            part = np.arange(start, min(start + REMOVE_AT_ONCE, len(by)))
            units, near = taking.units.where(part), taking.is_near[part]
            self._tell_engine(int(by[start]), int(ends[part[-1]]), units, near)

    def _tell_engine(self, entry: int, end_offset: int, units: Units, near: Bools) -> None:
        # What was not put yet will not be.
        was_put = units.entries < max(self._first_unput(), self._engine_upto)
        notes = notes_of(units.where(~near), end_offset)
        self._taken.tell_engine(Verdict(entry, end_offset, units.where(was_put & near), notes))

    def leave(self, topic: str, count: int) -> None:
        """So many timers for a topic wait no longer: delivered, buried, or taken by a cancel or a move."""
        self.pending[topic] -= count
        self.tallies.left[topic] += count

    def delivered(self, entries: Ints, wakes: Ints, *, is_far: bool | None = None) -> None:
        """These were appended to where they go. Where nobody knows whose they were, they count for both."""
        self.delivered_rows += len(entries)
        if is_far is not True:
            self._done.add(entries, wakes)
        if is_far is not False:
            self._far_done.add(entries, wakes)

    # Looking

    def recount(self) -> None:
        """Count what is pending for each topic by reading every record of it; for stores that RocketMQ wrote."""
        records = (
            self._store.log.read(offset, size)
            for units in self.waiting_from(0, 0)
            for offset, size in zip(units.physical_offsets.tolist(), units.sizes.tolist(), strict=True)
        )
        self.pending = Counter(real_topic(record_properties(record)) for record in records)
        self.tallies = Tallies(Counter(self.pending))

    def waiting_from(self, wake_ms: int, until_ms: int) -> Iterator[Units]:
        """All that is pending and wakes from this time on, slot by slot, in order; up to `until_ms`, or 0 for all.

        A slot may turn out to be empty.

        Where something rolls before it is due, `until_ms` does not leave it out: it may be due in any range.
        """
        self.read_all()
        slot_ms = self.next_waiting_slot_ms(slot_below(wake_ms))
        while slot_ms is not None:
            units = self._in_slot(slot_ms)
            if until_ms and slot_ms >= until_ms:
                units = units.where(units.rolls)
            yield units.in_order()
            slot_ms = self.next_waiting_slot_ms(slot_ms + SLOT_MS)

    def next_waiting_slot_ms(self, slot_ms: int) -> int | None:
        """The first slot at or after this time that may hold what is pending, of what was read; None where none is."""
        engine_slot_ms = slot_below(self._near_wake_from_ms())  # what the engine holds of earlier times is delivered
        nexts = [self.engine.next_slot_ms(max(slot_ms, engine_slot_ms))]
        for units in (*self._unput, self._held):
            slots = slot_of(units.wakes)
            nexts.append(int(slots.min(where=slots >= slot_ms, initial=_NONE)))
        return min((slot for slot in nexts if slot is not None and slot < _NONE), default=None)

    def _in_slot(self, slot_ms: int) -> Units:
        """What is pending of one slot, in no order."""
        engine_ms = self._near_wake_from_ms()
        pieces = self.engine.read(slot_ms, slot_ms + SLOT_MS)
        parts = [self._of_engine(piece.where(piece.wakes >= engine_ms)) for piece in pieces]
        for units in (*self._unput, self._held):
            own = slot_of(units.wakes) == slot_ms
            if own.any():
                parts.append(self._still_wanted(units.where(own)))
        return Units.join(parts)

    def order_of_slot(self, slot_ms: int) -> SlotOrder:
        """The order in which a slot wakes: read once, and then kept for the next page where it is long."""
        order = self._orders.find(slot_ms)
        if order is None:
            order = SlotOrder(slot_ms, self._in_slot(slot_ms))
            self._orders.add(order)
        return order

    def still_wanted(self, entries: Ints, wakes: Ints) -> Bools:
        """Which of these entries, read from an order, are not delivered."""
        return self._done.missing(entries) & ~self._is_told_near(entries, wakes)

    def density(self, start_ms: int, stop_ms: int) -> Ints:
        """How many timers are due in each second of (start, stop]."""
        self.read_all()
        counts = self.engine.density(start_ms, stop_ms).copy()
        for units in (*self._unput, self._held):
            slots = (slot_of(units.wakes[~units.rolls]) - start_ms) // SLOT_MS
            np.add.at(counts, slots[(slots >= 0) & (slots < len(counts))], 1)
        return counts

    # Marks

    def put_upto(self) -> int:
        """P: every entry below is in the engine, delivered or cancelled, and every cancel and move below has acted."""
        upto = min(self._first_unput(), self._first_held)
        verdict = self._taken.first_verdict
        return upto if verdict is None else min(upto, verdict)

    def _look_at_held(self) -> None:
        """See which of those held are delivered or taken by now."""
        if len(self._held.entries):
            self._held = self._still_wanted(self._held)
            self._first_held = int(self._held.entries.min(initial=_NONE))

    def _first_unput(self) -> int:
        first = self._unput.first_entry
        return self._read_next if first is None else first

    def all_wake_from_ms(self) -> int:
        """T: no timer below P that is not delivered wakes before it. It never goes back.

        Nor is it ahead of the clock: whatever is scheduled next then wakes after it, and need not be held.
        """
        if not self._has_windows:
            return self._last_wake_ms
        held = [int(dues[0]) for dues in self.held_dues(is_far=True)]
        return max(self._last_wake_ms, min([self._near_wake_from_ms(), self.windows.all_wake_from_ms(), *held]))

    def _near_wake_from_ms(self) -> int:
        """The same for the broker's own timers, whatever becomes of Spark's."""
        held = [int(dues[0]) for dues in self.held_dues(is_far=False)]
        sources = [source.all_wake_from_ms() for source in (self.live, self.backlog)]
        return max(self._last_near_ms, min([self._now_ms, *sources, *held]))

    @property
    def is_ahead(self) -> bool:
        """Whether so much was delivered beyond the marks that what is late has to go first."""
        return self._done.rows + self._far_done.rows >= MAX_DONE_ROWS

    def _advance(self) -> None:
        """Bring all marks to where they can be, and forget the ids of which they tell."""
        self._look_at_held()
        put_upto = self.put_upto()
        near_ms, wake_ms = self._near_wake_from_ms(), self.all_wake_from_ms()
        self._last_near_ms, self._last_wake_ms = near_ms, wake_ms
        if put_upto >= self._done_upto:
            self._done_upto, self._done_wake_ms, self._near_done_wake_ms = put_upto, wake_ms, near_ms
        spans = RangeSet(span for span in self._far_spans.ranges() if span[1] > wake_ms)
        held = np.sort(np.concatenate([np.empty(0, np.int64), *self.held_dues(is_far=True)]))
        for from_ms, until_ms in self.windows.played_spans(held):
            spans.add(from_ms, until_ms)
        self._far_spans = spans
        self._done.drop(self._is_told_near)
        self._far_done.drop(self._is_told_far)
        self._tidy_above = max(TIDY_ROWS, 2 * (self._done.rows + self._far_done.rows))
        self._tidied_at_ms = self._now_ms
        # What is held wakes before T, and is in memory all the same.
        heads = [self.live.head_due_ms(), self.backlog.head_due_ms()]
        heads += [int(dues[0]) for dues in self.held_dues(is_far=False)]
        memory_ms = min([near_ms, *(due_ms for due_ms in heads if due_ms is not None)])
        self._taken.forget(put_upto, memory_ms, wake_ms, spans, self.live.horizon_ms)

    def marks(self) -> tuple[TimerMarks, list[tuple[int, int]]]:
        """What the checkpoint says of the timers, and the entries done beyond that."""
        self._advance()
        put_upto, wake_ms = self.put_upto(), self._last_wake_ms
        marks = TimerMarks(
            engine=self._config.engine,
            mark=self.engine.mark(),
            put_upto=put_upto,
            wake_ms=wake_ms,
            done_upto=self._done_upto,
            done_wake_ms=self._done_wake_ms,
            near_done_wake_ms=self._near_done_wake_ms,
            far_done=self._far_spans.ranges(),
            pending={topic: count for topic, count in self.pending.items() if count},
            cuts=self.frontier.cuts(),
            frontiers=self.frontier.ownership.rows,
            far_until_ms=self.frontier.far_until_ms,
        )
        return marks, self.done_ranges()

    def done_ranges(self) -> list[tuple[int, int]]:
        """The entries done beyond the marks."""
        ranges = RangeSet(self._adopted_done.ranges())
        for done in (self._done, self._far_done):
            ranges.add_ordered(done.ranges())
        return ranges.ranges()

    def needed_from(self) -> int:
        """The log offset from which on records still wait; retention stops there.

        Whatever of the broker's own waits wakes at its mark or later, and at most a roll window after it was stored.
        The mark of the checkpoint on disk counts too: from there a start reads the engine, and cancels act again on
        what they find in the log.
        """
        queue = self._queue()
        if queue is None:
            return self._store.log.end
        saved = self._store.waiting.saved_marks
        saved_ms = max(saved.wake_ms, saved.near_done_wake_ms) if saved is not None else 0
        first = self._store.reader.offset_by_time(queue, min(self._near_wake_from_ms(), saved_ms) - self.window_ms)
        entry = queue.entry(first)
        in_memory = [int(units.physical_offsets.min()) for units in (*self._unput, self._held) if len(units.entries)]
        return min([entry[0] if entry else self._store.log.end, *in_memory])

    # At the front

    def check_room(self, due_ms: int, draw: float) -> None:
        """Refuse another timer where too many wait to be put, or where its second is too full.

        Above the limit of a second the more are refused the fuller it is; at twice the limit all. `draw` is a random
        number below 1.
        """
        if self._room() <= 0:
            self.tallies.refused += 1
            raise FlowControl(
                f"{self._config.max_waiting} timers wait to be written into the engine",
                hint="Send again in a moment; timer.max_waiting is the limit",
            )
        limit = self._config.slot_limit
        if limit:
            slot_ms = (due_ms - 1) // SLOT_MS * SLOT_MS
            count = self.count_in_slot(slot_ms)
            if count >= limit and draw < (count - limit + 1) / limit:
                self.tallies.refused += 1
                raise FlowControl(
                    f"{count} timers are due within one second, the limit is {limit}",
                    hint="Send again with another time, or raise timer.slot_limit",
                )

    def room_without_look(self) -> int:
        """How many timers can be taken in a row, whatever they are due; none where each needs a look at its second."""
        return 0 if self._config.slot_limit else self._room()

    def _room(self) -> int:
        queue = self._queue()
        return self._config.max_waiting - (queue.next_offset - self.put_upto() if queue else 0)

    def count_in_slot(self, slot_ms: int) -> int:
        """How many timers wake in a second, those included that the engine does not have yet."""
        self.read_all()
        return self.engine.count(slot_ms) + self._unput.count_in_slot(slot_ms)

    def statistics(self) -> dict[str, int]:
        """How much waits at each step."""
        queue = self._queue()
        return {
            "timers_pending": self.pending.total(),
            "timers_unread": queue.next_offset - self._read_next if queue else 0,
            "timers_unput": self._unput.rows,
            "timers_loaded": self.live.rows + self.backlog.rows,
            "timers_cancelled_in_memory": len(self._taken),
            "timers_in_kept_orders": self._orders.rows,
            "timers_done_beyond_marks": self._done.rows + self._far_done.rows,
            **self.engine.statistics(),
        }
