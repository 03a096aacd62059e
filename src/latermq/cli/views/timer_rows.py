"""Timers as rows: results of cancels and moves, pending timers, and their density over time."""

from typing import TYPE_CHECKING, Any

from latermq.cli.output import print_note, print_rows
from latermq.cli.views.message_rows import moment
from latermq.errors import LaterMQError, QueryNotFound

if TYPE_CHECKING:
    from collections.abc import Iterator

    from latermq.client import Density, Outcome, PendingTimer

_BAR_CHARS = 40
_SECOND_MS, _MINUTE_MS, _HOUR_MS, _DAY_MS = 1_000, 60_000, 3_600_000, 86_400_000
_HINTS = {
    "already delivered": "`latermq message query TOPIC --key K` shows the delivered message",
    "not found": "Check topic and key; `latermq pending TOPIC` lists pending timers",
    "cancelled": "A cancelled timer cannot be restored; send the message again",
}

Span = tuple[int, int, int]  # start, length in milliseconds, timers due in it


def print_outcomes(outcomes: "list[Outcome]", expected: str, *, not_found: str, as_json: bool) -> None:
    """Print the verdict for each timer. Raise an error if none has the expected verdict, `cancelled` or `moved`."""
    if not outcomes:
        raise QueryNotFound(not_found, hint=_HINTS["not found"])
    columns = {"verdict": "verdict", "message_id": "message id", "due": "due", "timers": "timers"}
    print_rows([_outcome_row(outcome) for outcome in outcomes], columns, as_json=as_json, empty="")
    verdicts = {str(outcome.verdict): None for outcome in outcomes}
    if "accepted" in verdicts:
        print_note("accepted: the broker is still recovering its timers; repeat the command later to see the verdict")
    elif expected not in verdicts:
        hint = next((_HINTS[verdict] for verdict in verdicts if verdict in _HINTS), "")
        raise LaterMQError(f"nothing was {expected}: {', '.join(verdicts)}", hint=hint)


def _outcome_row(outcome: "Outcome") -> dict[str, Any]:
    return {
        "verdict": str(outcome.verdict),
        "topic": outcome.topic,
        "message_id": outcome.unique_key,
        "due_ms": outcome.due_ms,
        "due": moment(outcome.due_ms),
        "timers": outcome.timers,
    }


def pending_row(timer: "PendingTimer") -> dict[str, Any]:
    """A pending timer as a row."""
    return {
        "due_ms": timer.due_ms,
        "due": moment(timer.due_ms),
        "topic": timer.topic,
        "queue_id": timer.queue_id,
        "message_id": timer.unique_key,
        "tag": timer.tags or None,
        "keys": timer.keys.split(),
        "scheduled_ms": timer.scheduled_ms,
        "scheduled": moment(timer.scheduled_ms),
        "timer_id": timer.timer_id,
        "body_bytes": timer.body_bytes,
        "body": timer.sample,
    }


def density_spans(density: "Density") -> "Iterator[Span]":
    """Every time span with due timers, at the broker's resolution."""
    for counts, begin_ms, span_ms in (
        (density.seconds, density.start_ms, _SECOND_MS),
        (density.minutes, density.start_ms + _HOUR_MS, _MINUTE_MS),
        (density.hours, density.start_ms + _DAY_MS, _HOUR_MS),
    ):
        yield from ((begin_ms + number * span_ms, span_ms, timers) for number, timers in enumerate(counts) if timers)


def density_rows(density: "Density") -> list[dict[str, Any]]:
    """The same in readable form: the next hour by minutes, then by hours, each with a bar."""
    rows: dict[int, dict[str, Any]] = {}
    for start_ms, span_ms, timers in density_spans(density):
        shown_ms = _MINUTE_MS if span_ms == _SECOND_MS else _HOUR_MS
        from_ms = start_ms - (start_ms - density.start_ms) % shown_ms
        row = rows.setdefault(
            from_ms,
            {"from": moment(from_ms), "span": "1m" if shown_ms == _MINUTE_MS else "1h", "timers": 0, "busiest": None},
        )
        row["timers"] += timers
        if span_ms == _SECOND_MS:
            row["busiest"] = max(row["busiest"] or 0, timers)
    largest = max((row["timers"] for row in rows.values()), default=1)
    for row in rows.values():
        row["load"] = "█" * max(1, round(_BAR_CHARS * row["timers"] / largest))
    return list(rows.values())
