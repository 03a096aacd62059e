"""All delay levels as sources: a live one per level, and another for messages overdue at the broker's start."""

from collections.abc import Iterable

from latermq.message.names import SCHEDULE_TOPIC
from latermq.store.message_store import MessageStore
from latermq.store.ranges import RangeSet
from latermq.timer.delivery.lateness import PUNCTUAL_MS
from latermq.timer.delivery.level_runs import Run, find_runs, split_run
from latermq.timer.delivery.level_source import LevelSource
from latermq.timer.levels import LevelTable


class LevelSources:
    """The levels of the table, and of queues that remain from an earlier, longer table."""

    def __init__(self, store: MessageStore, levels: LevelTable, now_ms: int) -> None:
        self._store = store
        self._live: dict[int, LevelSource] = {}
        self._backlog: list[LevelSource] = []
        queued = {queue.queue_id + 1 for queue in store.queues if queue.topic == SCHEDULE_TOPIC}
        for level in sorted(queued | set(range(1, len(levels) + 1))):
            self._open(level, now_ms)

    def _open(self, level: int, now_ms: int) -> None:
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
        """Note that a message of this level was stored."""
        self._live[level].note(due_ms, offset)

    def live(self) -> Iterable[LevelSource]:
        return self._live.values()

    def backlog(self) -> Iterable[LevelSource]:
        return self._backlog

    def close_drained(self) -> None:
        """Release the overdue sources that are drained."""
        if self._backlog:
            self._backlog = [source for source in self._backlog if source.head_due_ms() is not None]

    def needed_from(self) -> int:
        """Return the log offset of the first record that is still pending."""
        needed = self._store.log.end
        for level in self._live:
            queue = self._store.queues.find(SCHEDULE_TOPIC, level - 1)
            entry = queue.entry(self._store.waiting.delivered[level].end_of_run(0)) if queue else None
            if entry is not None:
                needed = min(needed, entry[0])
        return needed

    def marks(self) -> dict[int, int]:
        """Return for each level the offset below which everything is delivered, as in delayOffset.json.

        The values are those of the last checkpoint: the file survives a machine crash, so it must not claim more than
        survives.
        """
        safe = sorted(self._store.waiting.safely_delivered.items())
        return {level: RangeSet(ranges).end_of_run(0) for level, ranges in safe if level}

    @property
    def run_count(self) -> int:
        return sum(source.run_count for source in self._live.values())
