"""Requests that the pipeline and operators send to a broker: state, ingest, windows and rows."""

from msgspec import Struct, field
from msgspec.structs import asdict

from latermq.config_json.java_json import convert
from latermq.config_json.numbers import Int32, Int64
from latermq.model.pipeline_state import PipelineState
from latermq.protocol.remoting.json_body import decode_body, encode_body
from latermq.redaction import without_secrets

SIGNATURE = "signature"


def signed_fields(header: Struct) -> dict[str, object]:
    """The signed fields of a request: all except the signature itself."""
    return {name: value for name, value in asdict(header).items() if name != SIGNATURE}


class PipelineStateHeader(Struct, kw_only=True):
    """PIPELINE_STATE (7010): the state of the broker's timers and windows.

    With `flush` the broker replies after everything stored so far is flushed. The `flushedEntry` of the reply is then
    after every timer that was acknowledged before the request.
    """

    flush: bool = False


class CutStateJson(Struct, rename="camel"):
    """One cut in PIPELINE_STATE."""

    number: Int64
    entry: Int64
    frontier_ms: Int64
    handback_ms: Int64


class WindowStateJson(Struct, rename="camel"):
    """One window in PIPELINE_STATE."""

    number: Int64
    cut_entry: Int64
    from_ms: Int64
    until_ms: Int64
    attempt: str = ""


class ChosenWindowJson(Struct, rename="camel"):
    """One of the last windows in PIPELINE_STATE."""

    number: Int64
    from_ms: Int64
    until_ms: Int64
    attempt: str
    epoch: Int64 | None = None
    rows: Int64 | None = None
    is_finished: bool = False
    took_ms: Int64 | None = None


class PipelineStateJson(Struct, rename="camel"):
    """PIPELINE_STATE and BEGIN_PIPELINE."""

    store_id: str
    broker_name: str
    epoch: Int64
    ingest_offset: Int64
    min_entry: Int64
    flushed_entry: Int64
    now_ms: Int64
    done_upto: Int64
    done_wake_ms: Int64
    done: list[tuple[Int64, Int64]] = field(default_factory=list)
    cuts: list[CutStateJson] = field(default_factory=list)
    windows: list[WindowStateJson] = field(default_factory=list)
    timeline: str = ""
    instance: str = ""
    near_done_wake_ms: Int64 = 0
    far_done: list[tuple[Int64, Int64]] = field(default_factory=list)
    owned_from: Int64 | None = None
    lag_ms: Int64 = 0
    keeps_far_timers: bool = False
    deadline_ms: Int64 | None = None
    built_by: dict[str, Int64] = field(default_factory=dict)
    last_windows: list[ChosenWindowJson] = field(default_factory=list)


def encode_state(state: PipelineState) -> bytes:
    """Encode the state of a broker as a body."""
    return encode_body(convert(state, PipelineStateJson))


def decode_state(body: bytes) -> PipelineState:
    """Decode the state of a broker from a body."""
    return convert(decode_body(body, PipelineStateJson), PipelineState)


class BeginPipelineHeader(Struct, kw_only=True):
    """BEGIN_PIPELINE (7011): become the ingesting driver, after the broker has checked that it can do the work.

    `token` is the token that the driver has written to its folder, where the broker looks for it. `tableEnd` is the
    first entry of the timer topic that is not in the driver's table. `afterEpoch` is the epoch that precedes the new
    one, so a recorded request is rejected when it is replayed.
    """

    token: str = ""
    tableEnd: Int64 = -1
    afterEpoch: Int64 = -1
    signature: str = ""

    def __repr__(self) -> str:
        return without_secrets(self, "token")


class PullRecordsHeader(Struct, kw_only=True):
    """PULL_RECORDS (7012): flushed records of one queue from `offset` on, concatenated.

    The reply's fields are `nextOffset`, where the next pull begins, `minOffset`, and `flushedOffset`, the first entry
    that is not flushed yet. `epoch` is the epoch of the ingesting driver; without one any client may read.
    """

    topic: str
    queueId: Int32
    offset: Int64
    maxBytes: Int32 = 4 << 20
    untilOffset: Int64 | None = None
    epoch: Int64 | None = None


class CommitIngestHeader(Struct, kw_only=True):
    """COMMIT_INGEST (7013): reports that all entries of the timer topic below `offset` are in the timeline."""

    offset: Int64
    epoch: Int64
    signature: str = ""


class WindowReadyHeader(Struct, kw_only=True):
    """WINDOW_READY (7014): reports that a window attempt is complete and has a manifest. `epoch` is the driver's."""

    number: Int64
    attempt: str
    epoch: Int64
    signature: str = ""


class WindowNumberHeader(Struct, kw_only=True):
    """REPAIR_WINDOW (7021) and SKIP_WINDOW (7022)."""

    number: Int64


class WindowReport(Struct, rename="camel", kw_only=True):
    """The state of one window, for operators."""

    number: Int64
    from_ms: Int64
    until_ms: Int64
    state: str  # waiting, built, checked, loading, loaded, damaged, blocked, skipping or skipped
    attempt: str = ""  # the one that the broker loads
    attempts: Int64 = 0  # number of attempts found so far
    damaged: dict[str, str] = field(default_factory=dict)  # damaged attempts, each with its error
    rows: Int64 | None = None  # of the attempt that the broker loads
    error: str = ""  # why it does not progress
    letters: Int64 = 0  # dead letters written
    unread: Int64 = 0  # dead letters that contain only a name


class WindowReports(Struct, rename="camel"):
    """WINDOW_STATES: all unfinished windows, and recently skipped ones."""

    broker_name: str
    now_ms: Int64
    windows: list[WindowReport] = field(default_factory=list)


class ScheduleRowsHeader(Struct, kw_only=True):
    """SCHEDULE_ROWS (7015): many timers at once; the body is RowBatch (rows.py)."""

    job: str
