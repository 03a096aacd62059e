"""Which timers are cancelled or moved, beyond what an engine tells by leaving them out."""

import numpy as np

from latermq.arrays import Bools, Ints
from latermq.store.ranges import RangeSet
from latermq.timer.engine.interface import Units
from latermq.timer.sorted_entries import contains


class Cancelled:
    """Entries that a cancel or a move has ended and that may still be in memory somewhere."""

    def __init__(self) -> None:
        # When each entry wakes, which entry cancelled it, and whether it was Spark's.
        self._entries: dict[int, tuple[int, int, bool]] = {}
        self._sorted: Ints | None = None
        # The same of those replayed at a start, which may be very many: a row of each, entries in order.
        self._replayed: Ints = np.empty((4, 0), np.int64)

    def __len__(self) -> int:
        return len(self._entries) + len(self._replayed[0])

    def add(self, units: Units, by: int, is_far: Bools) -> None:
        """The entry `by` cancelled these; 0 where the engine told of it."""
        columns = (units.entries.tolist(), units.wakes.tolist(), is_far.tolist())
        for entry, wake_ms, far in zip(*columns, strict=True):
            self._entries[entry] = (wake_ms, by, far)
        self._sorted = None

    def add_replayed(self, units: Units, by: Ints, is_far: Bools) -> None:
        """Each of these was cancelled by another entry."""
        joined = np.concatenate(
            (self._replayed, np.stack((units.entries, units.wakes, by, is_far.astype(np.int64)))), axis=1
        )
        self._replayed = joined[:, np.argsort(joined[0], kind="stable")]

    def contains(self, entries: Ints) -> Bools:
        """For each of these entries whether it is cancelled, as far as that is not in the engine yet."""
        found = np.zeros(len(entries), bool)
        if self._entries:
            if self._sorted is None:
                self._sorted = np.sort(np.fromiter(self._entries, np.int64, len(self._entries)))
            found |= contains(self._sorted, entries)
        if self._replayed.shape[1]:
            found |= contains(self._replayed[0], entries)
        return found

    def forget(self, put_upto: int, near_ms: int, far_ms: int, far_delivered: RangeSet, horizon_ms: int) -> None:
        """Drop those that the engine knows of: their slots are not loaded yet, or are delivered.

        The broker's own are delivered before `near_ms`, Spark's before `far_ms` and at the times of `far_delivered`.
        """
        known = [
            entry
            for entry, (own_ms, by, is_far) in self._entries.items()
            if by < put_upto
            and (
                own_ms > horizon_ms or own_ms < (far_ms if is_far else near_ms) or (is_far and own_ms in far_delivered)
            )
        ]
        for entry in known:
            del self._entries[entry]
        if known:
            self._sorted = None
        _, wakes, by, far = self._replayed
        delivered = (wakes < np.where(far, far_ms, near_ms)) | ((far == 1) & ~far_delivered.missing(wakes))
        self._replayed = self._replayed[:, (by >= put_upto) | ~((wakes > horizon_ms) | delivered)]
