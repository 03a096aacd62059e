"""Pull requests: header fields, the bits of `sysFlag`, and response codes."""

from msgspec import Struct

from latermq.config_json.numbers import Int32, Int64
from latermq.model.pull_status import PullStatus
from latermq.protocol.remoting.codes import Response


class PullHeader(Struct, kw_only=True, gc=False):
    """PULL_MESSAGE (11) and LITE_PULL_MESSAGE (361)."""

    consumerGroup: str
    topic: str
    queueId: Int32
    queueOffset: Int64
    maxMsgNums: Int32
    sysFlag: Int32 = 0
    commitOffset: Int64 = 0
    suspendTimeoutMillis: Int64 = 0
    subscription: str | None = None
    subVersion: Int64 = 0
    expressionType: str | None = None
    maxMsgBytes: Int32 | None = None


PULL_COMMIT_OFFSET = 1

PULL_SUSPEND = 2

PULL_SUBSCRIPTION = 4

_CODE_OF = {
    PullStatus.FOUND: Response.SUCCESS,
    PullStatus.NO_NEW_MESSAGE: Response.PULL_NOT_FOUND,
    PullStatus.NO_MATCHED_MESSAGE: Response.PULL_RETRY_IMMEDIATELY,
    PullStatus.OFFSET_MOVED: Response.PULL_OFFSET_MOVED,
}
PULL_CODES = tuple(_CODE_OF[status] for status in PullStatus)  # indexed by PullStatus
