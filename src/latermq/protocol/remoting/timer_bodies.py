"""JSON bodies of requests about timers that wait: what a cancel or a move hit, and pages of what is pending."""

from enum import StrEnum

from msgspec import Struct, field

from latermq.protocol.remoting.numbers import Int32, Int64


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
