"""Timers minus what cancels and moves took, as transforms of small frames."""

from collections.abc import Iterator
from random import Random
from typing import TYPE_CHECKING

import pytest

from latermq.handover.window import Window
from tests.support.faults.timer_histories import (
    History,
    Row,
    expected_rows,
    frame,
    is_cancelled_or_moved,
    random_history,
)
from tests.support.interpreted_queries import interpreted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture(autouse=True)
def quick(spark: "SparkSession") -> Iterator[None]:
    with interpreted(spark):
        yield


def entries(found: "DataFrame") -> list[int]:
    return [row.entry_offset for row in found.select("entry_offset").collect()]


def expected_pending(rows: list[Row]) -> set[tuple[str, int]]:
    newest: dict[tuple[str, int], int] = {}
    for row in rows:
        if row["kind"] != "cancel" and not is_cancelled_or_moved(row, rows):
            identity = (row["store_id"], row["timer_id"])
            newest[identity] = max(newest.get(identity, -1), row["entry_offset"])
    return {(store_id, entry) for (store_id, _), entry in newest.items()}


def test_a_cancel_takes_every_earlier_entry_of_its_name_and_no_later_one(spark: "SparkSession") -> None:
    from latermq.pipeline.windows.survivors import surviving_rows

    history = History()
    history.send(100, "a")
    history.send(200, "a")
    other_topic = history.send(100, "a", "U")
    history.cancel("a")
    later = history.send(300, "a")
    assert sorted(entries(surviving_rows(frame(spark, history.rows)))) == [other_topic, later]


def test_a_move_takes_what_was_before_it_and_stays_itself(spark: "SparkSession") -> None:
    from latermq.pipeline.windows.survivors import surviving_rows

    history = History()
    first = history.send(100, "a")
    history.move(500, "a", first)
    last = history.move(300, "a", first)
    assert entries(surviving_rows(frame(spark, history.rows))) == [last]


def test_a_cancel_of_another_store_takes_nothing(spark: "SparkSession") -> None:
    from latermq.pipeline.windows.survivors import surviving_rows

    history, other = History("s"), History("t")
    kept = history.send(100, "a")
    other.send(100, "b")
    other.cancel("a")
    found = surviving_rows(frame(spark, history.rows + other.rows)).where("store_id = 's'")
    assert entries(found) == [kept]


def test_what_stands_behind_the_cut_takes_nothing_before_it(spark: "SparkSession") -> None:
    from latermq.pipeline.windows.survivors import surviving_rows

    history = History()
    kept = history.send(100, "a")
    cut = history.cut(50, 40)
    history.cancel("a")
    history.send(100, "b")
    timeline = frame(spark, history.rows)
    assert entries(surviving_rows(timeline, cut.cut_entry)) == [kept]
    assert entries(surviving_rows(timeline)) == [3]


def test_only_the_newest_entry_of_a_renewed_timer_survives(spark: "SparkSession") -> None:
    from latermq.pipeline.windows.survivors import surviving_rows

    history = History()
    first = history.send(100, "a")
    renewal = history.send(100, "a", timer_id=first)
    assert entries(surviving_rows(frame(spark, history.rows))) == [renewal]


MANY = 1 << 40


