"""The fate of timers, their lateness and the forecast, on small frames; and the page that shows it."""

import datetime
from collections.abc import Sequence
from html.parser import HTMLParser
from typing import TYPE_CHECKING

from latermq.pipeline.report.report_plots import largest_series, nice_top
from tests.support.faults.timer_histories import History, frame

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

HOUR_MS = 3_600_000
DELIVERIES = (
    "store_id string, entry_offset bigint, timer_id bigint, topic string, due_ms bigint, store_ms bigint, dead boolean"
)


def deliveries(spark: "SparkSession", rows: Sequence[tuple[object, ...]]) -> "DataFrame":
    """(entry, timer id, due, stored, dead) of store s and topic T."""
    return spark.createDataFrame([("s", row[0], row[1], "T", *row[2:]) for row in rows], DELIVERIES)


def test_every_timer_of_a_range_has_one_fate(spark: "SparkSession") -> None:
    from latermq.pipeline.report.reconciliation import fates, fates_by_topic

    history = History()
    delivered = history.send(100, "delivered")
    dead = history.send(110, "dead")
    cancelled = history.send(120, "cancelled")
    history.cancel("cancelled")
    moved = history.send(130, "moved")
    again = history.move(900, "moved", moved)
    rolled = history.send(140, "rolled")
    roll = history.send(140, "rolled", timer_id=rolled)
    missing = history.send(150, "missing")
    late_cancel = history.send(160, "late")  # delivered before its cancel came
    history.cancel("late")
    old = history.send(50, "old")
    history.send(1000, "outside")
    stored = [(delivered, delivered, 100, 101, False), (dead, dead, 110, 111, True), (roll, rolled, 140, 150, False),
              (late_cancel, late_cancel, 160, 161, False)]  # fmt: skip
    found = fates(frame(spark, history.rows), deliveries(spark, stored), 0, 900, kept_from_ms=60)
    assert {row.entry_offset: row.fate for row in found.collect()} == {
        delivered: "delivered", dead: "dead letter", cancelled: "cancelled", moved: "moved", rolled: "rolled",
        roll: "delivered", missing: "missing", late_cancel: "delivered", old: "not kept",
    }  # fmt: skip
    assert again not in {row.entry_offset for row in found.collect()}
    assert {row.fate: row.timers for row in fates_by_topic(found).collect()} == {
        "delivered": 3, "dead letter": 1, "cancelled": 1, "moved": 1, "missing": 1, "not kept": 1,
    }  # fmt: skip


def test_topics_beyond_the_limit_become_one_and_no_timer_is_uncounted(spark: "SparkSession") -> None:
    from latermq.pipeline.report.reconciliation import merge_small_topics

    rows = spark.createDataFrame([(f"T{n}", n % 2, 10 * n) for n in range(1, 7)], "topic string, span int, timers int")
    assert merge_small_topics(rows, 6).collect() == rows.collect()
    merged = merge_small_topics(rows, 3)
    assert sorted({row.topic for row in merged.collect()}) == ["T5", "T6", "others"]
    assert {row.span: row["sum(timers)"] for row in merged.groupBy("span").sum("timers").collect()} == {0: 120, 1: 90}
    assert largest_series({"others": 100, "T6": 60, "T5": 50}) == ["T6", "T5", "others"]


def test_a_dead_letter_that_no_longer_tells_its_due_time_counts_as_delivered(spark: "SparkSession") -> None:
    from latermq.pipeline.report.deliveries import due_in_or_unknown
    from latermq.pipeline.report.reconciliation import fates

    history = History()
    unreadable = history.send(100, "unreadable")
    letters = deliveries(spark, [(unreadable, unreadable, None, 101, True), (7, 7, 5_000, 5_001, True)])
    kept = due_in_or_unknown(letters, 0, 1_000)
    assert [row.entry_offset for row in kept.collect()] == [unreadable]
    (found,) = fates(frame(spark, history.rows), kept, 0, 1_000).collect()
    assert found.fate == "dead letter"


