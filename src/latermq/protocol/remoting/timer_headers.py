"""Header fields of requests about timers that wait, one struct each; attributes are named as on the wire."""

from msgspec import Struct

from latermq.protocol.remoting.numbers import Int32, Int64


class RecallHeader(Struct, kw_only=True):
    """RECALL_MESSAGE (370)."""

    topic: str
    recallHandle: str = ""
    producerGroup: str | None = None


class TimerNameHeader(Struct, kw_only=True):
    """CANCEL_TIMER (7001) and TIMER_STATUS (7003): a timer by its unique key, a message key or its handle; one of them.

    TIMER_STATUS takes no message key: LIST_TIMERS tells what is pending under one.

    With `timerIds`, joined by commas, and `scheduledBefore`, an entry of the timer topic, a cancel or a move by unique
    key acts only if one of these timers is pending and all that are pending under the name were first scheduled before
    that entry; without `scheduledBefore`, only if these and no others are.
    """

    topic: str
    uniqueKey: str | None = None
    key: str | None = None
    recallHandle: str | None = None
    timerIds: str | None = None
    scheduledBefore: Int64 | None = None


class MoveTimerHeader(TimerNameHeader, kw_only=True):
    """MOVE_TIMER (7002): a new due time, or a delay from now by the broker's clock; one of them."""

    dueMs: Int64 | None = None
    delayMs: Int64 | None = None


class ListTimersHeader(Struct, kw_only=True):
    """LIST_TIMERS (7004) and COUNT_TIMERS (7005): what is left empty or 0 does not narrow the choice.

    `fromMs` is the first due time that counts, `untilMs` the first that does not. `cursor` is the `next` of the page
    before; COUNT_TIMERS does not look at `limit` and `cursor`.
    """

    topic: str = ""
    key: str = ""
    fromMs: Int64 = 0
    untilMs: Int64 = 0
    limit: Int32 = 100
    cursor: str = ""
