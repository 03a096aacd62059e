"""Delivery: stages what is due soon, and appends it to its real topic at its due millisecond."""

from collections.abc import Callable, Iterator
from typing import Protocol

import numpy as np

from latermq.arrays import Indices, Ints
from latermq.config import TimerConfig
from latermq.errors import StoreError
from latermq.message.names import SCHEDULE_TOPIC, TIMER_DEAD_LETTER_TOPIC, TIMER_TOPIC
from latermq.message.properties import REAL_TOPIC
from latermq.message.record import record_property
from latermq.message.timer_code import UNKNOWN_DUE_MS
from latermq.store.block import Block
from latermq.store.message_store import MessageStore
from latermq.store.ranges import RangeSet
from latermq.timer.delivery.block_builder import build
from latermq.timer.delivery.clock_guard import ClockGuard
from latermq.timer.delivery.dead_letters import QUEUE as DEAD_LETTER_QUEUE
from latermq.timer.delivery.dead_letters import DeadLetters, Undeliverable
from latermq.timer.delivery.lateness import LATENESS_BOUNDS_MS, PUNCTUAL_MS, Distribution
from latermq.timer.delivery.level_runs import Run, find_runs, split_run
from latermq.timer.delivery.level_source import Batch, LevelSource
from latermq.timer.delivery.renewal_builder import build_rolls
from latermq.timer.delivery.stage import Stage
from latermq.timer.levels import LevelTable
from latermq.timer.timers import Timers

BUILD_AT_ONCE = 1_000  # records built between two looks at other work: about 4 ms
BUILD_BYTES = 512 << 10  # of these, where they are long: 40 ms if all of it is keys of one letter
FIRST_PAUSE_MS = 100
LONGEST_PAUSE_MS = 5_000
CLOCK_LOOK_MS = 1_000  # a clock that is set shows at the next look
# The broker's own queues, which are always there.
OWN_QUEUES = {(TIMER_TOPIC, 0), DEAD_LETTER_QUEUE}


class Source(Protocol):
    """Entries that wait, in the order of their due times."""

    level: int  # whose entries they are, 0 for timers

    def head_due_ms(self) -> int | None: ...

    def take(self, until_ms: int, max_count: int, max_bytes: int) -> Batch: ...


