"""The hands of the RocksDB engine: the upcoming hour, minute and second, as ranges that are read ahead.

The hands look ahead in one set of rows. When the hour hand turns, the rows of its hour are counted by minute, from keys
only. When the minute hand turns, the rows of its minute are read, unless there are too many to hold. The second hand
pops its second from these rows. A put or a removal makes a second that was read ahead stale. A stale second is read
from the database when it is due.
"""

import numpy as np

from latermq.arrays import Ints
from latermq.message.slots import SLOT_MS, slots_of
from latermq.timer.engine.rocksdb_rows import RocksRows, Rows, key_from

MINUTE_MS = 60_000
HOUR_MS = 3_600_000
MINUTE_ROWS = 20_000  # rows held for a minute, and keys read when the hour hand turns: 10 ms each, 0.6 MB


class Hands:
    """The data read ahead. It is only a cache and can be dropped at any moment."""

    def __init__(self, rows: RocksRows) -> None:
        self._database = rows
        self.served_seconds = 0
        self.drop()

    def drop(self) -> None:
        """Drop everything that was read ahead."""
        self._hour_ms = self._counted_to_ms = -HOUR_MS
        self._counts = np.zeros(60, np.int64)
        self._minute_ms = -HOUR_MS
        self._rows: Rows | None = None
        self._bounds: list[int] = []
        self._stale = np.zeros(60, bool)

    @property
    def held_rows(self) -> int:
        return 0 if self._rows is None else len(self._rows)

    def second(self, slot_ms: int, done_below_ms: int) -> Rows | None:
        """Return the rows of one second; None if they must be read from the database.

        The hands only move forward, minute by minute. They jump only when the minute they hold is delivered. So a
        caller that reads another time, to catch up or to browse, does not make them jump back and forth.
        """
        minute_ms = slot_ms // MINUTE_MS * MINUTE_MS
        ahead_ms = minute_ms - self._minute_ms
        if ahead_ms:
            is_behind = self._minute_ms + MINUTE_MS <= done_below_ms
            in_reach = done_below_ms <= slot_ms < done_below_ms + HOUR_MS
            if ahead_ms < 0 or not in_reach or not (ahead_ms == MINUTE_MS or is_behind):
                return None
            self._turn_minute(minute_ms)
        second = (slot_ms - minute_ms) // SLOT_MS
        if self._rows is None or self._stale[second]:
            return None
        self.served_seconds += 1
        return self._rows[self._bounds[second] : self._bounds[second + 1]]

    def _turn_minute(self, minute_ms: int) -> None:
        self._minute_ms = minute_ms
        self._rows = None
        self._stale[:] = False
        if minute_ms // HOUR_MS * HOUR_MS != self._hour_ms or minute_ms >= self._counted_to_ms:
            self._turn_hour(minute_ms)
        if self._counts[(minute_ms - self._hour_ms) // MINUTE_MS] > MINUTE_ROWS:
            return
        # Never more rows than counted. The count includes rows put since.
        rows = self._database.read(key_from(minute_ms + 1), key_from(minute_ms + MINUTE_MS + 1), MINUTE_ROWS + 1)
        if len(rows) <= MINUTE_ROWS:
            self._rows = rows
            starts = minute_ms + np.arange(61) * SLOT_MS
            self._bounds = np.searchsorted(rows["wake"].astype(np.int64), starts, side="right").tolist()

    def _turn_hour(self, minute_ms: int) -> None:
        """Count rows from this minute to the end of its hour, up to a fixed number of keys."""
        self._hour_ms = minute_ms // HOUR_MS * HOUR_MS
        end_ms = self._hour_ms + HOUR_MS
        keys = self._database.read_keys(key_from(minute_ms + 1), key_from(end_ms + 1), MINUTE_ROWS + 1)
        minutes = (keys[:, 0] - 1 - self._hour_ms) // MINUTE_MS
        self._counts = np.bincount(minutes, minlength=60)
        if len(keys) <= MINUTE_ROWS:
            self._counted_to_ms = end_ms
        else:
            # The scan ended within a minute. That minute is counted again, unless it alone reaches the limit.
            last_ms = self._hour_ms + int(minutes[-1]) * MINUTE_MS
            self._counted_to_ms = max(last_ms, minute_ms + MINUTE_MS)

    def changed(self, wakes: Ints, *, added: bool) -> None:
        """Note that rows that wake at these times are about to be put or removed."""
        in_hour = wakes[(wakes > self._hour_ms) & (wakes <= self._counted_to_ms)] if added else wakes[:0]
        if len(in_hour):
            self._counts += np.bincount((in_hour - 1 - self._hour_ms) // MINUTE_MS, minlength=60)
        in_minute = wakes[(wakes > self._minute_ms) & (wakes <= self._minute_ms + MINUTE_MS)]
        if len(in_minute):
            self._stale[(slots_of(in_minute) - self._minute_ms) // SLOT_MS] = True
            if self._stale.all():
                self._rows = None
