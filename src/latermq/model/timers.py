"""Pending timers: what became of them, and how they are listed and counted."""

from enum import StrEnum

from msgspec import Struct, field


class Verdict(StrEnum):
    """What became of a timer; the words are the ones that users read."""

    CANCELLED = "cancelled"
    MOVED = "moved"
    DELIVERED = "already delivered"
    NOT_FOUND = "not found"
    ACCEPTED = "accepted"
    PENDING = "pending"
    REPLACED = "replaced"  # the timers that were meant are gone or not alone: others of their name are pending


class Outcome(Struct):
    """The answer about one name: `due_ms` of what was hit (the new one after a move), `timers` entries taken."""

    verdict: Verdict
    topic: str
    unique_key: str
    due_ms: int = 0
    timers: int = 0


class PendingTimer(Struct):
    """One timer that waits; `sample` is the beginning of its body, as far as it can be printed."""

    timer_id: int
    topic: str
    unique_key: str
    keys: str
    tags: str
    due_ms: int
    queue_id: int
    scheduled_ms: int
    body_bytes: int
    sample: str


class PendingPage(Struct):
    """Timers in the order of their due times; `next` is where the next page begins, empty at the end."""

    timers: list[PendingTimer] = field(default_factory=list)
    next: str = ""


class Density(Struct):
    """How many timers are due in each second of the next hour, then minute of the day, then hour.

    The spans follow one another: 3,600 seconds from `start_ms`, 1,380 minutes from one hour after it, and hours from
    one day after it, to two days after it at most.
    """

    start_ms: int
    seconds: list[int] = field(default_factory=list)
    minutes: list[int] = field(default_factory=list)
    hours: list[int] = field(default_factory=list)