def test_deliveries_that_are_early_or_come_twice_are_found(spark: "SparkSession") -> None:
    from latermq.pipeline.report.reconciliation import doubled, early

    rows = deliveries(
        spark, [(1, 1, 100, 99, False), (2, 2, 100, 100, False), (3, 3, 100, 100, False), (9, 3, 100, 120, False)]
    )
    assert [row.entry_offset for row in early(rows).collect()] == [1]
    assert [(row.timer_id, row.times) for row in doubled(rows).collect()] == [(3, 2)]


def test_lateness_is_told_by_topic_and_hour(spark: "SparkSession") -> None:
    from latermq.pipeline.report.reconciliation import lateness

    rows = [(n, n, 1_000, 1_000 + n, False) for n in range(101)] + [(500, 500, HOUR_MS, HOUR_MS - 5, False)]
    first, second = lateness(deliveries(spark, [*rows, (600, 600, 5, 9_999, True)])).collect()
    assert (first.topic, first.timers, first.p50_ms, first.p99_ms, first.max_ms, first.early) == (
        "T",
        101,
        50,
        99,
        100,
        0,
    )
    assert (second.timers, second.max_ms, second.early) == (1, -5, 1)
    assert second.hour - first.hour == datetime.timedelta(hours=1)


def test_what_is_to_come_is_counted_by_the_second(spark: "SparkSession") -> None:
    from latermq.pipeline.report.reconciliation import forecast, load_over_time, worst_seconds

    waiting = spark.createDataFrame(
        [("A", 1_000), ("A", 1_999), ("B", 1_500), ("A", 2_000), ("A", 61_000)], "topic string, due_ms bigint"
    )
    expected = forecast(waiting)
    worst = worst_seconds(expected, 2).collect()
    assert [(row.second.timestamp(), row.timers, row.most_of, row.topics) for row in worst] == [
        (1, 3, "A", 2),
        (2, 1, "A", 1),
    ]
    spans = load_over_time(expected, 1, 60).orderBy("bucket", "topic").collect()
    assert [(row.bucket, row.topic, row.timers, row.busiest) for row in spans] == [
        (0, "A", 3, 2),
        (0, "B", 1, 1),
        (1, "A", 1, 1),
    ]


def test_axes_end_at_round_numbers_and_small_topics_share_a_colour() -> None:
    assert [nice_top(value) for value in (0, 1, 3, 23, 99, 101, 0.3)] == [1, 1, 5, 25, 100, 200, 0.5]
    assert largest_series({"a": 1, "b": 5}) == ["b", "a"]
    assert largest_series({f"t{n}": n for n in range(20)})[-2:] == ["t13", "others"]


def test_the_page_needs_nothing_else_and_escapes_what_it_shows() -> None:
    from latermq.pipeline.report.report import Report
    from latermq.pipeline.report.report_page import render_page

    evil = "<script>alert(1)</script>"
    hour = datetime.datetime(2027, 1, 1, tzinfo=datetime.UTC)
    report = Report(
        "r", 0, 1_000, 2_000, "/root", waiting=7, fates={evil: {"delivered": 3, "missing": 1}}, early=0, doubled=2,
        missing=[{"due_ms": 5, "topic": evil, "unique_key": "u", "keys": None, "store_id": "s", "entry_offset": 4}],
        lateness=[{"hour": hour, "topic": evil, "timers": 3, "p50_ms": 1.0, "p99_ms": 2.0, "max_ms": 3, "early": 0}],
        worst=[{"second": hour, "timers": 7, "topics": 1, "most_of": evil}],
        span_s=60, spans_from_s=0, spans=[{"bucket": 2, "topic": evil, "timers": 7, "busiest": 7}],
    )  # fmt: skip
    page = render_page(report)
    tags = _Tags()
    tags.feed(page)
    assert not {"script", "link", "img", "iframe"} & tags.seen
    assert {"svg", "rect", "polyline", "table"} <= tags.seen
    assert not [value for value in tags.addresses if not value.startswith("#")]
    assert not report.is_clean
    assert '<div id="missing" class=bad><b>1</b>' in page
    assert '<div id="delivered"><b>3</b>' in page
    assert evil not in page


class _Tags(HTMLParser):
    """Which elements a page has, and what it points to."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href")]
