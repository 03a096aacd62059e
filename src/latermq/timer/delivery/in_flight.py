"""Blocks in flight: built but not appended, in a stage, kept back after a failure, or waiting as dead letters."""

from collections.abc import Iterator

from latermq.arrays import Ints
from latermq.config import TimerConfig
from latermq.message.stamp import Stamp
from latermq.store.message_store import MessageStore
from latermq.timer.delivery.dead_letters import QUEUE as DEAD_LETTER_QUEUE
from latermq.timer.delivery.dead_letters import DeadLetters
from latermq.timer.delivery.kept_back import KeptBack
from latermq.timer.delivery.stage import Stage


def new_dead_letters(store: MessageStore, stamp: Stamp, block_bytes: int) -> DeadLetters:
    """Return an empty set of dead letters; a slice of them takes half a block."""
    return DeadLetters(
        store.writer.encode, stamp, block_bytes=block_bytes // 2, record_bytes=store.writer.max_block_bytes
    )


class InFlight:
    """The builder adds blocks and the delivery removes them. T does not pass any timer in flight."""

    def __init__(self, store: MessageStore, stamp: Stamp, config: TimerConfig) -> None:
        self.stamp = stamp
        self.block_bytes = min(int(config.block), store.writer.segment_bytes // 2)
        self._max_kept_bytes = int(config.stage)
        self.live = Stage(int(config.stage))
        self.overdue = Stage(int(config.stage))
        self.stages = (self.live, self.overdue)
        self.kept_back = KeptBack()
        self.dead_letters = new_dead_letters(store, stamp, self.block_bytes)

    @property
    def is_blocked(self) -> bool:
        """Whether the blocks kept back use up their limit. Nothing else is delivered until some of them are."""
        return self.kept_back.size_bytes + self.dead_letters.size_bytes >= self._max_kept_bytes

    @property
    def has_late(self) -> bool:
        """Whether any record popped from its source is late."""
        return bool(self.kept_back or self.dead_letters or self.overdue.records)

    @property
    def can_bury(self) -> bool:
        """Whether the next slice of dead letters can be written."""
        return bool(self.dead_letters) and DEAD_LETTER_QUEUE not in self.kept_back

    def timer_dues(self, *, is_far: bool) -> Iterator[Ints]:
        """Yield the wake times of timers in flight, each array sorted: Spark's if `is_far`, else the broker's own."""
        for stage in self.stages:
            yield from (dues for block, dues in stage.blocks(level=0) if block.is_far == is_far)
        kept = self.kept_back.blocks()
        yield from (dues for block, dues in kept if block.level == 0 and block.is_far == is_far)
        yield from (ones.dues for ones in self.dead_letters.of_level(0) if ones.is_far == is_far)

    def late_timers(self, now_ms: int) -> int:
        """Number of overdue timers in flight."""
        staged = sum(stage.count_due(now_ms, level=0) for stage in self.stages)
        kept = sum(len(block) for block, _ in self.kept_back.blocks() if block.level == 0)
        return staged + kept + self.dead_letters.count(level=0)

    def statistics(self) -> dict[str, int]:
        """Number of records in each place."""
        return {
            **self.live.statistics(),
            "staged_overdue": self.overdue.records,
            "kept_back": self.kept_back.records,
            "dead_letters_waiting": self.dead_letters.count(),
        }
