"""Requests between a broker and the pipeline."""

from msgspec import Struct, field
from msgspec.structs import asdict

from latermq.config_json.numbers import Int32, Int64

SIGNATURE = "signature"


def signed_fields(header: Struct) -> dict[str, object]:
    """What of a request is signed: all its fields but the signature itself."""
    return {name: value for name, value in asdict(header).items() if name != SIGNATURE}


class PipelineStateHeader(Struct, kw_only=True):
    """PIPELINE_STATE (7010): what the broker knows of its timers and windows.

    With `flush` it answers once all that it held when it was asked is flushed, so that the answer's `flushedEntry` is
    behind every timer that was acknowledged before.
    """

    flush: bool = False


class CutState(Struct, rename="camel"):
    """One cut: from its entry on, what is due before `frontier_ms` (U) is the broker's, and the rest Spark's.

    Window `number` is what Spark holds that is due from the last cut's `handback_ms` (W) to this one's. Both are 0
    where the window is done with and only the frontier still counts.
    """

    number: Int64
    entry: Int64
    frontier_ms: Int64
    handback_ms: Int64


class WindowState(Struct, rename="camel"):
    """A window that the broker has not finished: due times [from, until), timers of entries before the cut's."""

    number: Int64
    cut_entry: Int64
    from_ms: Int64
    until_ms: Int64
    attempt: str = ""  # that the broker plays; empty: it waits for one


class PipelineState(Struct, rename="camel"):
    """PIPELINE_STATE and BEGIN_PIPELINE: what a driver needs to know of one broker."""

    store_id: str
    broker_name: str
    epoch: Int64
    ingest_offset: Int64  # entries of the timer topic below it are in the timeline
    min_entry: Int64
    flushed_entry: Int64  # the first entry that is not flushed
    now_ms: Int64  # by the broker's clock
    # T and what is delivered beyond it: entries below `done_upto` due before `done_wake_ms` are delivered or taken.
    done_upto: Int64
    done_wake_ms: Int64
    done: list[tuple[Int64, Int64]] = field(default_factory=list)  # further entries that are: [start, end)
    # In order. They say of every entry from `owned_from` on whose it is; before the first of them all is the broker's.
    cuts: list[CutState] = field(default_factory=list)
    windows: list[WindowState] = field(default_factory=list)
    timeline: str = ""  # the folder with the timeline, as the broker names it; brokers of older versions do not tell
    # Of the process that answers, and another one after each start: tells two stores with one id from one store with
    # two addresses. Empty from brokers of earlier releases.
    instance: str = ""
    # While a window is missing T stands still. The broker's own timers among these entries are done that are due before
    near_done_wake_ms: Int64 = 0
    # and Spark's that are due within these times, [from, until).
    far_done: list[tuple[Int64, Int64]] = field(default_factory=list)
    owned_from: Int64 | None = None  # at most `min_entry`; None from brokers of earlier releases


class BeginPipelineHeader(Struct, kw_only=True):
    """BEGIN_PIPELINE (7011): become the driver that ingests, once all is checked that would keep it from its work.

    `token` is the one that the driver left in its folder, where the broker looks for it; `tableEnd` the first entry of
    the timer topic that is not in its table. `afterEpoch` is the epoch that it follows: a request that somebody
    recorded and sends again comes too late.
    """

    token: str = ""
    tableEnd: Int64 = -1
    afterEpoch: Int64 = -1
    signature: str = ""


class PullRecordsHeader(Struct, kw_only=True):
    """PULL_RECORDS (7012): flushed records of one queue, end to end, from `offset` on.

    The reply's fields are `nextOffset`, where the next pull begins, `minOffset` and `flushedOffset`, the first entry
    that is not flushed yet. `epoch` is that of the driver that ingests; without one anybody may read.
    """

    topic: str
    queueId: Int32
    offset: Int64
    maxBytes: Int32 = 4 << 20
    untilOffset: Int64 | None = None
    epoch: Int64 | None = None


class CommitIngestHeader(Struct, kw_only=True):
    """COMMIT_INGEST (7013): all entries of the timer topic below `offset` are in the timeline."""

    offset: Int64
    epoch: Int64
    signature: str = ""


class WindowReadyHeader(Struct, kw_only=True):
    """WINDOW_READY (7014): an attempt of a window is complete, its manifest written. `epoch` is the driver's own."""

    number: Int64
    attempt: str
    epoch: Int64
    signature: str = ""


class WindowNumberHeader(Struct, kw_only=True):
    """REPAIR_WINDOW (7021) and SKIP_WINDOW (7022): which window is meant."""

    number: Int64


class WindowReport(Struct, rename="camel", kw_only=True):
    """What is known of a window, for an operator."""

    number: Int64
    from_ms: Int64
    until_ms: Int64
    state: str  # waiting, rolled, checked, playing, played, damaged, blocked, skipping or skipped
    attempt: str = ""  # that is played
    attempts: Int64 = 0  # that there are, as far as was looked
    damaged: dict[str, str] = field(default_factory=dict)  # attempts, and what is wrong with them
    rows: Int64 | None = None  # of the attempt that is played
    error: str = ""  # what keeps it from going on
    letters: Int64 = 0  # dead letters that were written
    unread: Int64 = 0  # of these, how many have a name only


class WindowReports(Struct, rename="camel"):
    """WINDOW_STATES: all windows that are not done with, and those that were skipped lately."""

    broker_name: str
    now_ms: Int64
    windows: list[WindowReport] = field(default_factory=list)


class ScheduleRowsHeader(Struct, kw_only=True):
    """SCHEDULE_ROWS (7015): many timers at once; the body is RowBatch (rows.py)."""

    job: str
