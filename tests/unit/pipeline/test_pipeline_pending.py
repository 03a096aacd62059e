"""What waits, out of rows of the timeline and what brokers tell; and how long bodies are, out of records."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from latermq.errors import ConfigError, QueryNotFound
from latermq.message.record_writer import encode_record
from latermq.model.pipeline_state import PipelineState
from tests.support.faults.timer_histories import History, frame, is_cancelled_or_moved, random_history

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

V4, V6 = bytes([127, 0, 0, 1, 0, 0, 0, 1]), bytes(20)


def state_of(history: History, **changes: object) -> PipelineState:
    fields: dict[str, object] = {
        "store_id": history.store_id, "broker_name": "b", "epoch": 1, "ingest_offset": history.end, "min_entry": 0,
        "flushed_entry": history.end, "now_ms": 0, "done_upto": 0, "done_wake_ms": 0,
    }  # fmt: skip
    return PipelineState(**{**fields, **changes})  # type: ignore[arg-type]


def test_near_and_far_timers_of_all_brokers_wait_in_one_table(spark: "SparkSession") -> None:
    from latermq.pipeline.query.pending_timers import COLUMNS, pending_rows

    one, two = History("s"), History("t")
    near = one.send(100, "near")
    one.cut(200, 50)
    far = one.send(500, "far", body=b"12345")
    cancelled = one.send(500, "gone")
    one.cancel("gone")
    moved = one.send(600, "moved")
    new = one.move(700, "moved", moved)
    other = two.send(100, "near")
    rows = pending_rows(frame(spark, one.rows + two.rows), [state_of(one), state_of(two)])
    assert tuple(rows.columns) == COLUMNS
    found = {(row.store_id, row.entry_offset): row for row in rows.collect()}
    assert set(found) == {("s", near), ("s", far), ("s", new), ("t", other)}
    assert ("s", cancelled) not in found
    assert (found["s", far].body_bytes, found["s", far].due.timestamp()) == (5, 0.5)
    assert (found["s", near].body_bytes, found["s", near].record) == (None, None)
    assert (found["s", new].timer_id, found["s", new].due_ms) == (moved, 700)


def test_what_was_delivered_does_not_wait_any_more(spark: "SparkSession") -> None:
    from latermq.pipeline.query.pending_timers import pending_rows

    history = History()
    entries = [history.send(100 * number, f"k{number}") for number in range(1, 7)]
    state = state_of(history, done_upto=entries[3], done_wake_ms=250, done=[(entries[4], entries[4] + 1)])
    rows = pending_rows(frame(spark, history.rows), [state]).collect()
    assert sorted(row.entry_offset for row in rows) == [entries[2], entries[3], entries[5]]


def test_what_was_delivered_while_a_window_is_missing_does_not_wait_any_more(spark: "SparkSession") -> None:
    from latermq.pipeline.query.pending_timers import pending_rows

    history = History()
    near = [history.send(100 * number, f"n{number}") for number in range(1, 6)]
    history.cut(0, 0)
    far = [history.send(100 * number, f"f{number}") for number in range(1, 6)]
    state = state_of(
        history, done_upto=history.end, done_wake_ms=150, near_done_wake_ms=350, far_done=[(250, 350), (400, 401)]
    )
    rows = pending_rows(frame(spark, history.rows), [state]).collect()
    assert sorted(row.entry_offset for row in rows) == [*near[3:], far[1], far[4]]


@pytest.mark.parametrize("seed", range(3))
def test_of_any_history_each_surviving_timer_waits_once(spark: "SparkSession", seed: int) -> None:
    from latermq.pipeline.query.pending_timers import pending_rows

    history = random_history(seed)
    found = pending_rows(frame(spark, history.rows), [state_of(history)]).collect()
    alive = [row for row in history.rows if row["kind"] != "cancel" and not is_cancelled_or_moved(row, history.rows)]
    newest = {
        row["timer_id"]: max(r["entry_offset"] for r in alive if r["timer_id"] == row["timer_id"]) for row in alive
    }
    assert {row.timer_id: row.entry_offset for row in found} == newest
    assert len(found) == len(newest)


@pytest.mark.parametrize(("born", "stored", "flags"), [(V4, V4, 0), (V6, V4, 0x10), (V4, V6, 0x20), (V6, V6, 0x30)])
def test_the_length_of_a_body_is_read_from_any_record(
    spark: "SparkSession", born: bytes, stored: bytes, flags: int
) -> None:
    from latermq.pipeline.query.pending_timers import body_bytes

    record = encode_record(
        b"T", b"x" * 300, b"", queue_id=0, queue_offset=0, physical_offset=0, born_timestamp_ms=0, born_host=born,
        store_timestamp_ms=0, store_host=stored, sysflag=flags,
    )  # fmt: skip
    rows = spark.createDataFrame([(record,), (None,)], "record binary")
    assert [row[0] for row in rows.select(body_bytes(rows.record)).collect()] == [300, None]


def test_a_timeline_that_is_not_there_is_said_to_be_missing(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from latermq.pipeline import read_timeline

    with pytest.raises(QueryNotFound, match="no timeline at"):
        read_timeline(spark, str(tmp_path))
    monkeypatch.delenv("LATERMQ_PIPELINE_TIMELINE", raising=False)
    monkeypatch.setenv("NAMESRV_ADDR", "127.0.0.1:1")
    with pytest.raises(ConfigError, match="is not set: no name server answers"):
        read_timeline(spark)


def test_the_timeline_is_read_as_it_was(spark: "SparkSession", tmp_path: Path) -> None:
    from latermq.pipeline import read_timeline
    from latermq.pipeline.timeline.root import open_root
    from latermq.pipeline.timeline.timeline import append, create_timeline

    history = History()
    history.send(100, "a")
    root = open_root(str(tmp_path / "root"))
    create_timeline(spark, root)
    append(frame(spark, history.rows), root, "s", 0, 1, 0)
    history.send(200, "b")
    append(frame(spark, history.rows[1:]), root, "s", 1, 2, 0)
    assert read_timeline(spark, root).count() == 2
    assert [row.unique_key for row in read_timeline(spark, root, version=1).collect()] == ["a"]
    assert read_timeline(spark, root, version=0).count() == 0
    with pytest.raises(ConfigError, match="a version and a time"):
        read_timeline(spark, root, version=1, timestamp="2027-01-01")
