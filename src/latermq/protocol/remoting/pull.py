"""Pulls: the header fields, and the bits of their sysFlag."""

from msgspec import Struct

from latermq.config_json.numbers import Int32, Int64


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
