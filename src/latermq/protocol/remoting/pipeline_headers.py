"""Header fields of the requests between a broker and the pipeline, one struct each; named as on the wire."""

from msgspec import Struct
from msgspec.structs import asdict

from latermq.protocol.remoting.numbers import Int32, Int64

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


class ScheduleRowsHeader(Struct, kw_only=True):
    """SCHEDULE_ROWS (7015): many timers at once; the body is RowBatch (rows.py)."""

    job: str
