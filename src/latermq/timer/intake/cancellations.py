"""Timers that cancels and moves took: nobody sees them from then on, and the engine loses them once that is flushed."""

from collections import deque
from typing import NamedTuple

import numpy as np

from latermq.arrays import Bools, Ints
from latermq.store.ranges import RangeSet
from latermq.timer.engine.interface import Units
from latermq.timer.intake.delivered_set import not_in

# As the size of a unit's record, which no record has: the unit says that a cancel or a move took a window's timer.
TAKEN_SIZE = 1


GONE = -1  # as the place of a record: it has left the log


class Taking(NamedTuple):
    """What a cancel or a move is going to take of the broker's. It is known before its record is written."""

    units: Units
    is_near: Bools  # whose they are: of the broker's engine, or of Spark's windows
    rows: Ints  # which they are of all that were asked for


class Verdict(NamedTuple):
    """What one cancel or move does to the engine."""

    entry: int  # its own
    end_offset: int  # where its record ends in the log
    units: Units  # to be removed
    notes: Units  # to be put: Spark's timers, which are taken out of their windows when these are played


def notes_of(units: Units, end_offset: int) -> Units:
    """Units that stand for timers of windows; they are flushed with the verdict whose record ends there."""
    return units._replace(
        physical_offsets=np.full_like(units.entries, end_offset - 1), sizes=np.full_like(units.entries, TAKEN_SIZE)
    )


class Taken:
    """What was taken and may still be in memory, and verdicts that the engine has not heard."""

    def __init__(self) -> None:
        self._verdicts: deque[Verdict] = deque()
        # When each entry wakes, which entry took it, and whether it was Spark's.
        self._entries: dict[int, tuple[int, int, bool]] = {}
        self._sorted: Ints | None = None
        # The same of those that acted again at a start, which may be very many: a row of each, entries in order.
        self._again: Ints = np.empty((4, 0), np.int64)

    def __len__(self) -> int:
        return len(self._entries) + len(self._again[0])

    def add(self, units: Units, by: int, is_far: Bools) -> None:
        """The entry `by` took these; 0 where the engine told of it."""
        columns = (units.entries.tolist(), units.wakes.tolist(), is_far.tolist())
        for entry, wake_ms, far in zip(*columns, strict=True):
            self._entries[entry] = (wake_ms, by, far)
        self._sorted = None

    def add_all(self, units: Units, by: Ints, is_far: Bools) -> None:
        """Each of these was taken by another entry."""
        joined = np.concatenate(
            (self._again, np.stack((units.entries, units.wakes, by, is_far.astype(np.int64)))), axis=1
        )
        self._again = joined[:, np.argsort(joined[0], kind="stable")]

    def missing(self, entries: Ints) -> Bools:
        """For each of these entries whether nothing took it, as far as that is not in the engine yet."""
        missing = np.ones(len(entries), bool)
        if self._entries:
            if self._sorted is None:
                self._sorted = np.sort(np.fromiter(self._entries, np.int64, len(self._entries)))
            missing &= not_in(entries, self._sorted)
        if self._again.shape[1]:
            missing &= not_in(entries, self._again[0])
        return missing

    def forget(self, put_upto: int, near_ms: int, far_ms: int, far_done: RangeSet, horizon_ms: int) -> None:
        """Drop those that the engine knows of: their slots are not loaded yet, or done with.

        The broker's own are done with before `near_ms`, Spark's before `far_ms` and at the times of `far_done`.
        """
        known = [
            entry
            for entry, (own_ms, by, is_far) in self._entries.items()
            if by < put_upto
            and (own_ms > horizon_ms or own_ms < (far_ms if is_far else near_ms) or (is_far and own_ms in far_done))
        ]
        for entry in known:
            del self._entries[entry]
        if known:
            self._sorted = None
        _, wakes, takers, far = self._again
        done = (wakes < np.where(far, far_ms, near_ms)) | ((far == 1) & ~far_done.missing(wakes))
        self._again = self._again[:, (takers >= put_upto) | ~((wakes > horizon_ms) | done)]

    # Verdicts, in the order of the timer topic

    @property
    def first_verdict(self) -> int | None:
        """The first cancel or move that the engine has not heard of."""
        return self._verdicts[0].entry if self._verdicts else None

    def tell_engine(self, verdict: Verdict) -> None:
        """Keep this until it is flushed."""
        self._verdicts.append(verdict)

    def first_below(self, flushed: int, most: int) -> list[Verdict]:
        """The first ones whose records end below F, of at most so many timers or one more verdict."""
        found: list[Verdict] = []
        count = 0
        for verdict in self._verdicts:
            if verdict.end_offset > flushed or count >= most:
                break
            found.append(verdict)
            count += max(1, len(verdict.units.entries) + len(verdict.notes.entries))
        return found

    def drop_first(self, count: int) -> None:
        """So many of what `first_below` gave have acted."""
        for _ in range(count):
            self._verdicts.popleft()
