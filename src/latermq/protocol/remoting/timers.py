"""Pending timers: recall, cancel, move, look up, list and count them."""

from enum import StrEnum

from msgspec import Struct, field

from latermq.config_json.numbers import Int32, Int64


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


class Verdict(StrEnum):
    """What became of a timer; the words are the ones that users read."""

    CANCELLED = "cancelled"
    MOVED = "moved"
    DELIVERED = "already delivered"
    NOT_FOUND = "not found"
    ACCEPTED = "accepted"
    PENDING = "pending"
    REPLACED = "replaced"  # the timers that were meant are gone or not alone: others of their name are pending


class Outcome(Struct, rename="camel"):
    """The answer about one name: `due_ms` of what was hit (the new one after a move), `timers` entries taken."""

    verdict: Verdict
    topic: str
    unique_key: str
    due_ms: Int64 = 0
    timers: Int64 = 0


class Outcomes(Struct, kw_only=True):
    """CANCEL_TIMER, MOVE_TIMER and TIMER_STATUS: one outcome a name; none where a message key is not known."""

    outcomes: list[Outcome] = field(default_factory=list)


class PendingTimer(Struct, rename="camel"):
    """One timer that waits; `sample` is the beginning of its body, as far as it can be printed."""

    timer_id: Int64
    topic: str
    unique_key: str
    keys: str
    tags: str
    due_ms: Int64
    queue_id: Int32
    scheduled_ms: Int64
    body_bytes: Int32
    sample: str


class PendingPage(Struct):
    """LIST_TIMERS: timers in the order of their due times; `next` is where the next page begins, empty at the end."""

    timers: list[PendingTimer] = field(default_factory=list)
    next: str = ""


class PendingCount(Struct, kw_only=True):
    """COUNT_TIMERS."""

    timers: Int64


class Density(Struct, rename="camel"):
    """TIMER_DENSITY: how many timers are due in each second of the next hour, then minute of the day, then hour.

    The spans follow one another: 3,600 seconds from `start_ms`, 1,380 minutes from one hour after it, and hours from
    one day after it, to two days after it at most.
    """

    start_ms: Int64
    seconds: list[Int64] = field(default_factory=list)
    minutes: list[Int64] = field(default_factory=list)
    hours: list[Int64] = field(default_factory=list)
