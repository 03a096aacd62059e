"""The screen of `latermq top`, for states that a real cluster rarely has."""

import datetime
import io

import pytest
from rich.console import Console

from latermq.cli.status.probes import GroupLag
from latermq.cli.status.screen import screen
from latermq.http.alerts.alert import Alert
from latermq.http.api.cluster import BrokerState, LiveState
from latermq.http.api.density import EDGES_MS, Bucket, DensityReport

NOW = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)


def lines(state: LiveState | None, lags: list[GroupLag], trouble: str = "", width: int = 80) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width, highlight=False).print(screen("127.0.0.1:9876", state, lags, trouble, NOW))
    return out.getvalue().splitlines()


def density(**timers: int) -> DensityReport:
    counts = {int(number[1:]): count for number, count in timers.items()}
    edges = (0, *EDGES_MS)
    buckets = [Bucket(edges[at], edges[at + 1], counts.get(at, 0)) for at in range(len(EDGES_MS))]
    return DensityReport("", 0, sum(counts.values()), 0, 0, 0, buckets)


def alert(text: str) -> Alert:
    return Alert("1", "late", "firing", "critical", "", 0, 0, {}, 1.0, 1.0, text, "")


@pytest.mark.parametrize("width", [80, 120])
def test_large_numbers_long_names_and_many_rows_fit(width: int) -> None:
    brokers = [
        BrokerState("b" * 40, "", "", "1", 0, 0, 0, 1.25e6, 98_765.4, 2_000_000_000, 1.5, 123_456.0, 7_200_000, 0.999)
        for _ in range(30)
    ]
    state = LiveState(brokers, density(b0=10**9, b85=1), [alert("x" * 300) for _ in range(20)])
    shown = lines(state, [GroupLag("g" * 300, 10**12) for _ in range(20)], width=width)
    assert max(map(len, shown)) <= width
    assert any("1.2M" in line and "98.8k" in line and "2.0G" in line and "7200.0 s" in line for line in shown)
    assert {"and 18 more brokers", "and 15 more groups", "and 14 more alerts"} <= set(map(str.strip, shown))


def test_each_column_of_the_density_is_relative_to_the_highest() -> None:
    shown = lines(LiveState([], density(b0=1, b10=1000), []), [])
    [row] = [line for line in shown if line.startswith("due in")]
    assert (row[8], row[9], row[18]) == ("▁", " ", "█") or (row[8], row[18]) == ("▂", "█")
    assert any(line.strip().startswith("1s") and line.rstrip().endswith("1d") for line in shown)


def test_names_of_others_cannot_write_to_the_terminal() -> None:
    broker = BrokerState("a\x1b[31m", "", "down\x07")
    shown = "\n".join(lines(LiveState([broker], density(), [alert("\x1b]0;title\x07")]), [GroupLag("\u202eabc", 1)]))
    assert not any(character in shown for character in "\x1b\x07\u202e")


def test_a_broker_that_does_not_answer_is_first_and_down() -> None:
    state = LiveState([BrokerState("a", ""), BrokerState("b", "", "no answer")], density(), [])
    rows = [line for line in lines(state, []) if line.startswith(("a ", "b "))]
    assert [row.split()[:2] for row in rows] == [["b", "down"], ["a", "0"]]


def test_trouble_is_shown_with_and_without_an_earlier_state() -> None:
    assert lines(None, [], "no name server answers")[1] == "no name server answers"
    assert lines(LiveState([], density(), []), [], "it is old")[1] == "it is old"
