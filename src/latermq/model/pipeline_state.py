"""The state of a broker's timers and windows, as reported to the pipeline."""

from msgspec import Struct, field

_LATEST_MS = 253_402_214_400_000  # the last day of the year 9999


class CutState(Struct):
    """One cut: later entries that are due before `frontier_ms` (U) are the broker's, and the others Spark's.

    Window `number` has Spark's timers that are due from the previous cut's `handback_ms` (W) to this one's. Both fields
    are 0 if the window is finished and only the frontier is still needed.
    """

    number: int
    entry: int
    frontier_ms: int
    handback_ms: int


class WindowState(Struct):
    """An unfinished window: timers due in [from, until) with entries before the entry of the cut."""

    number: int
    cut_entry: int
    from_ms: int
    until_ms: int
    attempt: str = ""  # the attempt that the broker loads; empty while it waits for one


class ChosenWindow(Struct):
    """A window for which the broker has chosen an attempt, and who built that."""

    number: int
    from_ms: int
    until_ms: int
    attempt: str
    epoch: int | None = None  # of the driver that built it; None if the broker did, or chose it before its last start
    rows: int | None = None  # None if the broker chose it before its last start
    is_finished: bool = False
    took_ms: int | None = None  # to build it; None if that or the rows are not known

    def __post_init__(self) -> None:
        # A driver may report any number, which must not break the state for all others.
        if self.took_ms is not None and not 0 <= self.took_ms < _LATEST_MS:
            self.took_ms = None

    @property
    def built_ms(self) -> int | None:
        """When it was built, by the clock of the builder, or when that began if it is not known how long it took."""
        _, _, rest = self.attempt.partition("-")
        begun_ms = rest.partition("-")[0]
        if not (begun_ms.isascii() and begun_ms.isdigit()):
            return None
        built_ms = int(begun_ms) + (self.took_ms or 0)
        return built_ms if built_ms < _LATEST_MS else None

    @property
    def built_by(self) -> str:
        """The builder: `spark` or `driver` for the driver, `local` for the broker."""
        return self.attempt.partition("-")[0]


class PipelineState(Struct):
    """The state of one broker, for its driver."""

    store_id: str
    broker_name: str
    epoch: int
    ingest_offset: int  # entries of the timer topic below it are in the timeline
    min_entry: int
    flushed_entry: int  # the first entry that is not flushed
    now_ms: int  # by the broker's clock
    # P and T: all entries below `done_upto` that are due before `done_wake_ms` were delivered, cancelled or moved.
    done_upto: int
    done_wake_ms: int
    done: list[tuple[int, int]] = field(default_factory=list)  # ranges [start, end) of further such entries
    # In order. They define the owner of each entry from `owned_from` on. Entries before the first cut are the broker's.
    cuts: list[CutState] = field(default_factory=list)
    windows: list[WindowState] = field(default_factory=list)
    timeline: str = ""  # the timeline's folder as the broker addresses it; empty from brokers of earlier releases
    # Identifies the broker process, and changes with each start. It distinguishes two stores with the same id from one
    # store with two addresses. Empty from brokers of earlier releases.
    instance: str = ""
    # While a window is missing, T does not advance. These two report the progress beyond it: the broker's own timers
    # that are due before this time are done,
    near_done_wake_ms: int = 0
    # and Spark's timers that are due in these ranges [from, until).
    far_done: list[tuple[int, int]] = field(default_factory=list)
    owned_from: int | None = None  # at most `min_entry`; None from brokers of earlier releases
    # For operators; absent from brokers of earlier releases.
    lag_ms: int = 0  # age of the oldest flushed entry that is not in the timeline
    keeps_far_timers: bool = False  # whether new far timers stay in the broker, because ingest lags
    deadline_ms: int | None = None  # when the broker starts to build the next window that has no attempt
    built_by: dict[str, int] = field(default_factory=dict)  # loaded windows since the broker's start, by builder
    last_windows: list[ChosenWindow] = field(default_factory=list)  # the latest windows with an attempt, in order