@pytest.mark.parametrize(("seed", "part_rows", "many"), [(21, 1_000, False), (22, 10, True), (23, 10, False)])
def test_window_rows_are_what_the_definition_says(spark: "SparkSession", seed: int, part_rows: int, many: bool) -> None:
    from latermq.pipeline.windows.survivors import TakerCounts, window_rows, window_shape

    history = random_history(seed, steps=150)
    rows = history.rows + random_history(seed + 1, store_id="another").rows
    doubled = rows + Random(seed).sample(rows, len(rows) // 3)
    timeline = frame(spark, doubled).cache()
    for window in history.windows[-2:]:
        shape = window_shape(timeline, window, part_rows)
        if many:
            shape = shape._replace(takers=TakerCounts(MANY, MANY, MANY))
        found = [
            (row.due_ms, row.entry_offset, row.timer_id, bytes(row.record))
            for row in window_rows(timeline, window, shape).collect()
        ]
        # A row that is there twice comes twice, one behind the other; whoever writes them leaves it out.
        assert list(dict.fromkeys(found)) == expected_rows(rows, window)
        assert found == sorted(found, key=lambda row: (row[0], row[2]))
    timeline.unpersist()


def test_a_window_is_counted_before_it_is_read(spark: "SparkSession") -> None:
    from latermq.pipeline.windows.survivors import window_shape

    history, other = History(), History("another")
    history.cut(10, 10)
    for at in range(20):
        history.send(1_000 + at, f"k{at}")
    before = history.cut(2_000, 2_000)
    history.send(1_001, "k1", timer_id=2)
    history.cancel("k2")
    history.is_placing = False
    history.cancel("k3")
    history.cancel("k4")
    after = history.cut(5_000, 5_000)
    other.cancel("k3")
    timeline = frame(spark, history.rows + other.rows)
    assert window_shape(timeline, before, 100) == ([], (0, 0, 0))
    whole = Window("s", 2, after.cut_entry, 10, 5_000)
    shape = window_shape(timeline, whole, 7)
    assert shape.takers == (1, 1, 2)
    assert len(shape.bounds_ms) == 2
    assert all(1_000 < bound_ms < 1_020 for bound_ms in shape.bounds_ms)


def test_the_rows_of_a_window_are_sorted_once_and_cross_no_exchange_with_their_records(spark: "SparkSession") -> None:
    from latermq.pipeline.windows.survivors import (
        MAX_BROADCAST_ROWS,
        TakerCounts,
        WindowShape,
        window_rows,
    )

    history = random_history(3)
    timeline, window = frame(spark, history.rows), history.windows[-1]
    plain = window_rows(timeline, window, WindowShape([], TakerCounts(0, 0, 0)))
    assert "Exchange" not in plan_of(plain)
    most = TakerCounts(*[MAX_BROADCAST_ROWS] * 3)
    full = plan_of(window_rows(timeline, window, WindowShape([], most)))
    assert full.count("Sort [due_ms") == 1, full
    assert full.count("BroadcastExchange") == 3
    assert "hashpartitioning" not in full
    more = plan_of(window_rows(timeline, window, WindowShape([], most._replace(placed=MAX_BROADCAST_ROWS + 1))))
    assert more.count("BroadcastExchange") == 2, more


def plan_of(rows: "DataFrame") -> str:
    plan: str = rows._jdf.queryExecution().executedPlan().toString()
    return plan


def test_pending_is_near_and_far_without_what_is_taken_or_delivered(spark: "SparkSession") -> None:
    from latermq.pipeline.windows.survivors import pending

    history = History()
    delivered = history.send(100, "delivered")
    waiting = history.send(900, "waiting")
    history.cut(500, 400)
    far = history.send(2_000, "far")
    in_a_range = history.send(450, "delivered too")
    history.cancel("none")
    first = history.send(800, "renewal")
    renewal = history.send(800, "renewal", timer_id=first)
    fresh = history.send(150, "late but not delivered")
    state = history.state(history.end, done_upto=fresh, done_wake_ms=200)
    state.done = [(in_a_range, in_a_range + 1), (first, first + 1)]
    found = pending(frame(spark, history.rows), [state])
    assert sorted(entries(found)) == [waiting, far, renewal, fresh]
    assert delivered not in entries(found)


def test_pending_of_a_random_history_is_what_its_definition_says(spark: "SparkSession") -> None:
    from latermq.pipeline.windows.survivors import pending

    history, other = random_history(31, steps=200), random_history(32, store_id="other")
    rows = history.rows + other.rows
    states = [history.state(0), other.state(0)]
    states[0].done = [(0, 30), (65_530, 65_540), (70, 71)]
    found = {(row.store_id, row.entry_offset) for row in pending(frame(spark, rows), states).collect()}
    done = {("s", entry) for entry in (*range(30), 70)}
    assert found == expected_pending(rows) - done
    assert {row.store_id for row in pending(frame(spark, rows), states[1:]).collect()} == {"other"}


def test_ranges_of_delivered_entries_may_be_long_and_many(spark: "SparkSession") -> None:
    from latermq.pipeline.windows.survivors import without_delivered

    history = History()
    state = history.state(0)
    state.done = [(10, 200_000), *((at, at + 1) for at in range(200_001, 201_000, 2))]
    rows = spark.range(0, 201_000, 1, 1).selectExpr("'s' AS store_id", "id AS entry_offset", "id AS due_ms")
    assert sorted(entries(without_delivered(rows, [state]))) == [*range(10), *range(200_000, 201_000, 2)]
