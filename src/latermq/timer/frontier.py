"""The frontier: whose each timer is, the broker's or Spark's, as the cuts in the timer topic decide (invariant 4)."""

from collections.abc import Iterable

import numpy as np

from latermq.message.cut import FOREVER_MS, Cut
from latermq.timer.engine import Bools, Ints


class Frontier:
    """All cuts that still decide anything. Before the first one everything is the broker's."""

    def __init__(self, cuts: Iterable[Cut] = (), far_until_ms: int = 0) -> None:
        self._cuts = sorted(cuts)
        # No timer of Spark's is due later, as far as the timer topic was read.
        self.far_until_ms = max([far_until_ms, *(cut.far_until_ms for cut in self._cuts)])
        self._index()

    def _index(self) -> None:
        self._entries = np.array([cut.entry for cut in self._cuts], np.int64)
        first = self._cuts[0].last_frontier_ms if self._cuts else FOREVER_MS
        self._frontiers = np.array([first, *(cut.frontier_ms for cut in self._cuts)], np.int64)

    def add(self, cut: Cut) -> None:
        """A cut was appended, or found in the log."""
        if cut in self._cuts:
            return
        self._cuts = sorted([*self._cuts, cut])
        self.far_until_ms = max(self.far_until_ms, cut.far_until_ms)
        self._index()

    @property
    def last(self) -> Cut | None:
        return self._cuts[-1] if self._cuts else None

    @property
    def frontier_ms(self) -> int:
        """U: whatever comes next is the broker's if it is due before."""
        return int(self._frontiers[-1])

    @property
    def handback_ms(self) -> int:
        """W: what Spark holds that is due before is handed back, or will be; 0 where there was never a cut."""
        return self._cuts[-1].handback_ms if self._cuts else 0

    @property
    def has_far(self) -> bool:
        """Whether Spark may hold timers that no window has handed back yet."""
        return bool(self._cuts) and self.far_until_ms >= self.handback_ms

    def is_near(self, entries: Ints, dues: Ints) -> Bools:
        """Which of these timers are the broker's."""
        if not self._cuts:
            return np.ones(len(entries), bool)
        # The last cut before each entry; number 0 stands for what was before the first.
        near: Bools = dues < self._frontiers[np.searchsorted(self._entries, entries, side="left")]
        return near

    def note_far(self, dues: Ints) -> None:
        """These are Spark's."""
        self.far_until_ms = max(self.far_until_ms, int(dues.max(initial=0)))

    def cuts_from(self, entry: int) -> list[Cut]:
        """All cuts behind this entry, and the last one before it where it is known."""
        first = int(np.searchsorted(self._entries, entry, side="left"))
        return self._cuts[max(0, first - 1) :]

    def windows_after(self, wake_ms: int) -> list[Cut]:
        """The cuts whose windows may hold something that is due at this time or later."""
        return [cut for cut in self._cuts if cut.has_window and cut.handback_ms > wake_ms]

    def forget(self, below_entry: int, wake_ms: int) -> None:
        """Drop cuts that decide about nothing above this entry, and whose windows lie before this time."""
        kept = [cut for cut in self._cuts[:-1] if cut.entry >= below_entry or cut.handback_ms > wake_ms]
        if len(kept) < len(self._cuts) - 1:
            self._cuts = [*kept, *self._cuts[-1:]]
            self._index()

    def cuts(self) -> list[Cut]:
        """All that are kept, for the checkpoint."""
        return list(self._cuts)
