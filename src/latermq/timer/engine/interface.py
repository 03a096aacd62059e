"""What an engine is: it keeps the entries of the timer topic by the time at which they wake, on disk.

An engine is derived from the timer topic and can always be built again from it. Two kinds exist: the timer log with its
wheel (wheel_engine.py) and RocksDB (rocksdb_engine.py); one conformance suite runs over both.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from latermq.arrays import Bools, Indices, Ints


class Units(NamedTuple):
    """Entries of the timer topic as an engine keeps them: a row of each array an entry."""

    entries: Ints  # offsets in the timer topic's queue
    wakes: Ints  # when each is read: at its due time or, where it is to be renewed, before
    physical_offsets: Ints  # where their records lie in the log,
    sizes: Ints  # and how long they are
    renews: Bools  # whether it wakes to be renewed, being due later than the engine looks ahead

    def where(self, rows: Bools | Indices) -> "Units":
        """Some of the rows."""
        return Units(
            self.entries[rows], self.wakes[rows], self.physical_offsets[rows], self.sizes[rows], self.renews[rows]
        )

    @staticmethod
    def join(parts: "Sequence[Units]") -> "Units":
        """All rows, in this order."""
        if not parts:
            none = np.empty(0, np.int64)
            return Units(none, none, none, none, np.empty(0, bool))
        return Units(
            np.concatenate([part.entries for part in parts]),
            np.concatenate([part.wakes for part in parts]),
            np.concatenate([part.physical_offsets for part in parts]),
            np.concatenate([part.sizes for part in parts]),
            np.concatenate([part.renews for part in parts]),
        )

    def in_order(self) -> "Units":
        """The rows by the time at which they wake, then by entry."""
        return self.where(np.lexsort((self.entries, self.wakes)))


class Engine(Protocol):
    """Called by one thread, but for `sync`, which may run beside it.

    Everything given to it lies below F (invariant 2). What it forgets behind, the checkpoint on disk does not need any
    more. So whatever death leaves of the calls since the last `sync`, its content stays true: calls are repeated after
    a start, and putting or removing what is there or gone already changes nothing.
    """

    def put(self, units: Units, now_ms: int) -> None:
        """Keep these. Raises StoreError if the disk is full; the call is then repeated with the same units."""

    def remove(self, units: Units, now_ms: int) -> None:
        """Forget these, which were put before: they are cancelled or moved. The same rule for a full disk."""

    def read(self, start_ms: int, stop_ms: int) -> Iterator[Units]:
        """What wakes in (start, stop], whole seconds, slot by slot; removed ones are left out.

        Comes in pieces of at most PIECE rows, so that one full second does not hold up everybody; a piece may be in
        any order. What is put while reading goes on need not be seen.
        """

    def next_slot_ms(self, from_ms: int) -> int | None:
        """The first slot at or after this time that holds anything; None where there is none."""

    def forget_below(self, wake_ms: int) -> None:
        """Everything that wakes below this time is delivered, and the checkpoint on disk says so."""

    def mark(self) -> str:
        """Up to where it is written; goes into the checkpoint, once `sync` has run."""

    def sync(self) -> None:
        """Return when everything put and removed so far would survive the death of the machine."""

    def density(self, start_ms: int, stop_ms: int) -> Ints:
        """How many are due in each second of (start, stop]; what is renewed then is due later, and left out."""

    def count(self, slot_ms: int) -> int:
        """How many wake in the second of one slot, those to be renewed included."""

    def clear(self) -> None:
        """Forget everything, to be filled again from the timer topic."""

    def close(self) -> None: ...

    def statistics(self) -> dict[str, int]: ...


PIECE = 50_000
