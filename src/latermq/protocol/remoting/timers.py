"""Requests about pending timers: recall, cancel, move, look up, list and count them."""

from collections.abc import Iterable

from msgspec import Struct, field

from latermq.config_json.java_json import convert
from latermq.config_json.numbers import Int32, Int64
from latermq.model.timers import Density, Outcome, PendingPage, Verdict
from latermq.protocol.remoting.json_body import decode_body, encode_body


class RecallHeader(Struct, kw_only=True):
    """RECALL_MESSAGE (370)."""

    topic: str
    recallHandle: str = ""
    producerGroup: str | None = None


class TimerNameHeader(Struct, kw_only=True):
    """CANCEL_TIMER (7001) and TIMER_STATUS (7003): exactly one of a unique key, a message key and a recall handle.

    TIMER_STATUS does not accept a message key; LIST_TIMERS lists the pending timers with a message key.

    `timerIds` (separated by commas) and `scheduledBefore` (an entry of the timer topic) are conditions for a cancel or
    a move by unique key. With both, it acts only if one of these timers is pending, and all pending timers of the name
    were first scheduled before that entry. Without `scheduledBefore`, it acts only if exactly these timers are pending.
    """

    topic: str
    uniqueKey: str | None = None
    key: str | None = None
    recallHandle: str | None = None
    timerIds: str | None = None
    scheduledBefore: Int64 | None = None


class MoveTimerHeader(TimerNameHeader, kw_only=True):
    """MOVE_TIMER (7002): either a new due time, or a delay from now by the broker's clock."""

    dueMs: Int64 | None = None
    delayMs: Int64 | None = None


class ListTimersHeader(Struct, kw_only=True):
    """LIST_TIMERS (7004) and COUNT_TIMERS (7005): empty fields and 0 do not restrict the selection.

    `fromMs` is inclusive, and `untilMs` is exclusive. `cursor` is the `next` of the previous page. COUNT_TIMERS ignores
    `limit` and `cursor`.
    """

    topic: str = ""
    key: str = ""
    fromMs: Int64 = 0
    untilMs: Int64 = 0
    limit: Int32 = 100
    cursor: str = ""


class OutcomeJson(Struct, rename="camel"):
    """One outcome in Outcomes."""

    verdict: Verdict
    topic: str
    unique_key: str
    due_ms: Int64 = 0
    timers: Int64 = 0


class Outcomes(Struct, kw_only=True):
    """CANCEL_TIMER, MOVE_TIMER and TIMER_STATUS: one outcome per name; none if the message key is unknown."""

    outcomes: list[OutcomeJson] = field(default_factory=list)


class PendingTimerJson(Struct, rename="camel"):
    """One timer in LIST_TIMERS."""

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
    position: str = ""


class PendingPageJson(Struct):
    """LIST_TIMERS."""

    timers: list[PendingTimerJson] = field(default_factory=list)
    next: str = ""


class PendingCount(Struct, kw_only=True):
    """COUNT_TIMERS."""

    timers: Int64


class DensityJson(Struct, rename="camel"):
    """TIMER_DENSITY."""

    start_ms: Int64
    seconds: list[Int64] = field(default_factory=list)
    minutes: list[Int64] = field(default_factory=list)
    hours: list[Int64] = field(default_factory=list)


def encode_outcomes(outcomes: Iterable[Outcome]) -> bytes:
    """Encode outcomes as a body."""
    return encode_body(Outcomes(outcomes=[convert(one, OutcomeJson) for one in outcomes]))


def decode_outcomes(body: bytes) -> list[Outcome]:
    """Decode outcomes from a body."""
    return [convert(one, Outcome) for one in decode_body(body, Outcomes).outcomes]


def encode_page(page: PendingPage) -> bytes:
    """Encode a page of timers as a body: 0.4 ms for 1,000 timers."""
    return encode_body(convert(page, PendingPageJson))


def decode_page(body: bytes) -> PendingPage:
    """Decode a page of timers from a body."""
    return convert(decode_body(body, PendingPageJson), PendingPage)


def encode_density(density: Density) -> bytes:
    """Encode a density as a body."""
    return encode_body(convert(density, DensityJson))


def decode_density(body: bytes) -> Density:
    """Decode a density from a body."""
    return convert(decode_body(body, DensityJson), Density)
