"""Plans of bulk jobs out of small frames, files as rows of timers, and how a plan is played."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from latermq.errors import ConfigError, InvalidParameter, StoreError
from latermq.pipeline.bulk.bulk_job import check_same_order
from latermq.pipeline.bulk.plan_runner import changes_of, run_plan
from latermq.pipeline.bulk.plan_steps import Step, steps_of
from latermq.pipeline.timeline.root import open_root
from latermq.protocol.remoting.codes import Request
from tests.support.faults.timer_histories import History, frame
from tests.unit.pipeline.test_pipeline_pending import state_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

HOUR_MS = 3_600_000


@pytest.fixture(scope="module")
def waiting(spark: "SparkSession") -> "DataFrame":
    """Six timers of two topics, two of them of one name, far and near."""
    from latermq.pipeline.query.pending_timers import pending_rows

    history = History()
    history.send(1 * HOUR_MS, "near", "A")
    history.cut(2 * HOUR_MS, 0)
    for number in range(3, 6):
        history.send(number * HOUR_MS, f"k{number}", "A")
    history.send(9 * HOUR_MS, "twin", "B")
    history.send(8 * HOUR_MS, "twin", "B")
    return pending_rows(frame(spark, history.rows), [state_of(history)]).cache()


def plan(waiting: "DataFrame", action: str, where: str, **times: int) -> list[tuple[Any, ...]]:
    from latermq.pipeline.bulk.bulk import BulkAction, plan_rows

    rows = plan_rows(waiting, BulkAction(action, where, **times), {"s": 99}).collect()  # type: ignore[arg-type]
    return [(row.topic, row.unique_key, row.timers, row.new_due_ms) for row in rows]


def test_a_plan_names_what_the_predicate_holds_for_the_next_due_first(waiting: "DataFrame") -> None:
    assert plan(waiting, "cancel", "topic = 'A' AND due_ms <= 4 * 3600000") == [
        ("A", "near", 1, None), ("A", "k3", 1, None), ("A", "k4", 1, None),
    ]  # fmt: skip
    assert plan(waiting, "cancel", "due > timestamp_millis(18000000)") == [("B", "twin", 2, None)]
    assert plan(waiting, "cancel", "FALSE") == []


def test_timers_of_one_name_are_moved_together(waiting: "DataFrame") -> None:
    assert plan(waiting, "move", "topic = 'B'", by_ms=HOUR_MS) == [("B", "twin", 2, 9 * HOUR_MS)]
    assert plan(waiting, "move", "unique_key = 'k3'", by_ms=-9 * HOUR_MS) == [("A", "k3", 1, 0)]
    assert plan(waiting, "move", "unique_key = 'k3'", to_ms=7) == [("A", "k3", 1, 7)]


@pytest.mark.parametrize("where", ["colour = 'red'", "topic ==", "due_ms"])
def test_a_predicate_that_spark_does_not_understand_is_told_in_a_line(waiting: "DataFrame", where: str) -> None:
    with pytest.raises(ConfigError, match=r"Spark rejects the SQL: \[") as caught:
        plan(waiting, "cancel", where)
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    ("action", "where", "times"),
    [
        ("cancel", " ", {}),
        ("move", "TRUE", {}),
        ("move", "TRUE", {"by_ms": 1, "to_ms": 1}),
        ("cancel", "TRUE", {"by_ms": 1}),
    ],
)
def test_an_order_that_says_too_little_or_too_much_is_refused(action: str, where: str, times: dict[str, int]) -> None:
    from latermq.pipeline.bulk.bulk import BulkAction

    with pytest.raises(ConfigError):
        BulkAction(action, where, **times)  # type: ignore[arg-type]


def test_a_job_goes_on_only_as_it_was_begun() -> None:
    check_same_order({"where": "a"}, {"where": "a"}, "j")
    with pytest.raises(InvalidParameter, match=r'job j was started as \{"where":"a"\}'):
        check_same_order({"where": "a"}, {"where": "b"}, "j")


def test_a_step_is_a_cancel_or_a_move() -> None:
    named = {"topic": "T", "uniqueKey": "u"}
    planned = {"timerIds": "1,4", "scheduledBefore": "9"}
    assert Step("s", 1, "T", "u", None, (1, 4), 9).request() == (Request.CANCEL_TIMER, {**named, **planned})
    assert Step("s", 1, "T", "u", 5, (1, 4), 9).request() == (Request.MOVE_TIMER, {**named, **planned, "dueMs": "5"})


def test_a_plan_of_an_older_version_acts_where_its_one_timer_is_alone() -> None:
    older = pa.table({"store_id": ["s"], "timer_id": [7], "topic": ["T"], "unique_key": ["u"], "due_ms": [1],
                      "timers": [1], "new_due_ms": pa.array([None], pa.int64())})  # fmt: skip
    (step,) = steps_of(older)
    assert step.request() == (Request.CANCEL_TIMER, {"topic": "T", "uniqueKey": "u", "timerIds": "7"})
    changes = changes_of(older)
    assert (changes.topics, changes.unique_keys.values(), changes.timer_ids(0)) == (["T"], [b"u"], frozenset([7]))
    assert (changes.due_ms.tolist(), changes.seen_before.tolist()) == ([-1], [-1])


def test_a_plan_lists_its_timers_and_where_looking_for_them_ended(waiting: "DataFrame") -> None:
    from latermq.pipeline.bulk.bulk import BulkAction, plan_rows

    (row,) = plan_rows(waiting, BulkAction("cancel", "unique_key = 'twin'"), {"other": 1, "s": 99}).collect()
    assert (row.timer_ids, row.timer_id, row.scheduled_before) == ([5, 6], 5, 99)


def test_a_plan_lists_so_many_timers_of_a_name_at_most(waiting: "DataFrame", monkeypatch: pytest.MonkeyPatch) -> None:
    from latermq.pipeline.bulk import bulk

    monkeypatch.setattr(bulk, "MAX_IDS", 1)
    (row,) = bulk.plan_rows(waiting, bulk.BulkAction("cancel", "unique_key = 'twin'"), {"s": 99}).collect()
    assert (row.timer_ids, row.timers) == ([5], 2)


def test_a_plan_whose_broker_is_away_is_not_begun(
    spark: "SparkSession", waiting: "DataFrame", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from latermq.pipeline.bulk import plan_runner
    from latermq.pipeline.bulk.bulk import BulkAction, plan_rows

    root = open_root(str(tmp_path))
    plan_rows(waiting, BulkAction("cancel", "TRUE"), {"s": 99}).write.parquet(root.at("bulk", "j", "plan"))
    monkeypatch.setattr(plan_runner, "addresses_by_store", lambda namesrv: {"another": "127.0.0.1:1"})
    with pytest.raises(StoreError, match="the broker of store s is unreachable"):
        run_plan(root, "j", 5, "127.0.0.1:1", lambda done: None, lambda rows: None)


def test_files_become_rows_of_timers_under_names_of_their_own(spark: "SparkSession", tmp_path: Path) -> None:
    from latermq.pipeline.bulk.schedule_files import read_source, timer_rows

    file = tmp_path / "rows.csv"
    file.write_text(
        'id,due,colour,properties\n7,2027-01-01T00:00:00Z,red,"{""a"": ""b""}"\n8,never,blue,\n9,never,blue,no map\n'
    )
    rows = timer_rows(read_source(spark, str(file)), {"key": "id", "body": "upper(colour)"})
    assert sorted(rows.columns) == ["body", "due", "key", "properties"]
    first, second, third = rows.collect()
    assert (first.key, first.body, first.properties) == ("7", "RED", {"a": "b"})
    assert first.due.timestamp() == 1_798_761_600
    assert (second.due, second.properties) == (None, None)
    assert third.properties == {"": "no map"}  # which is refused with its row


def test_what_cannot_be_read_or_mapped_is_said(spark: "SparkSession", tmp_path: Path) -> None:
    from latermq.pipeline.bulk.schedule_files import format_of, read_source, timer_rows

    rows = spark.range(1)
    with pytest.raises(ConfigError, match="unknown column: colour"):
        timer_rows(rows, {"colour": "id"})
    with pytest.raises(ConfigError, match="no column matches: the source has id"):
        timer_rows(rows, {})
    with pytest.raises(ConfigError, match="Spark rejects the SQL"):
        timer_rows(rows, {"key": "nothing"})
    with pytest.raises(ConfigError, match="there is no file"):
        read_source(spark, str(tmp_path / "no.parquet"))
    with pytest.raises(ConfigError, match="Spark rejects the SQL"):
        read_source(spark, "no_such_table")
    (tmp_path / "rows.xlsx").touch()
    with pytest.raises(ConfigError, match=r"the format of .* is unknown"):
        format_of(str(tmp_path / "rows.xlsx"))
    (tmp_path / "table" / "_delta_log").mkdir(parents=True)
    assert format_of(str(tmp_path / "table")) == "delta"
