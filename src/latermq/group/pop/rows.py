"""The rows of the in-flight table, as columns: up to 32 messages of one pop, or one message, per row.

A row takes 45 bytes, and all rows can be copied in about a millisecond per 100,000, for a snapshot. Objects would take
five times as much memory and 100 times as long.
"""

from array import array
from collections.abc import Sequence
from typing import Final

WINDOW = 32  # offsets that a row can cover
MAX_ROWS = 1 << 20

SINGLE: Final = 1  # the row is one message, found by its own offset
IN_ORDER: Final = 2  # the message was popped in order; implies SINGLE
SUSPENDED: Final = 4  # the consumer sent the message back without an attempt


class Rows:
    """Columns. A row with an empty mask is free."""

    def __init__(self) -> None:
        self.queue = array("I")  # number of the queue
        self.first = array("q")
        self.mask = array("I")  # bit i: the message at first + i is in flight
        self.pop_ms = array("q")
        self.visible_ms = array("q")
        self.lease = array("Q")  # 0: held until the visible time; otherwise also while this lease lives
        self.count = array("I")  # earlier deliveries of a message popped in order
        self.flags = array("B")
        self._free: list[int] = []

    def __len__(self) -> int:
        """The number of rows in use."""
        return len(self.mask) - len(self._free)

    def add(
        self, queue: int, first: int, mask: int, pop_ms: int, visible_ms: int, lease: int = 0, flags: int = 0
    ) -> int:
        """Add a row and return its index."""
        assert mask, "a row holds at least one message"
        if not self._free:
            self._grow()
        row = self._free.pop()
        self.queue[row] = queue
        self.first[row] = first
        self.mask[row] = mask
        self.pop_ms[row] = pop_ms
        self.visible_ms[row] = visible_ms
        if lease:
            self.lease[row] = lease
        if flags:
            self.flags[row] = flags
        return row

    def _grow(self) -> None:
        """Add one free row."""
        row = len(self.mask)
        assert row < MAX_ROWS, f"{row} rows"
        for column in (
            self.queue, self.first, self.mask, self.pop_ms, self.visible_ms, self.lease, self.count, self.flags,
        ):  # fmt: skip
            column.append(0)
        self._free.append(row)

    def free(self, row: int) -> None:
        """Release a row, which may be reused at once. It is cleared of what most rows do not have."""
        self.mask[row] = 0
        if self.lease[row]:
            self.lease[row] = 0
        if self.flags[row]:
            self.count[row] = self.flags[row] = 0
        self._free.append(row)


def offsets_of(first: int, mask: int) -> list[int]:
    """Return the offsets in a mask, in order."""
    offsets = []
    while mask:
        low = mask & -mask
        offsets.append(first + low.bit_length() - 1)
        mask ^= low
    return offsets


def windows_of(offsets: Sequence[int]) -> list[tuple[int, int]]:
    """Return sorted offsets as pairs of a first offset and a mask, each as long as a row allows."""
    if not offsets:
        return []
    first = offsets[0]
    if offsets[-1] - first == len(offsets) - 1 < WINDOW:  # nearly all pops: nothing is filtered
        return [(first, (1 << len(offsets)) - 1)]
    windows, mask = [], 0
    for offset in offsets:
        if offset - first >= WINDOW:
            windows.append((first, mask))
            first, mask = offset, 0
        mask |= 1 << offset - first
    windows.append((first, mask))
    return windows
