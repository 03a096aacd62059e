"""The state of waiting messages: the delivered entries of each level, and the progress of the timers."""

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
    """The checkpoint fields `delivered` and `timers`, derived from the log like the queues."""

    fields = ("delivered", "timers")

    def __init__(self) -> None:
        # The delivered entries of each level. Those of the timer topic, level 0, are kept here until the timers are
        # opened.
        self.delivered: Delivered = {}
        self.recovered_marks: TimerMarks | None = None  # from the checkpoint at the start
        self.scheduled: Counter[str] = Counter()  # timers per topic that the replayed log schedules
        self.finished: Counter[str] = Counter()  # timers per topic that the replayed log delivers
        # The same values in the last saved checkpoint: no crash can undo them.
        self.safely_delivered: dict[int, Ranges] = {}
        self.saved_marks: TimerMarks | None = None
        # The first entry of the timer topic that is counted. A record that replaces an older entry, whose own record is
        # gone, does not count as the end of a timer. If it renews the timer, it counts as the start.
        self._counted_from = _NEVER
        self._marks: Callable[[], tuple[TimerMarks, Ranges]] | None = None
        self._sync: Callable[[], None] = lambda: None

    def attach_timers(self, marks: Callable[[], tuple[TimerMarks, Ranges]], sync: Callable[[], None]) -> None:
        """Connect the timers and their engine. They come late: they start from what this state has recovered.

        `marks` returns the timers' progress and what they delivered beyond it. `sync` syncs their engine.
        """
        self._marks, self._sync = marks, sync

    def restore(self, checkpoint: Checkpoint | None, log: CommitLog) -> None:
        if checkpoint is not None:
            for level, ranges in checkpoint.delivered.items():
                self.delivered[level] = RangeSet(ranges)
            self.recovered_marks = checkpoint.timers
            self._counted_from = 0  # the checkpoint's counts include all earlier timers

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
        # The value just before each record.
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
