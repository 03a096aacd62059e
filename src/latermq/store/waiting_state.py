"""What became of messages that wait: which entries of each level were delivered, and how far the timers are."""

from collections import Counter
from collections.abc import Callable

import numpy as np

from latermq.message.names import TIMER_DEAD_LETTER_TOPIC, TIMER_TOPIC
from latermq.message.timer_code import TIMER, kinds_and_dues, real_topic
from latermq.store.checkpoint import Checkpoint, TimerMarks
from latermq.store.commit_log import CommitLog
from latermq.store.participant import CheckpointParticipant, Part
from latermq.store.ranges import RangeSet
from latermq.store.replayed_batch import ReplayedBatch

Delivered = dict[int, RangeSet]
Ranges = list[tuple[int, int]]
_NEVER = 1 << 62


class WaitingState(CheckpointParticipant):
    """The fields `delivered` and `timers` of the checkpoint: derived from the log, as the queues are."""

    fields = ("delivered", "timers")

    def __init__(self) -> None:
        # The entries delivered of each level. Those of the timer topic, level 0, are kept here until timers are opened.
        self.delivered: Delivered = {}
        self.recovered_marks: TimerMarks | None = None  # as the checkpoint had them at the start
        self.scheduled: Counter[str] = Counter()  # for each topic, how many timers the replayed log schedules,
        self.finished: Counter[str] = Counter()  # and how many it delivers
        # The same as the last checkpoint has it: no death takes that back.
        self.safely_delivered: dict[int, Ranges] = {}
        self.saved_marks: TimerMarks | None = None
        # The first entry of the timer topic that is counted. What replaces an older one, whose record is gone, must not
        # count as its end, but as the beginning where it is a roll.
        self._counted_from = _NEVER
        self._marks: Callable[[], tuple[TimerMarks, Ranges]] | None = None
        self._sync: Callable[[], None] = lambda: None

    def attach_timers(self, marks: Callable[[], tuple[TimerMarks, Ranges]], sync: Callable[[], None]) -> None:
        """Let timers tell from now on how far they are and what they delivered beyond that, and sync their engine."""
        self._marks, self._sync = marks, sync

    def restore(self, checkpoint: Checkpoint | None, log: CommitLog) -> None:
        if checkpoint is not None:
            for level, ranges in checkpoint.delivered.items():
                self.delivered[level] = RangeSet(ranges)
            self.recovered_marks = checkpoint.timers
            self._counted_from = 0  # its counts know all timers before

    def replay(self, batch: ReplayedBatch) -> None:
        levels, entries = batch.replaced
        for level in np.unique(levels[levels >= 0]).tolist():
            self.delivered.setdefault(level, RangeSet()).add_all(entries[levels == level])
        self._count_timers(batch)

    def _count_timers(self, batch: ReplayedBatch) -> None:
        topics, properties = batch.topics, batch.records.properties
        levels, entries = batch.replaced
        is_timer_topic = np.array([topic == TIMER_TOPIC for topic in topics])
        kinds, _ = kinds_and_dues(batch.codes)
        scheduled = is_timer_topic & (levels < 0) & (kinds == TIMER)
        # As of just before each record.
        counted_from = np.minimum.accumulate(
            np.append(self._counted_from, np.where(is_timer_topic, batch.records.queue_offsets, _NEVER))
        )
        self._counted_from = int(counted_from[-1])
        is_counted = entries >= counted_from[:-1]
        scheduled |= is_timer_topic & (levels == 0) & ~is_counted
        delivered = ~is_timer_topic & (levels == 0) & is_counted
        self.scheduled.update(real_topic(properties[row]) for row in np.flatnonzero(scheduled).tolist())
        self.finished.update(
            real_topic(properties[row]) if topics[row] == TIMER_DEAD_LETTER_TOPIC else topics[row]
            for row in np.flatnonzero(delivered).tolist()
        )

    def plan(self) -> Part:
        delivered = {level: ranges.ranges() for level, ranges in self.delivered.items()}
        marks = None
        if self._marks is not None:
            marks, delivered[0] = self._marks()
        return Part({"delivered": delivered, "timers": marks}, self._sync)

    def note_saved(self, checkpoint: Checkpoint) -> None:
        self.safely_delivered = checkpoint.delivered
        self.saved_marks = checkpoint.timers
