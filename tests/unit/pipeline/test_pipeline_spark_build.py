"""The window build on Spark: the same rows as without it, sorted parts, and nothing half-done when it fails."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from latermq.errors import ConfigError, CorruptStore, IllegalOperation, StoreError
from latermq.handover.window import Window
from latermq.pipeline.timeline.root import Root, open_root
from latermq.pipeline.windows.attempt_writer import write_attempt
from latermq.pipeline.windows.attempts import Attempt, attempts_of, check_attempt, find_attempt, read_rows
from latermq.pipeline.windows.local_build import build_locally
from tests.support.faults.timer_histories import (
    History,
    Key,
    append_rows,
    expected_rows,
    random_history,
    table_keys,
    write_timeline,
)
from tests.support.interpreted_queries import interpreted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(autouse=True)
def quick(spark: "SparkSession") -> Iterator[None]:
    with interpreted(spark):
        yield


def keys_of(root: Root, attempt: Attempt) -> list[Key]:
    check_attempt(root, attempt)
    groups = list(read_rows(root, attempt))
    return table_keys(pa.concat_tables(groups)) if groups else []


@pytest.fixture
def root(tmp_path: Path) -> Root:
    return open_root(str(tmp_path))


def test_spark_and_delta_rs_make_equal_attempts(spark: "SparkSession", root: Root, tmp_path: Path) -> None:
    from latermq.pipeline.windows.spark_build import build_window

    history = random_history(41, steps=400)
    write_timeline(root.timeline, [history, random_history(42, store_id="another")], history.end)
    append_rows(root.timeline, history.rows[::4], history.store_id, history.end)  # rows that are there twice
    no_table = open_root(str(tmp_path / "elsewhere"))
    fullest = sorted(history.windows, key=lambda window: -len(expected_rows(history.rows, window)))[:3]
    for window in fullest:
        by_spark = keys_of(root, build_window(spark, root, window, now_ms=1))
        local = keys_of(root, build_locally(root, history.state(history.end), window, history.pull, now_ms=2))
        tail_only = keys_of(no_table, build_locally(no_table, history.state(0), window, history.pull, now_ms=3))
        assert by_spark == local == tail_only == expected_rows(history.rows, window)
        assert by_spark


def test_small_windows_are_built_without_spark_and_large_ones_on_it(spark: "SparkSession", root: Root) -> None:
    from latermq.pipeline.timeline.local_timeline import open_local_timeline
    from latermq.pipeline.windows.spark_build import build_ready_windows

    history, other = History(), History("another")
    for one in (history, other):
        one.cut(10, 10)
        for at in range(100):
            one.send(1_000 + at, f"k{at}")
            one.send(5_000, f"l{at}")
    small = history.cut(1_010, 1_010)
    large = history.cut(1_100, 1_100)
    write_timeline(root.timeline, [history, other], history.end)
    timeline = open_local_timeline(root, "s")
    assert timeline is not None
    # 200 rows from 1,000 to 5,000 in a file.
    assert (timeline.estimated_rows(small), timeline.estimated_rows(large)) == (0, 4)
    assert timeline.estimated_rows(Window("nobody", 1, 0, 0, 9_000)) == 0
    built = build_ready_windows(spark, root, history.state(history.end), lambda *_: None, local_rows=3)
    by = {attempt.manifest.number: attempt for attempt in built}
    assert [by[window.number].manifest.made_by for window in (small, large)] == ["driver", "spark"]
    for window in (small, large):
        assert keys_of(root, by[window.number]) == expected_rows(history.rows, window)


def test_a_small_window_is_not_published_once_another_driver_has_begun(spark: "SparkSession", root: Root) -> None:
    from latermq.pipeline.windows.spark_build import build_ready_windows

    history = History()
    history.cut(10, 10)
    history.send(1_000, "far")
    window = history.cut(2_000, 2_000)
    write_timeline(root.timeline, [history], history.end)
    asked: list[int] = []

    def fence() -> None:
        asked.append(len(attempts_of(root, "s", window.number)))
        if len(asked) == 2:  # before the build, and before its attempt is published
            raise IllegalOperation("epoch 1 is over")

    state = history.state(history.end)
    state.windows = state.windows[1:]
    with pytest.raises(IllegalOperation):
        build_ready_windows(spark, root, state, lambda *_: None, local_rows=100, fence=fence)
    assert asked == [0, 0]
    assert list(Path(root.path, "windows", "s", str(window.number)).iterdir()) == []


def test_a_large_window_has_several_parts_in_order(spark: "SparkSession", root: Root) -> None:
    from latermq.pipeline.windows.spark_build import build_window

    history = History()
    history.cut(10, 10)
    for at in range(900):
        history.send(1_000 if at % 3 else 900 + at, f"k{at}")
    window = history.cut(5_000, 5_000)
    write_timeline(root.timeline, [history], history.end)
    attempt = build_window(spark, root, window, now_ms=1, part_rows=250)
    assert len(attempt.manifest.files) > 1
    assert [file.name for file in attempt.manifest.files][:2] == ["part-00000.parquet", "part-00001.parquet"]
    assert keys_of(root, attempt) == expected_rows(history.rows, window)
    assert attempt.manifest.made_by == "spark"
    assert attempt.name.startswith("spark-1-")


def test_row_groups_written_by_workers_are_bounded(spark: "SparkSession", root: Root) -> None:
    from latermq.pipeline.windows.spark_build import build_window

    history = History()
    history.cut(10, 10)
    for at in range(12):
        history.send(1_000, f"k{at}", body=bytes(3 << 20))
    window = history.cut(5_000, 5_000)
    write_timeline(root.timeline, [history], history.end)
    attempt = build_window(spark, root, window, now_ms=1)
    (file,) = attempt.manifest.files
    metadata = pq.read_metadata(Path(root.path, "windows", "s", str(window.number), attempt.name, file.name))
    assert [metadata.row_group(at).num_rows for at in range(metadata.num_row_groups)] == [2] * 6


def test_windows_that_ingest_has_passed_get_one_attempt_each_that_is_reported_to_the_broker(
    spark: "SparkSession", root: Root
) -> None:
    from latermq.pipeline.windows.spark_build import build_ready_windows

    history = History()
    passed = history.cut(10, 10)
    history.send(1_000, "far")
    ready = history.cut(2_000, 2_000)
    history.send(3_000, "later")
    not_yet = history.cut(4_000, 4_000)
    ingested = ready.cut_entry + 1
    write_timeline(root.timeline, [history], ingested)
    state = history.state(ingested)
    state.windows[0].attempt = "local-1-x"  # is played already
    reported: list[tuple[int, str]] = []
    (made,) = build_ready_windows(spark, root, state, lambda *one: reported.append(one))
    assert reported == [(ready.number, made.name)]
    assert find_attempt(root, not_yet) is None
    assert attempts_of(root, "s", passed.number) == []
    assert build_ready_windows(spark, root, state, lambda *one: reported.append(one)) == []
    assert reported == [(ready.number, made.name)] * 2


def test_a_window_is_not_built_from_a_table_that_lacks_entries(spark: "SparkSession", root: Root) -> None:
    from latermq.pipeline.windows.spark_build import build_window

    history = random_history(2)
    window = history.windows[-1]
    with pytest.raises(CorruptStore, match="ends at entry 0 of store"):
        build_window(spark, root, window, now_ms=1)
    write_timeline(root.timeline, [history], window.cut_entry - 1)
    with pytest.raises(CorruptStore, match=f"window {window.number} needs all entries below {window.cut_entry}"):
        build_window(spark, root, window, now_ms=1)


def test_a_build_during_which_another_driver_begins_leaves_no_attempt(spark: "SparkSession", root: Root) -> None:
    from latermq.pipeline.windows.spark_build import build_ready_windows, build_window

    history = random_history(2)
    write_timeline(root.timeline, [history], history.end)
    window = history.windows[-1]

    def fence() -> None:
        raise IllegalOperation("epoch 1 is over")

    with pytest.raises(IllegalOperation):
        build_window(spark, root, window, now_ms=1, fence=fence)
    assert list(Path(root.path, "windows", "s", str(window.number)).iterdir()) == []
    reported: list[tuple[int, str]] = []
    with pytest.raises(IllegalOperation):
        build_ready_windows(spark, root, history.state(history.end), lambda *one: reported.append(one), fence=fence)
    assert reported == []


def test_a_failed_window_does_not_stop_later_windows(
    spark: "SparkSession", root: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    from latermq.pipeline.windows import spark_build

    history = random_history(2)
    first, second = history.windows[:2]
    in_the_way = Path(root.path, "windows", "s", str(first.number))
    in_the_way.parent.mkdir(parents=True)
    in_the_way.write_bytes(b"")

    def build_window(spark: object, root: Root, window: Window, **options: object) -> Attempt:
        if window.number == second.number:
            raise CorruptStore("its rows make no sense")
        return write_attempt(root, window, [], made_by="spark", table_version=1, ingest_offset=1, now_ms=1)

    monkeypatch.setattr(spark_build, "build_window", build_window)
    reported: list[int] = []
    with pytest.raises(StoreError, match=f"/{first.number}"):
        spark_build.build_ready_windows(
            spark, root, history.state(history.end), lambda number, name: reported.append(number)
        )
    assert reported == [window.number for window in history.windows[2:]]


def test_no_window_is_built_from_a_timeline_of_another_schema_version(spark: "SparkSession", root: Root) -> None:
    from latermq.pipeline.windows.spark_build import build_window

    history = random_history(2)
    write_timeline(root.timeline, [history], history.end, version="3")
    with pytest.raises(ConfigError, match="has schema version 3"):
        build_window(spark, root, history.windows[-1], now_ms=1)


def test_a_damaged_file_of_the_timeline_is_reported_in_a_sentence(spark: "SparkSession", root: Root) -> None:
    from latermq.pipeline.windows.spark_build import build_window

    history = random_history(2)
    write_timeline(root.timeline, [history], history.end)
    for path in Path(root.timeline).glob("*.parquet"):
        path.write_bytes(bytes(path.stat().st_size))
    window = history.windows[-1]
    with pytest.raises(CorruptStore, match="the timeline is damaged") as caught:
        build_window(spark, root, window, now_ms=1)
    assert "\n" not in caught.value.remark
    assert list(Path(root.path, "windows", "s", str(window.number)).iterdir()) == []


def test_a_worker_that_cannot_write_is_reported_in_a_sentence(spark: "SparkSession", root: Root) -> None:
    from latermq.pipeline.spark.spark_failures import spark_errors
    from latermq.pipeline.windows.spark_build import write_parts
    from latermq.pipeline.windows.survivors import window_rows, window_shape

    history = random_history(2)
    write_timeline(root.timeline, [history], history.end)
    timeline = spark.read.format("delta").load(root.timeline)
    rows = window_rows(timeline, history.windows[-1], window_shape(timeline, history.windows[-1], 1_000))
    with pytest.raises(StoreError, match="the build failed: window") as caught, spark_errors("the build"):
        write_parts(rows, root.uri, history.windows[-1], "no-such-folder")
    assert "\n" not in caught.value.remark
