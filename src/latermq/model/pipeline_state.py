"""What a broker tells the pipeline of its timers and windows."""

from msgspec import Struct, field


class CutState(Struct):
    """One cut: from its entry on, what is due before `frontier_ms` (U) is the broker's, and the rest Spark's.

    Window `number` is what Spark holds that is due from the last cut's `handback_ms` (W) to this one's. Both are 0
    where the window is done with and only the frontier still counts.
    """

    number: int
    entry: int
    frontier_ms: int
    handback_ms: int


class WindowState(Struct):
    """A window that the broker has not finished: due times [from, until), timers of entries before the cut's."""

    number: int
    cut_entry: int
    from_ms: int
    until_ms: int
    attempt: str = ""  # that the broker plays; empty: it waits for one


class PipelineState(Struct):
    """What a driver needs to know of one broker."""

    store_id: str
    broker_name: str
    epoch: int
    ingest_offset: int  # entries of the timer topic below it are in the timeline
    min_entry: int
    flushed_entry: int  # the first entry that is not flushed
    now_ms: int  # by the broker's clock
    # T and what is delivered beyond it: entries below `done_upto` due before `done_wake_ms` are delivered or taken.
    done_upto: int
    done_wake_ms: int
    done: list[tuple[int, int]] = field(default_factory=list)  # further entries that are: [start, end)
    # In order. They say of every entry from `owned_from` on whose it is; before the first of them all is the broker's.
    cuts: list[CutState] = field(default_factory=list)
    windows: list[WindowState] = field(default_factory=list)
    timeline: str = ""  # the folder with the timeline, as the broker names it; brokers of older versions do not tell
    # Of the process that answers, and another one after each start: tells two stores with one id from one store with
    # two addresses. Empty from brokers of earlier releases.
    instance: str = ""
    # While a window is missing T stands still. The broker's own timers among these entries are done that are due before
    near_done_wake_ms: int = 0
    # and Spark's that are due within these times, [from, until).
    far_done: list[tuple[int, int]] = field(default_factory=list)
    owned_from: int | None = None  # at most `min_entry`; None from brokers of earlier releases
