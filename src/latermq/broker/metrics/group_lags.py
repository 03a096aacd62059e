"""How far each consumer group is behind in each topic, and since when it consumes nothing although messages arrive."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from latermq.group.offsets import ConsumerOffsets
from latermq.store.queues.queue_table import QueueTable

EVERY_S = 10.0
OFFSETS_PER_SAMPLE = 5_000  # 3 ms, so that a pass never delays a delivery
MAX_EXPORTED = 10_000  # pairs of a group and a topic; monitoring systems keep every label that they have seen
MAX_STALLED = 100  # reported to operators
STALLED_AFTER_S = 20.0  # two passes: most groups commit their offsets every 5 s


class Stall(NamedTuple):
    """A group that consumes nothing of a topic while its lag grows."""

    group: str
    topic: str
    lag: int
    for_ms: int


class _Progress(NamedTuple):
    """What a group had consumed of a topic when it last advanced, and its lag at that time."""

    consumed: int
    lag: int
    since_s: float


class GroupLags:
    """Compares the offsets of groups with the ends of queues, some at a time."""

    def __init__(
        self, offsets: ConsumerOffsets, queues: QueueTable, popped_offset: Callable[[str, str, int], int]
    ) -> None:
        """`popped_offset` tells how far a group has popped a queue of a topic.

        A single message that is in flight for long holds back the offset of a group that pops.
        """
        self._offsets = offsets
        self._queues = queues
        self._popped_offset = popped_offset
        self._progress: dict[tuple[str, str], _Progress] = {}
        self._lags: dict[tuple[str, str], int] = {}
        self._passing: Iterator[None] | None = None
        self._again_s = float("-inf")
        self._read_at_s = 0.0

    def sample(self, now_s: float) -> None:
        """Continue the current pass, or begin one if it is due. Call it about once per second."""
        if self._passing is None:
            if now_s < self._again_s:
                return
            self._again_s = now_s + EVERY_S
            self._passing = self._pass(now_s)
        if next(self._passing, self) is self:
            self._passing = None

    def lags(self) -> dict[tuple[str, str], int]:
        """Return the lag by group and topic; the largest ones if there are too many."""
        if len(self._lags) <= MAX_EXPORTED:
            return self._lags
        largest = sorted(self._lags.items(), key=lambda item: -item[1])
        return dict(largest[:MAX_EXPORTED])

    def stalled(self) -> list[Stall]:
        """Return the groups that consume nothing although messages arrive, those with the largest lag first."""
        found = [
            Stall(group, topic, lag, int((self._read_at_s - before.since_s) * 1000))
            for (group, topic), lag in self._lags.items()
            if (before := self._progress[group, topic]).lag < lag
            and self._read_at_s - before.since_s >= STALLED_AFTER_S
        ]
        return sorted(found, key=lambda stall: -stall.lag)[:MAX_STALLED]

    def statistics(self) -> dict[str, int]:
        """The number of known pairs of a group and a topic."""
        return {"group_lags": len(self._lags)}

    def _pass(self, now_s: float) -> Iterator[None]:
        progress: dict[tuple[str, str], _Progress] = {}
        lags: dict[tuple[str, str], int] = {}
        visited = 0
        for topic, group in self._offsets.known_pairs():
            consumed = lag = 0
            for queue_id, offset in self._offsets.of_topic(group, topic).items():
                queue = self._queues.find(topic, queue_id)
                consumed += max(offset, self._popped_offset(group, topic, queue_id))
                lag += max(0, queue.next_offset - max(offset, queue.min_offset)) if queue is not None else 0
                visited += 1
            lags[group, topic] = lag
            before = self._progress.get((group, topic))
            is_still = before is not None and before.consumed == consumed and lag
            progress[group, topic] = before if before and is_still else _Progress(consumed, lag, now_s)
            if visited >= OFFSETS_PER_SAMPLE:
                visited = 0
                yield
        self._progress, self._lags, self._read_at_s = progress, lags, now_s
