"""Renewal: a timer due later than an engine looks ahead wakes earlier, to be written into the timer topic again.

So every pending record is younger than the renewal window, and older parts of the log can be removed.
"""

import numpy as np

from latermq.arrays import Bools, Ints
from latermq.errors import CorruptStore
from latermq.store.commit_log import CommitLog
from latermq.store.files.disk import Disk

LONGEST_WINDOW_MS = 2 * 86_400_000  # RocketMQ's own; leaves more than half of a seven-day wheel free
PATH = "latermq.rollwindow"
_SPREAD_SHARE = 4  # renewals are spread over the last quarter of the window
_GOLDEN = 2_654_435_761  # spreads neighbours in the timer topic far apart


def renewal_window_ms(retention_ms: int) -> int:
    """Return how far ahead an entry may wake, so that records are renewed well before they age out."""
    return min(LONGEST_WINDOW_MS, retention_ms * 2 // 3)


def load_renewal_window_ms(disk: Disk, retention_ms: int) -> int:
    """Return the renewal window of this store. It is chosen once, because an entry's wake time must not change later.

    If the retention is shortened afterwards, timers keep the log as long as before.
    """
    kept = disk.read(PATH)
    if kept is None:
        disk.replace(PATH, b"%d\n" % renewal_window_ms(retention_ms))
        return renewal_window_ms(retention_ms)
    try:
        return int(kept)
    except ValueError:
        raise CorruptStore(
            f"{PATH} holds {kept[:40]!r}, which is not a number",
            hint=f"Write the milliseconds that it was created with, usually {renewal_window_ms(retention_ms)}",
        ) from None


def wakes_of(log: CommitLog, entries: Ints, dues: Ints, physical_offsets: Ints, window_ms: int) -> tuple[Ints, Bools]:
    """Return when these entries wake, and which are renewed then. Derived from the log alone, so it never changes."""
    if not len(entries):
        return dues, np.zeros(0, bool)
    stored_ms = log.store_timestamps(physical_offsets)
    renews = dues - stored_ms > window_ms
    if not renews.any():
        return dues, renews
    spread_ms = (entries * _GOLDEN % (1 << 32)) * (window_ms // _SPREAD_SHARE) >> 32
    return np.where(renews, stored_ms + window_ms - spread_ms, dues), renews
