"""A queue as one group pops it: an index from offsets to the rows of the in-flight table."""

from bisect import bisect_left, bisect_right, insort

_MIN_DEAD = 32  # finished rows in the index before it is worth removing them
_DEAD = -1


class PoppedQueue:
    """The rows of one queue. Rows of a pop are sorted by offset and do not overlap, because pops only move forward.

    A message that was changed, or popped in order, has a row of its own, a single.
    """

    __slots__ = (
        "_dead", "_firsts", "_head", "_rows", "_single_offsets", "group", "held", "number", "ordered", "place",
        "queue_id", "singles", "topic",
    )  # fmt: skip

    def __init__(self, number: int, group: str, topic: str, queue_id: int) -> None:
        self.number = number
        self.group = group
        self.topic = topic
        self.queue_id = queue_id
        self.place = (topic, queue_id)
        self.held = 0  # messages in flight
        self.ordered = 0  # of these, popped in order
        self.singles: dict[int, int] = {}  # offset → row
        self._single_offsets: list[int] = []
        self._firsts: list[int] = []
        self._rows: list[int] = []
        self._head = 0  # the first row that is not finished
        self._dead = 0

    @property
    def key(self) -> tuple[str, str, int]:
        return self.group, self.topic, self.queue_id

    def find(self, offset: int) -> int:
        """Return the row that covers this offset, or -1. The caller checks the row's mask."""
        row = self.singles.get(offset)
        if row is not None:
            return row
        at = bisect_right(self._firsts, offset) - 1
        return self._rows[at] if at >= 0 else _DEAD

    def add_batch(self, first: int, row: int) -> None:
        assert not self._firsts or first > self._firsts[-1], f"{first} after {self._firsts[-1]}"
        self._firsts.append(first)
        self._rows.append(row)

    def add_single(self, offset: int, row: int) -> None:
        assert offset not in self.singles, f"{offset} is in flight"
        self.singles[offset] = row
        insort(self._single_offsets, offset)

    def drop_single(self, offset: int) -> None:
        del self.singles[offset]
        del self._single_offsets[bisect_left(self._single_offsets, offset)]

    def drop_batch(self, first: int) -> None:
        """Mark a row as finished. Finished rows leave the index when they are the majority."""
        rows, at = self._rows, self._head
        if self._firsts[at] == first:  # the usual case
            rows[at] = _DEAD
            while at < len(rows) and rows[at] == _DEAD:
                at += 1
            self._head = at
        else:
            rows[bisect_left(self._firsts, first)] = _DEAD
        self._dead += 1
        if self._dead > _MIN_DEAD and self._dead * 2 > len(rows):
            live = [at for at in range(self._head, len(rows)) if rows[at] != _DEAD]
            self._firsts = [self._firsts[at] for at in live]
            self._rows = [rows[at] for at in live]
            self._head = self._dead = 0

    def first_rows(self) -> tuple[int, int]:
        """Return the lowest row of a pop and the lowest single, or -1 if there is none."""
        batch = self._rows[self._head] if self._head < len(self._rows) else _DEAD
        return batch, self.singles[self._single_offsets[0]] if self._single_offsets else _DEAD

    def all_rows(self) -> list[int]:
        """Return all rows: those of pops, then singles, each sorted by offset."""
        batches = [row for row in self._rows[self._head :] if row != _DEAD]
        return batches + [self.singles[offset] for offset in self._single_offsets]

    def clear(self) -> None:
        self.held = self.ordered = self._head = self._dead = 0
        self.singles, self._single_offsets, self._firsts, self._rows = {}, [], [], []

    @property
    def index_size(self) -> int:
        return len(self._rows) + len(self.singles)
