"""Pull requests and their replies: header fields, the bits of `sysFlag`, and response codes."""

from collections.abc import Iterable

from msgspec import Struct

from latermq.config_json.numbers import Int32, Int64
from latermq.model.pull_status import PullStatus
from latermq.protocol.remoting.codes import Response
from latermq.protocol.remoting.frames import FLAG_RESPONSE, encode_frame


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


def encode_pull_reply(
    opaque: int,
    encoding: int,
    code: int,
    next_offset: int,
    min_offset: int,
    max_offset: int,
    pieces: Iterable[bytes],
) -> bytes:
    """Encode the reply to a pull: the next offset, and the records as they are in the log."""
    fields = {
        "suggestWhichBrokerId": "0",
        "nextBeginOffset": str(next_offset),
        "minOffset": str(min_offset),
        "maxOffset": str(max_offset),
    }
    return encode_frame(code, opaque, flag=FLAG_RESPONSE, encoding=encoding, fields=fields, body=b"".join(pieces))
