"""What the keeper of windows knows of one window: what failed, when it is tried again, and what is being read."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from latermq.server.backoff import Backoff
from latermq.timer.far.windows import WindowRows

LONGEST_ROLL_PAUSE_S = 300.0  # each try may leave an attempt behind


@dataclass
class Reading:
    """An attempt that is being read. A thread that hangs keeps its own, which nobody looks at again."""

    attempt: str
    pieces: Iterator[WindowRows] | None = None


@dataclass
class Care:
    """What the keeper knows of one window."""

    feed: Backoff = field(default_factory=Backoff)
    check: Backoff = field(default_factory=Backoff)
    roll: Backoff = field(default_factory=lambda: Backoff(longest_s=LONGEST_ROLL_PAUSE_S))
    skip: Backoff = field(default_factory=Backoff)
    unread: dict[str, Backoff] = field(default_factory=dict)  # attempts that could not be read, and may be whole
    check_again_s: float = 0.0
    check_began_s: float = 0.0
    needs_roll: bool = False  # none of its attempts can be played
    was_rolled: bool = False  # since its attempts were looked at
    is_forced: bool = False  # rolled at once, whatever Spark may bring
    timeouts: int = 0
    attempts: int = 0
    rows: int | None = None
    checked: str = ""  # the attempt that every byte of was looked at
    reading: Reading | None = None

    @property
    def error(self) -> str:
        """What kept it from going on last; empty where nothing does."""
        unread = [one.error for one in self.unread.values()]
        own = [one.error for one in (self.skip, self.feed, self.roll, self.check)]
        return next((told for told in (*own, *unread) if told), "")

    @property
    def is_suspect(self) -> bool:
        """Whether a look at its attempts failed before."""
        return bool(self.check.failures or self.unread)

    def settle(self) -> None:
        """An attempt can be played."""
        for backoff in (self.feed, self.check, self.roll):
            backoff.over()
        self.unread.clear()
        self.needs_roll = self.was_rolled = self.is_forced = False
        self.timeouts = 0

    def start_over(self) -> None:
        """Look at everything as if it were for the first time."""
        self.settle()
        self.check_again_s = 0.0
        self.checked = ""
