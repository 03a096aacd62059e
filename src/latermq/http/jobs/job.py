"""What a job does, and how far it is."""

from typing import Annotated, Literal

import msgspec

from latermq.config import Duration
from latermq.errors import InvalidParameter
from latermq.http.api.timers import Timer
from latermq.http.problems import Problem
from latermq.http.timer_request import MAX_TIME_MS, NewDue, parse_bound_ms, parse_time_ms, time_of
from latermq.message.names import check_sendable_topic, check_topic

Text = Annotated[str, msgspec.Meta(max_length=255)]
LongText = Annotated[str, msgspec.Meta(max_length=16_384)]
Moment = Annotated[str, msgspec.Meta(max_length=60)]
MAX_PER_SECOND = 1_000_000

CANCELLED, MOVED, SENT, REFUSED = "cancelled", "moved", "sent", "refused"
REPLACED, NOT_FOUND = "replaced", "not found"
# What is no failure: `accepted` is the answer of a broker that recovers.
SUCCESSES = {
    "cancel": frozenset({CANCELLED, "accepted"}),
    "move": frozenset({MOVED, "accepted"}),
    "resend": frozenset({SENT}),
}

State = Literal["waiting", "planning", "running", "done", "aborted", "failed"]
FINISHED: tuple[State, ...] = ("done", "aborted", "failed")


class NewJob(msgspec.Struct, forbid_unknown_fields=True, rename={"from_": "from"}):
    """What to do with everything that matches.

    `cancel` and `move` select pending timers by `topic`, `key` (with a topic), `tag`, and due time in [`from`, `to`).
    `resend` selects the dead letters of `group` by original `topic`, `key`, `tag`, and when they became dead letters.
    Without any filter, `all` must be true. A move needs one of `by` (such as `1h` or `-30m`, from each due time),
    `delay`, `due` and `due_ms`. A resend may have one of the last three, to be delivered later, and `to_topic`.
    `per_second` limits the rate. With `dry_run` nothing is changed, and the answer says what matches. `allow_partial`
    permits a job without the timers of a timeline that the console cannot read.
    """

    action: Literal["cancel", "move", "resend"]
    topic: Text = ""
    key: LongText = ""
    tag: LongText = ""
    from_: Moment = ""
    to: Moment = ""
    group: Text = ""
    all: bool = False
    by: Moment | None = None
    delay: Moment | None = None
    due: Moment | None = None
    due_ms: int | None = None
    to_topic: Text = ""
    per_second: Annotated[int, msgspec.Meta(ge=1, le=MAX_PER_SECOND)] | None = None
    dry_run: bool = False
    allow_partial: bool = False


class Order(msgspec.Struct, frozen=True, omit_defaults=True):
    """A request that was checked. Times are absolute, so a job that continues later does the same."""

    action: Literal["cancel", "move", "resend"]
    topic: str = ""
    key: str = ""
    tag: str = ""
    from_ms: int = 0
    to_ms: int = 0
    group: str = ""
    by_ms: int | None = None
    due_ms: int | None = None
    to_topic: str = ""
    per_second: int | None = None
    allow_partial: bool = False

    def matches(self, keys: str, tag: str) -> bool:
        """Whether a message has the key and the tag."""
        return (not self.key or self.key in keys.split()) and (not self.tag or self.tag == tag)


class Job(msgspec.Struct, kw_only=True):
    """A job. `matched` is how many timers or messages its plan has, `done` how many of them are done.

    `outcomes` counts what became of them: `cancelled`, `moved` or `sent`, or why it was not possible. `impossible` is
    the sum of the latter. `problem` is why the job failed or, while it runs, what it waits for. `user` is who
    began it, empty without users.
    """

    id: str
    state: State
    order: Order
    created: str
    created_ms: int
    finished_ms: int = 0
    matched: int = 0
    done: int = 0
    impossible: int = 0
    outcomes: dict[str, int] = {}
    problem: Problem | None = None
    user: str = ""


class Impossible(msgspec.Struct, omit_defaults=True):
    """A timer or a dead letter of a job that was not changed: its id, and why."""

    id: str
    topic: str
    outcome: str
    detail: str = ""


class MatchedLetter(msgspec.Struct):
    """A dead letter that matches."""

    id: str
    original_topic: str
    reason: str
    stored_ms: int


class JobPreview(msgspec.Struct):
    """What a job would change: at least `matched` if `is_exact` is false, because counting took too long.

    Of these, `timers` or `dead_letters` are some.
    """

    matched: int
    is_exact: bool
    timers: list[Timer]
    dead_letters: list[MatchedLetter]
    far_missing: str = ""


def order_of(new: NewJob, now_ms: int) -> Order:
    """Check a request."""
    is_resend = new.action == "resend"
    if bool(new.group) != is_resend:
        raise InvalidParameter(f"{new.action} {'needs a' if is_resend else 'has no'} group")
    if new.to_topic and not is_resend:
        raise InvalidParameter("to_topic is only for resend")
    if new.topic:
        check_topic(new.topic)
    if new.to_topic:
        check_sendable_topic(new.to_topic)
    if new.key and not (new.topic or is_resend):
        raise InvalidParameter("a filter by key needs a topic", hint="Add topic")
    from_ms, to_ms = (parse_bound_ms(text) if text else 0 for text in (new.from_, new.to))
    if to_ms and to_ms <= from_ms:
        raise InvalidParameter("to must be after from")
    if not (new.topic or new.key or new.tag or from_ms or to_ms or new.all):
        raise InvalidParameter(f"{new.action} has no filter", hint='Add a filter, or "all": true')
    by_ms, due_ms = _times(new, now_ms)
    return Order(
        new.action, new.topic, new.key, new.tag, from_ms, to_ms, new.group, by_ms, due_ms, new.to_topic,
        new.per_second, new.allow_partial,
    )  # fmt: skip


def _times(new: NewJob, now_ms: int) -> tuple[int | None, int | None]:
    """Return the span by which timers are moved, or the new due time."""
    given = [name for name in ("by", "delay", "due", "due_ms") if getattr(new, name) is not None]
    if new.action == "move" and len(given) != 1:
        raise InvalidParameter("a move needs exactly one of by, delay, due and due_ms", hint='Write "by": "1h"')
    if new.action == "cancel" and given:
        raise InvalidParameter(f"cancel has no {given[0]}")
    if new.action == "resend" and (len(given) > 1 or new.by is not None):
        raise InvalidParameter("a resend has at most one of delay, due and due_ms")
    if new.by is not None:
        try:
            by_ms = int(Duration.parse(new.by.removeprefix("-"))) * (-1 if new.by.startswith("-") else 1)
        except (ValueError, OverflowError):
            raise InvalidParameter(f"the span {new.by[:40]!r} is not valid", hint="Write it like 90s or -1h") from None
        if abs(by_ms) > MAX_TIME_MS:
            raise InvalidParameter(f"the span {new.by[:40]!r} is too long")
        return by_ms, None
    if not given:
        return None, None
    if new.due is not None:
        return None, parse_time_ms(new.due)
    time_ms, is_delay = time_of(NewDue(delay=new.delay, due_ms=new.due_ms))
    return None, time_ms + now_ms * is_delay