class Delivery:
    """Drives all sources. `run` does what is due and says when to come again."""

    def __init__(
        self,
        store: MessageStore,
        levels: LevelTable,
        timers: Timers,
        guard: ClockGuard,
        config: TimerConfig,
        *,
        place_of: Callable[[str, int], int | str],
        on_delivered: Callable[[str, int], None],
    ) -> None:
        """`place_of` says of a topic and a queue id to which queue of the topic it is delivered, or why to none."""
        self._store = store
        self._levels = levels
        self._timers = timers
        self._config = config
        self._place_of = place_of
        self._on_delivered = on_delivered
        self._block_bytes = min(int(config.block), store.writer.segment_bytes // 2)
        self.guard = guard
        self._stage = Stage(int(config.stage))
        self._overdue = Stage(int(config.stage))
        # What could not be appended, by queue and in order: later ones wait their turn behind it.
        self._stuck: dict[tuple[str, int], list[tuple[Block, Ints]]] = {}
        self._stuck_bytes = 0
        self._dead_letters = DeadLetters(
            store.writer.encode, block_bytes=self._block_bytes // 2, record_bytes=store.writer.max_block_bytes
        )
        self.noted = False
        self._pause_ms = 0
        self._retry_at_ms = 0
        self._built_at_ms = 0
        self.failure = ""
        self.delivered = 0
        self.dead_letters = 0
        self.timer_lateness = Distribution(LATENESS_BOUNDS_MS)
        self.level_lateness = Distribution(LATENESS_BOUNDS_MS)
        now_ms = guard.wall_ms()
        self._live: dict[int, LevelSource] = {}
        self._backlog: list[LevelSource] = []
        for level in self._all_levels():
            self._open_level(level, now_ms)
        timers.held_dues = self._held_timers

    def _all_levels(self) -> list[int]:
        """The table's levels, and those of queues that an earlier, longer table left."""
        queued = {queue.queue_id + 1 for queue in self._store.queues if queue.topic == SCHEDULE_TOPIC}
        return sorted(queued | set(range(1, len(self._levels) + 1)))

    def _open_level(self, level: int, now_ms: int) -> None:
        delivered = self._store.waiting.delivered.setdefault(level, RangeSet())
        queue = self._store.queues.find(SCHEDULE_TOPIC, level - 1)
        if queue is None:
            self._live[level] = LevelSource(self._store, level, [Run(0, None, 0)])
            return
        delivered.forget_below(queue.min_offset)
        overdue: list[Run] = []
        live: list[Run] = []
        for run in find_runs(queue, delivered.end_of_run(0)):
            early, later = split_run(run, queue, now_ms - PUNCTUAL_MS)
            overdue += [early] if early is not None else []
            live += [later] if later is not None else []
        last = queue.entry(queue.next_offset - 1)
        self._live[level] = LevelSource(self._store, level, live, last[2] if last else 0)
        if overdue:
            self._backlog.append(LevelSource(self._store, level, overdue))

    def note(self, level: int, due_ms: int, offset: int) -> None:
        """A message of this level was stored."""
        self._live[level].note(due_ms, offset)
        self.noted = True

    def note_timer(self) -> None:
        """Something was stored in the timer topic."""
        self.noted = True

    # One round

    def run(self) -> int:
        """Deliver what is due, stage what will be soon; how many milliseconds may pass until the next call."""
        now_ms = self.guard.now_ms()
        if now_ms is None:
            return CLOCK_LOOK_MS
        self.noted = False
        # A pause that is longer than the longest was begun before the clock was set back.
        if self._stuck and not 0 < self._retry_at_ms - now_ms <= LONGEST_PAUSE_MS:
            self._retry(now_ms)
        if self._can_bury:
            self._deliver(*self._dead_letters.take(), now_ms)
        for stage in (self._stage, self._overdue):
            # Each gets half of a round: neither what is late nor what is on time waits for all of the other.
            # While the stuck ones fill their room, whatever else is due waits in its stage.
            left_bytes = 0 if self._is_blocked or (stage is self._stage and self._live_waits) else self._block_bytes
            while left_bytes > 0 and (taken := stage.take(now_ms, left_bytes)) is not None:
                left_bytes -= taken[0].cost
                self._deliver(*taken, now_ms)
        stepping = self._timers.step(now_ms)
        building = self._fill(now_ms)
        return self._next_call_ms(now_ms, building or stepping)

    def _retry(self, now_ms: int) -> None:
        stuck, self._stuck, self._stuck_bytes = self._stuck, {}, 0
        # Where a queue's first fails again, the others go behind it again.
        for block, dues in (kept for queue in stuck.values() for kept in queue):
            if dues[-1] > now_ms:  # the clock was set back: it is not due any more
                self._stage.put(block, dues)
            else:
                self._deliver(block, dues, now_ms)
        if not self._stuck:
            self.failure, self._pause_ms = "", 0

    def _next_call_ms(self, now_ms: int, building: bool) -> int:
        waits = [CLOCK_LOOK_MS, 0 if building or self._can_bury else CLOCK_LOOK_MS]
        for stage in (self._stage, self._overdue):
            head = stage.head_due_ms()
            if head is not None and not self._is_blocked and not (stage is self._stage and self._live_waits):
                waits.append(head - now_ms)
        for source in self._sources():
            head = source.head_due_ms()
            if head is not None:
                waits.append(max(self._config.build_every, head - self._config.stage_ahead - now_ms))
        if self._stuck:
            waits.append(self._retry_at_ms - now_ms)
        return max(0, min(waits))

    @property
    def _is_blocked(self) -> bool:
        """Whether what is stuck fills its room: nothing else is delivered before some of it is."""
        return self._stuck_bytes + self._dead_letters.size_bytes >= self._config.stage

    @property
    def _live_waits(self) -> bool:
        """Whether what is on time waits for what is late, because too much was delivered beyond the marks of that."""
        return self._timers.is_ahead and bool(self._stuck or self._dead_letters or self._overdue.records)

    @property
    def _can_bury(self) -> bool:
        """Whether the next slice of dead letters can be written."""
        return bool(self._dead_letters) and DEAD_LETTER_QUEUE not in self._stuck

    def _sources(self) -> list[Source]:
        return [*self._live.values(), *self._backlog, *self._timers.sources()]

    def _live_sources(self, now_ms: int) -> list[Source]:
        windows = self._timers.windows.sources()
        return [*self._live.values(), self._timers.live, *(one for one in windows if not one.is_overdue(now_ms))]

    def _overdue_sources(self, now_ms: int) -> list[Source]:
        windows = self._timers.windows.sources()
        return [*self._backlog, self._timers.backlog, *(one for one in windows if one.is_overdue(now_ms))]

    # Staging

    def _fill(self, now_ms: int) -> bool:
        """Build blocks of what is due soon; whether there is more to build at once.

        What is on time and what is overdue get a batch each, so that neither waits for all of the other.
        """
        live = self._fill_stage(self._stage, self._live_sources(now_ms), now_ms)
        overdue = self._fill_stage(self._overdue, self._overdue_sources(now_ms), now_ms)
        if self._backlog and not overdue:
            self._backlog = [source for source in self._backlog if source.head_due_ms() is not None]
        return live or overdue

    def _fill_stage(self, stage: Stage, sources: list[Source], now_ms: int) -> bool:
        """Build one batch out of the source that is due first; whether there may be more."""
        heads = [(head, source) for source in sources if (head := source.head_due_ms()) is not None]
        if not heads:
            return False
        head, source = min(heads, key=lambda pair: pair[0])
        if head > now_ms + self._config.stage_ahead:
            return False
        # Small blocks cost more than they bring: what is not pressing is built a batch at a time.
        waited_ms = abs(now_ms - self._built_at_ms)
        if head > now_ms + self._config.build_every and waited_ms < self._config.build_every:
            return False
        # What is due now goes straight through, so it needs no room to wait in, unless nothing goes through.
        if not stage.has_room and (head > now_ms or self._is_blocked):
            return False
        until_ms = now_ms + (self._config.stage_ahead if stage.has_room else 0)
        max_bytes = min(self._block_bytes // 2, BUILD_BYTES)
        self._build(source.level, stage, source.take(until_ms, BUILD_AT_ONCE, max_bytes), now_ms)
        head = source.head_due_ms()
        if head is None or head > until_ms:
            self._built_at_ms = now_ms
        return True

    def _build(self, level: int, stage: Stage, batch: Batch, now_ms: int) -> None:
        gone = batch.physical_offsets < self._store.log.start
        if batch.raw is None and gone.any():
            # The guard of retention keeps what waits; whoever removed these by hand must not stop all others.
            self.failure = f"the records of {np.count_nonzero(gone)} messages that waited are gone from the log"
            if level == 0:
                self._timers.delivered(batch.offsets[gone], batch.dues[gone], is_far=False)
            else:
                self._store.waiting.delivered[level].add_all(batch.offsets[gone])
            kept = [column[~gone] for column in (batch.offsets, batch.dues, batch.physical_offsets, batch.sizes)]
            batch = Batch(kept[0], kept[1], kept[2], kept[3], batch.is_roll)
            if not len(batch.offsets):
                return
        raw = self._store.log.read_all(batch.physical_offsets, batch.sizes) if batch.raw is None else batch.raw
        if level == 0 and batch.dues[0] == UNKNOWN_DUE_MS:
            batch, raw = self._bury_without_due(batch, raw)
            if not len(batch.offsets):
                return
        if batch.is_roll:
            built = build_rolls(batch.offsets, raw, batch.sizes, self._config.import_precision)
        else:
            built = build(level, batch.offsets, raw, batch.sizes)
        is_far = batch.raw is not None
        if built.block is not None:
            built.block.is_far = is_far
            stage.put(built.block, batch.dues[built.rows])
        if built.unusable:
            rows = np.array(built.unusable)
            ends = np.cumsum(batch.sizes)[rows]
            records = b"".join(raw[end - size : end] for end, size in zip(ends, batch.sizes[rows], strict=True))
            reason = "the record names no real topic and queue, or cannot be written again"
            self._dead_letters.add(
                Undeliverable(level, batch.offsets[rows], batch.dues[rows], records, batch.sizes[rows], reason, is_far)
            )

    def _bury_without_due(self, batch: Batch, raw: bytes) -> tuple[Batch, bytes]:
        """Timers that tell no due time are never early only as dead letters; what is left of the batch."""
        count = int(np.count_nonzero(batch.dues == UNKNOWN_DUE_MS))
        ends = np.cumsum(batch.sizes)
        head, end = slice(count), int(ends[count - 1])
        reason = "it tells no due time"
        self._dead_letters.add(
            Undeliverable(0, batch.offsets[head], batch.dues[head], raw[:end], batch.sizes[head], reason)
        )
        columns = (batch.offsets, batch.dues, batch.physical_offsets, batch.sizes)
        rest = [column[count:] for column in columns]
        return Batch(rest[0], rest[1], rest[2], rest[3], batch.is_roll), raw[end:]

    # Delivering

    def _deliver(self, block: Block, dues: Ints, now_ms: int) -> None:
        """Append one block; what cannot be appended now is kept and tried again, queue by queue."""
        if block.size > self._store.writer.max_block_bytes and len(block) > 1:
            half = len(block) // 2
            for start, end in ((0, half), (half, len(block))):
                self._deliver(block.part(start, end), dues[start:end], now_ms)
            return
        if block.level == 0:
            # The last look and the append are one step: nothing is cancelled in between.
            wanted = self._timers.not_cancelled(block.entries)
            if not wanted.all():
                if not wanted.any():
                    return
                block, dues = block.rows(np.flatnonzero(wanted)), dues[wanted]
        deliverable = self._to_readable(block, dues)
        if deliverable is None:
            return
        block, dues = deliverable
        if self._stuck:
            free = self._line_up(block, dues)
            if not len(free):
                return
            block, dues = block.rows(free), dues[free]
        if len(block.queues) > self._store.writer.max_block_queues and self._deliver_in_parts(block, dues, now_ms):
            return
        try:
            queues = self._store.writer.append_block(block)
        except StoreError as error:
            self._keep_back(block, dues, now_ms, error)
            return
        if block.level == 0:
            self._timers.delivered(block.entries, dues, is_far=block.is_far)
        self._count(block, dues)
        for queue in queues:
            self._on_delivered(queue.topic, queue.queue_id)

    def _deliver_in_parts(self, block: Block, dues: Ints, now_ms: int) -> bool:
        """Deliver a block that is for more queues than can be written to at once; False where it is not."""
        rows, most = list(block.rows_by_queue().values()), self._store.writer.max_block_queues
        if len(rows) <= most:
            return False
        for start in range(0, len(rows), most):
            own = np.sort(np.concatenate(rows[start : start + most]))
            self._deliver(block.rows(own), dues[own], now_ms)
        return True

    def bury(self, given_up: Undeliverable) -> None:
        """Append Spark's timers that were given up to the dead letters now.

        Where that fails, none of the rest is kept here.
        """
        letters = DeadLetters(
            self._store.writer.encode,
            block_bytes=self._block_bytes // 2,
            record_bytes=self._store.writer.max_block_bytes,
        )
        letters.add(given_up)
        while letters:
            block, dues = letters.take()
            self._store.writer.append_block(block)
            self._timers.delivered(block.entries, dues, is_far=True)
            self._count(block, dues)
            self._on_delivered(*DEAD_LETTER_QUEUE)

    def _to_readable(self, block: Block, dues: Ints) -> tuple[Block, Ints] | None:
        """The rows that can be delivered, each for a queue that can be read; the others become dead letters."""
        moved: dict[int, int] = {}
        reasons: dict[int, str] = {}
        for number, queue in enumerate(block.queues):
            place = queue[1] if queue in OWN_QUEUES else self._place_of(*queue)
            if isinstance(place, str):
                reasons[number] = place
            elif place != queue[1]:
                moved[number] = place
        if block.size > self._store.writer.max_block_bytes:  # one record, and longer than any that admission lets in
            reasons |= dict.fromkeys(range(len(block.queues)), "its record does not fit a segment of the log")
        keep = np.ones(len(block), bool)
        for number, reason in reasons.items():
            own = np.flatnonzero(block.queue_of == number)
            if len(own):
                keep[own] = False
                lost = block.rows(own)
                self._dead_letters.add(
                    Undeliverable(block.level, lost.entries, dues[own], lost.data, lost.sizes, reason, block.is_far)
                )
        if not keep.all():
            if not keep.any():
                return None
            block, dues = block.rows(np.flatnonzero(keep)), dues[keep]
        return (block.redirect(moved) if moved else block), dues

    def _count(self, block: Block, dues: Ints) -> None:
        """Count what was appended; of dead letters and rolls it tells nothing that they are late."""
        self.delivered += len(block)
        if block.level and DEAD_LETTER_QUEUE not in block.queues:
            self.level_lateness.add(self._store.writer.last_store_timestamp_ms - dues)
            return
        in_time = np.ones(len(block), bool)
        for number, rows in block.rows_by_queue().items():
            topic = block.queues[number][0]
            if topic == TIMER_DEAD_LETTER_TOPIC:
                in_time[rows] = False
                self.dead_letters += len(rows)
                self.delivered -= len(rows)
                if block.level == 0:
                    self._leave_dead(block.rows(rows))
            elif topic == TIMER_TOPIC:  # a roll waits on
                in_time[rows] = False
                self._timers.tallies.rolled += len(rows)
            elif block.level == 0:
                self._timers.tallies.delivered[topic] += len(rows)
                self._timers.leave(topic, len(rows))
        lateness = self.level_lateness if block.level else self.timer_lateness
        lateness.add(self._store.writer.last_store_timestamp_ms - (dues if in_time.all() else dues[in_time]))

    def _leave_dead(self, block: Block) -> None:
        ends = np.cumsum(block.sizes)
        for end, size in zip(ends.tolist(), block.sizes.tolist(), strict=True):
            topic = record_property(bytes(block.data[end - size : end]), REAL_TOPIC.encode()) or b""
            self._timers.leave(topic.decode(), 1)

    def _keep_back(self, block: Block, dues: Ints, now_ms: int, error: StoreError) -> None:
        """Keep what failed for a later try; if it is for several queues, the others need not wait for the one."""
        rows = block.rows_by_queue()
        if len(rows) > 1:
            for own in rows.values():
                self._deliver(block.rows(own), dues[own], now_ms)
            return
        self._get_stuck(block, dues)
        self._pause(now_ms, error)

    def _get_stuck(self, block: Block, dues: Ints) -> None:
        """Keep a block that is for one queue."""
        queue = block.queues[int(block.queue_of[0])]
        self._stuck.setdefault(queue, []).append((block, dues))
        self._stuck_bytes += block.size

    def _line_up(self, block: Block, dues: Ints) -> Indices:
        """Put records for queues that are stuck behind what is stuck there; the rows of the others."""
        free = np.ones(len(block), bool)
        for number, own in block.rows_by_queue().items():
            if block.queues[number] in self._stuck:
                free[own] = False
                self._get_stuck(block.rows(own), dues[own])
        return np.flatnonzero(free)

    def _pause(self, now_ms: int, error: StoreError) -> None:
        self.failure = error.remark
        if self._retry_at_ms <= now_ms:
            self._pause_ms = min(max(FIRST_PAUSE_MS, 2 * self._pause_ms), LONGEST_PAUSE_MS)
            self._retry_at_ms = now_ms + self._pause_ms

    def _held_timers(self, *, is_far: bool) -> Iterator[Ints]:
        """When timers woke, or wake, that were taken from their sources and are not put yet: in order in each array."""
        for stage in (self._stage, self._overdue):
            yield from (dues for block, dues in stage.blocks(level=0) if block.is_far == is_far)
        stuck = (kept for queue in self._stuck.values() for kept in queue)
        yield from (dues for block, dues in stuck if block.level == 0 and block.is_far == is_far)
        yield from (ones.dues for ones in self._dead_letters.of_level(0) if ones.is_far == is_far)

    # For operators and exports

    def late_timers(self, now_ms: int) -> tuple[int, int]:
        """How many timers in memory should have gone, and for how many milliseconds the first of them."""
        sources = self._timers.sources()
        counts = [stage.count_due(now_ms, level=0) for stage in (self._stage, self._overdue)]
        counts += [source.count_due(now_ms) for source in sources]
        counts += [len(block) for queue in self._stuck.values() for block, _ in queue if block.level == 0]
        counts.append(self._dead_letters.count(level=0))
        heads = [source.head_due_ms() for source in sources]
        firsts = [int(dues[0]) for is_far in (False, True) for dues in self._held_timers(is_far=is_far)]
        first_ms = min([*firsts, *(head for head in heads if head is not None)], default=now_ms)
        return sum(counts), max(0, now_ms - first_ms)

    def needed_from(self) -> int:
        """The log offset from which on records still wait to be delivered; retention stops there."""
        needed = self._timers.needed_from()
        for level, source in self._live.items():
            queue = self._store.queues.find(SCHEDULE_TOPIC, level - 1)
            entry = queue.entry(self._store.waiting.delivered[source.level].end_of_run(0)) if queue else None
            if entry is not None:
                needed = min(needed, entry[0])
        return needed

    def marks(self) -> dict[int, int]:
        """For each level the offset below which everything is delivered: what delayOffset.json holds.

        As of the last checkpoint: the file outlives the death of the machine, so it must not tell of more than does.
        """
        safe = sorted(self._store.waiting.safely_delivered.items())
        return {level: RangeSet(ranges).end_of_run(0) for level, ranges in safe if level}

    def statistics(self) -> dict[str, int]:
        """How much waits and how much went."""
        return {**self._timers.statistics(), **self.own_statistics()}

    def own_statistics(self) -> dict[str, int]:
        """The same without the engine, whose counting takes some milliseconds."""
        return {
            **self._stage.statistics(),
            "staged_overdue": self._overdue.records,
            "delivered": self.delivered,
            "undeliverable": self.dead_letters,
            "kept_back": sum(len(block) for queue in self._stuck.values() for block, _ in queue),
            "dead_letters_waiting": self._dead_letters.count(),
            "level_runs": sum(source.run_count for source in self._live.values()),
        }
