"""The loader's state of one window: its errors, the times of the next tries, and the attempt being read."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from latermq.retry import Backoff
from latermq.timer.far.windows import WindowRows

FIRST_PAUSE_S, MAX_PAUSE_S = 1.0, 30.0
MAX_BUILD_PAUSE_S = 300.0  # long, since each try may leave an attempt on disk


def new_backoff(max_pause_s: float = MAX_PAUSE_S) -> Backoff[float]:
    """Return the back-off of one operation on a window."""
    return Backoff(FIRST_PAUSE_S, max_pause_s)


@dataclass
class Reading:
    """An attempt that is being read. A thread that hangs keeps its own object, which is not used again."""

    attempt: str
    pieces: Iterator[WindowRows] | None = None


@dataclass
class WindowState:
    """The loader's state of one window."""

    load: Backoff[float] = field(default_factory=new_backoff)
    check: Backoff[float] = field(default_factory=new_backoff)
    build: Backoff[float] = field(default_factory=lambda: new_backoff(MAX_BUILD_PAUSE_S))
    skip: Backoff[float] = field(default_factory=new_backoff)
    unread: dict[str, Backoff[float]] = field(default_factory=dict)  # attempts that could not be read but may be intact
    check_again_s: float = 0.0
    check_began_s: float = 0.0
    needs_build: bool = False  # none of its attempts can be loaded
    was_built: bool = False  # built since its attempts were last checked
    is_forced: bool = False  # build at once, without waiting for Spark
    timeouts: int = 0
    attempts: int = 0
    rows: int | None = None
    took_ms: int | None = None
    checked: str = ""  # the attempt whose every byte was verified
    reading: Reading | None = None

    @property
    def error(self) -> str:
        """The error that blocks the window; empty if there is none."""
        unread = [one.error for one in self.unread.values()]
        own = [one.error for one in (self.skip, self.load, self.build, self.check)]
        return next((error for error in (*own, *unread) if error), "")

    @property
    def is_suspect(self) -> bool:
        """Whether a check of its attempts failed before."""
        return bool(self.check.failures or self.unread)

    def settle(self) -> None:
        """Clear all errors, since an attempt can be loaded."""
        for backoff in (self.load, self.check, self.build):
            backoff.reset()
        self.unread.clear()
        self.needs_build = self.was_built = self.is_forced = False
        self.timeouts = 0

    def start_over(self) -> None:
        """Reset the state, so that all attempts are checked again as if for the first time."""
        self.settle()
        self.check_again_s = 0.0
        self.checked = ""
