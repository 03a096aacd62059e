"""Many timers to cancel or to move, in columns."""

from dataclasses import dataclass, field

from latermq.arrays import Ints, UInts16
from latermq.model.rows import Column

NO_TIME = -1  # as a new due time: cancel; as the entry before which timers were seen: only the listed timers were


@dataclass(slots=True)
class TimerChanges:
    """Names to cancel or to move: row n of each column belongs to the same name."""

    topics: list[str]
    topic_of: UInts16  # the index of the topic of each row
    unique_keys: Column
    due_ms: Ints  # new due times, or NO_TIME
    seen_before: Ints  # entries before which the client saw all timers of the name, or NO_TIME
    id_offsets: Ints  # the timers that the client saw: ids[id_offsets[n]:id_offsets[n + 1]]
    ids: Ints

    def __len__(self) -> int:
        return len(self.due_ms)

    def unique_key(self, row: int) -> str:
        """One of the keys."""
        start, end = self.unique_keys.offsets[row : row + 2].tolist()
        return self.unique_keys.data[start:end].decode()

    def timer_ids(self, row: int) -> frozenset[int]:
        """The timers of one name that the client saw."""
        start, end = self.id_offsets[row : row + 2].tolist()
        return frozenset(self.ids[start:end].tolist())


@dataclass(slots=True)
class ChangeOutcomes:
    """The outcome of each change, as an index into VERDICTS, and the reasons of those that were refused."""

    verdicts: list[int] = field(default_factory=list)
    problems: dict[int, str] = field(default_factory=dict)
