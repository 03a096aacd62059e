"""Timers as a source: those that wake soon, read from the engine ahead of time, in order."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from latermq.arrays import Bools, Ints
from latermq.errors import StoreError
from latermq.message.slots import SLOT_MS, next_slot_start
from latermq.timer.delivery.level_source import Batch
from latermq.timer.engine.interface import Engine, Units

_NEVER_MS = 1 << 62


class _Run(NamedTuple):
    units: Units  # sorted by wake time
    at: int  # number of popped units


class TimerSource:
    """Entries that wake in (start, stop]; without a stop, all from the start on.

    Loaded entries are kept in runs, each in order; they may overlap, which the stage allows. Nothing may be put into
    the engine while a slot is being read, so writers check `is_reading`.
    """

    level = 0

    def __init__(
        self, engine: Engine, start_ms: int, stop_ms: int | None, keep: Callable[[Units], Units], *, first_ms: int = -1
    ) -> None:
        """Entries older than `start_ms` are delivered, except any added later that wake after `first_ms`."""
        self._engine = engine
        self._first_ms = first_ms
        self._stop_ms = stop_ms
        self._keep = keep
        self._runs: list[_Run] = []
        self._reader: Iterator[Units] | None = None
        self._pieces: list[Units] = []  # of the slot being read
        self.horizon_ms = start_ms  # every entry that wakes at or before it is loaded or being read
        self.rows = 0

    @property
    def is_reading(self) -> bool:
        return self._reader is not None

    def covers(self, wakes: Ints) -> Bools:
        """Which of these times lie in the loaded range, so that their entries must be added here."""
        return (wakes > self._first_ms) & (wakes <= self.horizon_ms)

    def load(self, until_ms: int, max_rows: int) -> bool:
        """Read a piece of the entries that wake up to this time; return whether more can be read at once."""
        if self._stop_ms is not None:
            until_ms = min(until_ms, self._stop_ms)
        if self._reader is None:
            if self.rows >= max_rows or self.horizon_ms >= until_ms:
                return False
            slot_ms = self._engine.next_slot_ms(self.horizon_ms)
            if slot_ms is None or slot_ms >= until_ms:
                self.horizon_ms = next_slot_start(until_ms)
                return False
            self.horizon_ms = slot_ms + SLOT_MS
            self._reader = self._engine.read(slot_ms, self.horizon_ms)
        try:
            piece = next(self._reader, None)
        except StoreError:
            # Start again from the beginning; nothing was put into the slot in the meantime.
            self._pieces = []
            self._reader = self._engine.read(self.horizon_ms - SLOT_MS, self.horizon_ms)
            raise
        if piece is not None:
            self._pieces.append(self._keep(piece))
            return True
        self._reader = None
        for piece in self._pieces:
            self.add(piece)
        self._pieces = []
        return True

    def add(self, units: Units) -> None:
        """Add entries that wake at or before the horizon."""
        for renews in (False, True):
            own = units.where(units.renews == renews)
            if len(own.entries):
                self._runs.append(_Run(own.in_order(), 0))
                self.rows += len(own.entries)
        self._merge()

    def _merge(self) -> None:
        """Keep the number of runs low: runs of similar size are merged, so each entry is sorted only a few times."""
        while len(self._runs) > 1:
            before, last = self._runs[-2:]
            left, right = len(before.units.entries) - before.at, len(last.units.entries) - last.at
            if before.units.renews[0] != last.units.renews[0] or left > 4 * right or left + right > 100_000:
                return
            rest = [run.units.where(np.arange(run.at, len(run.units.entries))) for run in (before, last)]
            self._runs[-2:] = [_Run(Units.join(rest).in_order(), 0)]

    def head_due_ms(self) -> int | None:
        """Return when the next loaded entry wakes; None if none is loaded."""
        return min((int(run.units.wakes[run.at]) for run in self._runs), default=None)

    def count_due(self, now_ms: int) -> int:
        """Number of loaded entries that should have been popped by now."""
        ends = (np.searchsorted(run.units.wakes, now_ms, side="right") for run in self._runs)
        return sum(max(0, int(end) - run.at) for end, run in zip(ends, self._runs, strict=True))

    def all_wake_from_ms(self) -> int:
        """Return a lower bound of the wake times of this source's entries that are not yet popped."""
        loaded_ms = self.horizon_ms + 1 - (SLOT_MS if self.is_reading else 0)
        if self._stop_ms is not None and self.horizon_ms >= self._stop_ms and not self.is_reading:
            loaded_ms = _NEVER_MS
        head_ms = self.head_due_ms()
        return loaded_ms if head_ms is None else min(loaded_ms, head_ms)

    def pop(self, until_ms: int, max_count: int, max_bytes: int) -> Batch:
        """Return the next entries of one run that wake at or before `until_ms`: at least one, of whatever size."""
        number = min(range(len(self._runs)), key=lambda index: int(self._runs[index].units.wakes[self._runs[index].at]))
        units, at = self._runs[number]
        end = int(np.searchsorted(units.wakes, until_ms, side="right"))
        end = max(at, min(end, at + max_count))
        fitting = int(np.searchsorted(np.cumsum(units.sizes[at:end]), max_bytes, side="right"))
        end = at + min(end - at, max(1, fitting))
        popped = units.where(np.arange(at, end))
        self.rows -= end - at
        if end == len(units.entries):
            del self._runs[number]
        else:
            self._runs[number] = _Run(units, end)
        is_renewal = bool(len(popped.renews) and popped.renews[0])
        return Batch(popped.entries, popped.wakes, popped.physical_offsets, popped.sizes, is_renewal)
