"""The frontier: whose each timer is, as the cuts in the timer topic decide (invariant 4), and which windows they open.

Whose an entry is can be asked for as long as its record is in the log. Behind that only Spark's timers are left, and
whoever knows of one by name or from a window knows that it is Spark's: cuts need not outlive the log.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from latermq.arrays import Bools, Ints
from latermq.handover.cut import FOREVER_MS, Cut
from latermq.handover.ownership import Ownership, Row


class Frontier:
    """All cuts that still decide anything. Before the first one everything is the broker's."""

    def __init__(self, cuts: Iterable[Cut] = (), far_until_ms: int = 0, rows: Sequence[Row] = ()) -> None:
        """As a checkpoint has it. `rows` are the frontiers, which older checkpoints do not have."""
        self._cuts = sorted(cuts)  # the last one, and those that have a window which is not played
        if rows:
            self.ownership = Ownership(rows)
        elif self._cuts:
            # Not the one before the first cut: that one's own record says it, which `learn_before` looks for.
            self.ownership = Ownership((cut.entry + 1, cut.frontier_ms) for cut in self._cuts)
        else:
            self.ownership = Ownership()
        # No timer of Spark's is due later, as far as the timer topic was read.
        self.far_until_ms = max([far_until_ms, *(cut.far_until_ms for cut in self._cuts)])

    def add(self, cut: Cut) -> None:
        """A cut was appended, or found in the log. What is known of it already stays."""
        if not self._cuts:  # the first that is known need not be the first ever
            self.ownership = Ownership.of_cuts(self.ownership.known_from, [cut])
        elif cut > self._cuts[-1]:
            self.ownership.add(cut)
        self._keep([cut])

    def learn_before(self, first_entry: int, cuts: Sequence[Cut]) -> None:
        """Entries from this one on are in the log too, and these are all the cuts among them that are not known."""
        self.ownership.learn_before(first_entry, cuts)
        self._keep(cuts)

    def _keep(self, cuts: Sequence[Cut]) -> None:
        for cut in cuts:
            at = bisect_left(self._cuts, cut)
            if self._cuts[at : at + 1] != [cut]:
                self._cuts.insert(at, cut)
            self.far_until_ms = max(self.far_until_ms, cut.far_until_ms)

    @property
    def last(self) -> Cut | None:
        return self._cuts[-1] if self._cuts else None

    @property
    def frontier_ms(self) -> int:
        """U: whatever comes next is the broker's if it is due before."""
        return self._cuts[-1].frontier_ms if self._cuts else FOREVER_MS

    @property
    def handback_ms(self) -> int:
        """W: what Spark holds that is due before is handed back, or will be; 0 where there was never a cut."""
        return self._cuts[-1].handback_ms if self._cuts else 0

    @property
    def has_far(self) -> bool:
        """Whether Spark may hold timers that no window has handed back yet."""
        return bool(self._cuts) and self.far_until_ms >= self.handback_ms

    def is_near(self, entries: Ints, dues: Ints) -> Bools:
        """Which of these timers, whose records are in the log, are the broker's."""
        return self.ownership.is_near(entries, dues)

    def note_far(self, dues: Ints) -> None:
        """These are Spark's."""
        self.far_until_ms = max(self.far_until_ms, int(dues.max(initial=0)))

    def windows_after(self, wake_ms: int) -> list[Cut]:
        """The cuts whose windows may hold something that is due at this time or later."""
        return [cut for cut in self._cuts if cut.has_window and cut.handback_ms > wake_ms]

    def forget(self, below_entry: int, wake_ms: int) -> None:
        """Entries below this one have left the log, and windows before this time are played."""
        self.ownership.forget_below(below_entry)
        kept = [cut for cut in self._cuts[:-1] if cut.handback_ms > wake_ms]
        self._cuts = [*kept, *self._cuts[-1:]]

    def cuts(self) -> list[Cut]:
        """All that are kept, for the checkpoint."""
        return list(self._cuts)
