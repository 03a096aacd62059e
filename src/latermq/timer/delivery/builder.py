"""The builder: fetches the records of timers and levels that are due soon, and stages the blocks that replace them."""

from typing import Protocol

import numpy as np

from latermq.config import TimerConfig
from latermq.message.stamp import Stamp
from latermq.message.timer_code import UNKNOWN_DUE_MS
from latermq.store.message_store import MessageStore
from latermq.timer.delivery.block_builder import build
from latermq.timer.delivery.dead_letters import Undeliverable
from latermq.timer.delivery.in_flight import InFlight
from latermq.timer.delivery.level_source import Batch
from latermq.timer.delivery.level_sources import LevelSources
from latermq.timer.delivery.renewal_builder import build_renewals
from latermq.timer.delivery.stage import Stage
from latermq.timer.far.windows import Windows
from latermq.timer.intake.loader import Loader
from latermq.timer.intake.settled import Settled

BUILD_AT_ONCE = 1_000  # records built before other work gets its turn: about 4 ms
BUILD_BYTES = 512 << 10  # limit for long records: 40 ms if they consist of one-letter keys only


class Source(Protocol):
    """Waiting entries in due order."""

    level: int  # the level of the entries, 0 for timers

    def head_due_ms(self) -> int | None: ...

    def pop(self, until_ms: int, max_count: int, max_bytes: int) -> Batch: ...


class Builder:
    """Builds blocks from levels, loaded timers and windows, earliest due time first."""

    def __init__(
        self,
        store: MessageStore,
        levels: LevelSources,
        loader: Loader,
        windows: Windows,
        settled: Settled,
        in_flight: InFlight,
        stamp: Stamp,
        config: TimerConfig,
    ) -> None:
        self._store = store
        self._levels = levels
        self._loader = loader
        self._windows = windows
        self._settled = settled
        self._in_flight = in_flight
        self._stamp = stamp
        self._config = config
        self._built_at_ms = 0
        self.failure = ""

    def build(self, now_ms: int) -> bool:
        """Build blocks of entries that are due soon; return whether more can be built at once.

        Entries on time and overdue entries get one batch each, so that neither waits for all of the other.
        """
        live: list[Source] = [*self._levels.live(), self._loader.live]
        overdue: list[Source] = [*self._levels.backlog(), self._loader.backlog]
        for window in self._windows.sources():
            (overdue if window.is_overdue(now_ms) else live).append(window)
        more_live = self._fill(self._in_flight.live, live, now_ms)
        more_overdue = self._fill(self._in_flight.overdue, overdue, now_ms)
        if not more_overdue:
            self._levels.close_drained()
        return more_live or more_overdue

    def wait_ms(self, now_ms: int) -> int | None:
        """Return how long until the next batch must be built; None if nothing waits."""
        sources: list[Source] = [
            *self._levels.live(),
            *self._levels.backlog(),
            self._loader.live,
            self._loader.backlog,
            *self._windows.sources(),
        ]
        heads = [head for source in sources if (head := source.head_due_ms()) is not None]
        if not heads:
            return None
        return max(self._config.build_every, min(heads) - self._config.stage_ahead - now_ms)

    def _fill(self, stage: Stage, sources: list[Source], now_ms: int) -> bool:
        """Build one batch from the source with the earliest due time; return whether there may be more."""
        heads = [(head, source) for source in sources if (head := source.head_due_ms()) is not None]
        if not heads:
            return False
        head, source = min(heads, key=lambda pair: pair[0])
        if head > now_ms + self._config.stage_ahead:
            return False
        # Small blocks are inefficient, so entries that are not urgent are built in batches.
        waited_ms = abs(now_ms - self._built_at_ms)
        if head > now_ms + self._config.build_every and waited_ms < self._config.build_every:
            return False
        # Due entries pass straight through and need no space in the stage, unless delivery is blocked.
        if not stage.has_room and (head > now_ms or self._in_flight.is_blocked):
            return False
        until_ms = now_ms + (self._config.stage_ahead if stage.has_room else 0)
        max_bytes = min(self._in_flight.block_bytes // 2, BUILD_BYTES)
        self._build(source.level, stage, source.pop(until_ms, BUILD_AT_ONCE, max_bytes))
        next_head = source.head_due_ms()
        if next_head is None or next_head > until_ms:
            self._built_at_ms = now_ms
        return True

    def _build(self, level: int, stage: Stage, batch: Batch) -> None:
        batch = self._without_gone(level, batch)
        if not len(batch.offsets):
            return
        raw = self._store.log.read_all(batch.physical_offsets, batch.sizes) if batch.raw is None else batch.raw
        if level == 0 and batch.dues[0] == UNKNOWN_DUE_MS:
            batch, raw = self._bury_without_due(batch, raw)
            if not len(batch.offsets):
                return
        if batch.is_renewal:
            built = build_renewals(batch.offsets, raw, batch.sizes, self._config.import_precision)
        else:
            built = build(level, batch.offsets, raw, batch.sizes, batch.dues, self._stamp)
        is_far = batch.raw is not None
        if built.block is not None:
            built.block.is_far = is_far
            stage.put(built.block, batch.dues[built.rows])
        if built.unusable:
            rows = np.array(built.unusable)
            ends = np.cumsum(batch.sizes)[rows]
            records = b"".join(raw[end - size : end] for end, size in zip(ends, batch.sizes[rows], strict=True))
            reason = "the record has no valid real topic and queue, or cannot be rewritten"
            self._in_flight.dead_letters.add(
                Undeliverable(level, batch.offsets[rows], batch.dues[rows], records, batch.sizes[rows], reason, is_far)
            )

    def _without_gone(self, level: int, batch: Batch) -> Batch:
        """Skip records that are gone.

        Retention keeps waiting records; deleting some by hand must not block all others.
        """
        gone = batch.physical_offsets < self._store.log.start
        if batch.raw is not None or not gone.any():
            return batch
        self.failure = f"the records of {np.count_nonzero(gone)} waiting messages are no longer in the log"
        if level == 0:
            self._settled.deliver(batch.offsets[gone], batch.dues[gone], is_far=False)
        else:
            self._store.waiting.delivered[level].add_all(batch.offsets[gone])
        kept = [column[~gone] for column in (batch.offsets, batch.dues, batch.physical_offsets, batch.sizes)]
        return Batch(kept[0], kept[1], kept[2], kept[3], batch.is_renewal)

    def _bury_without_due(self, batch: Batch, raw: bytes) -> tuple[Batch, bytes]:
        """Send timers without a due time to the dead letters, so that they are never early; return the others."""
        count = int(np.count_nonzero(batch.dues == UNKNOWN_DUE_MS))
        ends = np.cumsum(batch.sizes)
        head, end = slice(count), int(ends[count - 1])
        reason = "it has no due time"
        self._in_flight.dead_letters.add(
            Undeliverable(0, batch.offsets[head], batch.dues[head], raw[:end], batch.sizes[head], reason)
        )
        columns = (batch.offsets, batch.dues, batch.physical_offsets, batch.sizes)
        rest = [column[count:] for column in columns]
        return Batch(rest[0], rest[1], rest[2], rest[3], batch.is_renewal), raw[end:]
