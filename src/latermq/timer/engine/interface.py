"""The engine interface: an engine stores the entries of the timer topic on disk, by the time at which they wake.

An engine is derived from the timer topic and can always be rebuilt from it. There are two: the timer log with its wheel
(wheel_engine.py) and RocksDB (rocksdb_engine.py). One conformance suite covers both.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from latermq.arrays import Bools, Indices, Ints


class Units(NamedTuple):
    """Entries of the timer topic as an engine stores them. Each array has one row per entry."""

    entries: Ints  # offsets in the timer topic's queue
    wakes: Ints  # when each wakes: at its due time, or earlier if it is to be renewed
    physical_offsets: Ints  # where their records start in the log
    sizes: Ints  # sizes of these records
    renews: Bools  # whether it wakes to be renewed, because it is due later than the engine looks ahead

    def where(self, rows: Bools | Indices) -> "Units":
        """Return the selected rows."""
        return Units(
            self.entries[rows], self.wakes[rows], self.physical_offsets[rows], self.sizes[rows], self.renews[rows]
        )

    @staticmethod
    def join(parts: "Sequence[Units]") -> "Units":
        """Return all rows, in this order."""
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
        """Return the rows sorted by wake time, then by entry."""
        return self.where(np.lexsort((self.entries, self.wakes)))


class Engine(Protocol):
    """One thread makes all calls, except `sync`, which may run concurrently.

    Everything passed to an engine lies below F (invariant 2). The checkpoint on disk no longer needs what the engine
    forgets. So its content stays correct, whichever of the calls since the last `sync` survive a crash: calls are
    repeated after a start, and a repeated put or remove changes nothing.
    """

    def put(self, units: Units, now_ms: int) -> None:
        """Store these. Raises StoreError if the disk is full; the caller then repeats the call with the same units."""

    def remove(self, units: Units, now_ms: int) -> None:
        """Remove units that were put before, because they are cancelled or moved.

        A full disk is handled as in `put`.
        """

    def read(self, start_ms: int, stop_ms: int) -> Iterator[Units]:
        """Yield the units that wake in (start, stop], in whole seconds, slot by slot, without removed ones.

        Units come in pieces of at most PIECE rows, so that one full second does not block all other work. A piece may
        be in any order. Units that are put during the read need not be included.
        """

    def next_slot_ms(self, from_ms: int) -> int | None:
        """Return the first slot at or after this time that holds any units; None if there is none."""

    def forget_below(self, wake_ms: int) -> None:
        """Forget units that wake before this time: they are delivered, and the checkpoint on disk says so."""

    def mark(self) -> str:
        """Return the position up to which the engine is written. It goes into the checkpoint after `sync`."""

    def sync(self) -> None:
        """Block until everything put and removed so far would survive a machine crash."""

    def density(self, start_ms: int, stop_ms: int) -> Ints:
        """Number of timers due in each second of (start, stop]. Timers renewed then are due later and do not count."""

    def count(self, slot_ms: int) -> int:
        """Number of timers that wake in the second of one slot, including those to be renewed."""

    def clear(self) -> None:
        """Forget everything, so that the engine can be refilled from the timer topic."""

    def close(self) -> None: ...

    def statistics(self) -> dict[str, int]: ...


PIECE = 50_000
