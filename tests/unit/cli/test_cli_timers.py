"""Output of the timer commands: verdicts, errors, lists and density."""

import json

import pytest

from latermq.cli.commands.pending import print_timers
from latermq.cli.views.message_rows import moment
from latermq.cli.views.timer_rows import density_rows, density_spans, print_outcomes
from latermq.client import Density, Outcome, PendingTimer, Verdict
from latermq.errors import LaterMQError, QueryNotFound

START_MS = 1_798_732_800_000
HOUR_MS = 3_600_000


def outcome(verdict: Verdict, unique_key: str = "U1") -> Outcome:
    return Outcome(verdict, "orders", unique_key, START_MS, 1)


def timer(number: int) -> PendingTimer:
    return PendingTimer(number, "orders", f"U{number}", "4711 eu", "", START_MS + number, 3, START_MS, 15, "the body")


def test_a_cancel_prints_the_verdict_for_each_timer(capsys: pytest.CaptureFixture[str]) -> None:
    outcomes = [outcome(Verdict.CANCELLED), outcome(Verdict.DELIVERED, "U2")]
    print_outcomes(outcomes, "cancelled", not_found="", as_json=True)
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["verdict"], row["message_id"]) for row in rows] == [("cancelled", "U1"), ("already delivered", "U2")]
    assert (rows[0]["topic"], rows[0]["due_ms"], rows[0]["timers"]) == ("orders", START_MS, 1)
    print_outcomes(outcomes, "cancelled", not_found="", as_json=False)
    table = capsys.readouterr().out
    assert "already delivered" in table
    assert moment(START_MS) in table  # type: ignore[operator]


@pytest.mark.parametrize(
    ("verdict", "wanted", "reason", "hint"),
    [
        (Verdict.DELIVERED, "cancelled", "nothing was cancelled: already delivered", "latermq message query"),
        (Verdict.NOT_FOUND, "cancelled", "nothing was cancelled: not found", "latermq pending"),
        (Verdict.CANCELLED, "moved", "nothing was moved: cancelled", "send the message again"),
    ],
)
def test_a_command_that_changes_nothing_says_why(
    verdict: Verdict, wanted: str, reason: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(LaterMQError, match=reason) as failed:
        print_outcomes([outcome(verdict)], wanted, not_found="", as_json=True)
    assert hint in failed.value.hint
    assert json.loads(capsys.readouterr().out)["verdict"] == str(verdict)


def test_a_key_that_no_timer_has_is_not_found() -> None:
    with pytest.raises(QueryNotFound, match="no timer with key 4711"):
        print_outcomes([], "cancelled", not_found="topic orders has no timer with key 4711", as_json=False)


def test_an_accepted_cancel_is_a_success(capsys: pytest.CaptureFixture[str]) -> None:
    print_outcomes([outcome(Verdict.ACCEPTED)], "cancelled", not_found="", as_json=True)
    assert capsys.readouterr().err.startswith("accepted: the broker is still recovering its timers")


def test_a_truncated_list_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    print_timers([timer(1), timer(2), timer(3)], 0, 2, as_json=True)
    printed = capsys.readouterr()
    rows = [json.loads(line) for line in printed.out.splitlines()]
    assert [(row["timer_id"], row["keys"], row["body"]) for row in rows] == [
        (1, ["4711", "eu"], "the body"),
        (2, ["4711", "eu"], "the body"),
    ]
    assert "list truncated to 2 timers" in printed.err
    print_timers([timer(1)], 0, 2, as_json=False)
    printed = capsys.readouterr()
    assert "U1" in printed.out
    assert printed.err == ""
    print_timers([], 0, 2, as_json=False)
    assert capsys.readouterr() == ("", "no pending timers\n")


def test_a_list_mentions_timers_on_the_timeline(capsys: pytest.CaptureFixture[str]) -> None:
    print_timers([], 3, 2, as_json=False)
    told = capsys.readouterr().err
    assert "no pending timers in the broker itself" in told
    assert "3 more timers on the timeline" in told


def test_density_is_shown_by_seconds_then_minutes_then_hours() -> None:
    seconds, minutes, hours = [0] * 3600, [0] * 1380, [0] * 24
    seconds[0], seconds[59], seconds[60] = 5, 7, 1
    minutes[0], minutes[61] = 100, 10
    hours[23] = 1
    density = Density(START_MS, seconds, minutes, hours)
    assert list(density_spans(density)) == [
        (START_MS, 1000, 5),
        (START_MS + 59_000, 1000, 7),
        (START_MS + 60_000, 1000, 1),
        (START_MS + HOUR_MS, 60_000, 100),
        (START_MS + 2 * HOUR_MS + 60_000, 60_000, 10),
        (START_MS + 47 * HOUR_MS, HOUR_MS, 1),
    ]
    rows = density_rows(density)
    assert [(row["from"], row["span"], row["timers"], row["busiest"]) for row in rows] == [
        (moment(START_MS), "1m", 12, 7),
        (moment(START_MS + 60_000), "1m", 1, 1),
        (moment(START_MS + HOUR_MS), "1h", 100, None),
        (moment(START_MS + 2 * HOUR_MS), "1h", 10, None),
        (moment(START_MS + 47 * HOUR_MS), "1h", 1, None),
    ]
    assert [len(row["load"]) for row in rows] == [5, 1, 40, 4, 1]


def test_an_empty_density_has_no_rows() -> None:
    assert density_rows(Density(START_MS)) == []
