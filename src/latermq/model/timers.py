"""Outcomes of requests about timers, and lists and counts of pending timers."""

from enum import StrEnum

from msgspec import Struct, field


class Verdict(StrEnum):
    """The outcome of a request about a timer, in the words that users read."""

    CANCELLED = "cancelled"
    MOVED = "moved"
    DELIVERED = "already delivered"
    NOT_FOUND = "not found"
    ACCEPTED = "accepted"
    PENDING = "pending"
    REPLACED = "replaced"  # other timers of the same name are pending, so the named ones were not changed


class Outcome(Struct):
    """The outcome for one name: `due_ms` of its timer, the new one after a move, and the number of its `timers`."""

    verdict: Verdict
    topic: str
    unique_key: str
    due_ms: int = 0
    timers: int = 0


class PendingTimer(Struct):
    """One pending timer; `sample` is the printable beginning of its body."""

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
    position: str = ""  # the cursor of the page after this timer


class PendingPage(Struct):
    """Timers in the order of their due times; `next` is the cursor of the next page, empty at the end."""

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
