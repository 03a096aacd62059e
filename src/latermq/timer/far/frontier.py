"""The frontier: the owner of each timer, set by the cuts in the timer topic (invariant 4), and the windows they open.

The owner of an entry can be looked up while its record is in the log. Older timers are all Spark's, and anything that
refers to one, by name or from a window, knows that. So cuts need not outlive the log.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from latermq.arrays import Bools, Ints
from latermq.handover.cut import FOREVER_MS, Cut
from latermq.handover.ownership import Ownership, Row, frontier_row


class Frontier:
    """All cuts that still have an effect. Before the first cut the broker owns every timer."""

    def __init__(self, cuts: Iterable[Cut] = (), far_until_ms: int = 0, rows: Sequence[Row] = ()) -> None:
        """Restore from a checkpoint. `rows` are the frontiers, which older checkpoints lack."""
        self._cuts = sorted(cuts)  # the last cut, and those with a window that is not fully delivered
        if rows:
            self.ownership = Ownership(rows)
        elif self._cuts:
            # Without the frontier before the first cut: that cut's own record holds it, and `learn_before` reads it.
            self.ownership = Ownership(map(frontier_row, self._cuts))
        else:
            self.ownership = Ownership()
        # No timer of Spark's is due later, as far as the timer topic was read.
        self.far_until_ms = max([far_until_ms, *(cut.far_until_ms for cut in self._cuts)])

    def add(self, cut: Cut) -> None:
        """Add a cut that was appended or found in the log. A known cut does not change."""
        if not self._cuts:  # the first known cut need not be the first of all
            self.ownership = Ownership.from_cuts(self.ownership.known_from, [cut])
        elif cut > self._cuts[-1]:
            self.ownership.add(cut)
        self._keep([cut])

    def fits(self, cut: Cut) -> bool:
        """Whether a cut found in the log agrees with the known cuts next to it."""
        at = bisect_left(self._cuts, cut.entry, key=lambda known: known.entry)
        if at < len(self._cuts) and self._cuts[at].entry == cut.entry:
            return self._cuts[at] == cut
        is_after = at == 0 or cut.follows(self._cuts[at - 1])
        return is_after and (at == len(self._cuts) or self._cuts[at].follows(cut))

    def learn_before(self, first_entry: int, cuts: Sequence[Cut]) -> None:
        """Note that entries from this one on are in the log too; `cuts` are all the unknown cuts among them."""
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
        """U: the broker owns each new timer that is due before it."""
        return self._cuts[-1].frontier_ms if self._cuts else FOREVER_MS

    @property
    def handback_ms(self) -> int:
        """W: Spark's timers due before it are handed back, or will be; 0 if there was never a cut."""
        return self._cuts[-1].handback_ms if self._cuts else 0

    @property
    def has_far(self) -> bool:
        """Whether Spark may hold timers that no window has handed back yet."""
        return bool(self._cuts) and self.far_until_ms >= self.handback_ms

    def is_near(self, entries: Ints, dues: Ints) -> Bools:
        """Which of these timers, whose records are in the log, the broker owns."""
        return self.ownership.is_near(entries, dues)

    def note_far(self, dues: Ints) -> None:
        """Note the due times of timers that Spark owns."""
        self.far_until_ms = max(self.far_until_ms, int(dues.max(initial=0)))

    def windows_after(self, wake_ms: int) -> list[Cut]:
        """Return the cuts whose windows may hold timers due at this time or later."""
        return [cut for cut in self._cuts if cut.has_window and cut.handback_ms > wake_ms]

    def forget(self, below_entry: int, wake_ms: int) -> None:
        """Forget entries that have left the log, and windows before this time, which are delivered."""
        self.ownership.forget_below(below_entry)
        kept = [cut for cut in self._cuts[:-1] if cut.handback_ms > wake_ms]
        self._cuts = [*kept, *self._cuts[-1:]]

    def cuts(self) -> list[Cut]:
        """Return all cuts that are kept, for the checkpoint."""
        return list(self._cuts)
