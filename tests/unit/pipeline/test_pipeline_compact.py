"""Compaction: bounded files, nothing deleted that anybody needs, and everything deleted is in the archive once."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from latermq.errors import IllegalOperation
from latermq.pipeline.timeline.root import Root, open_root
from latermq.pipeline.timeline.table_sync import newest_version
from latermq.pipeline.windows.attempt_writer import write_attempt
from latermq.pipeline.windows.attempts import windows_of
from tests.support.faults.timer_histories import History, expected_rows, frame, random_history
from tests.support.interpreted_queries import interpreted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DAY_MS = 86_400_000
KEEP_MS = 7 * DAY_MS


@pytest.fixture(autouse=True)
def quick(spark: "SparkSession") -> Iterator[None]:
    with interpreted(spark):
        yield


@pytest.fixture
def root(tmp_path: Path) -> Root:
    return open_root(str(tmp_path))


def ingest(spark: "SparkSession", root: Root, history: History, appends: int = 1) -> None:
    """The timeline as the pipeline makes it, filled in so many appends."""
    from latermq.pipeline.timeline.timeline import append, create_timeline

    create_timeline(spark, root)
    step = -(-history.end // appends)
    for start in range(0, history.end, step):
        end = min(start + step, history.end)
        rows = [row for row in history.rows if start <= row["entry_offset"] < end]
        append(frame(spark, rows).coalesce(1), root, history.store_id, start, end, 0)


def entries(spark: "SparkSession", address: str, store_id: str = "s") -> list[int]:
    table = spark.read.format("delta").load(address).where(f"store_id = '{store_id}'")
    return sorted(row.entry_offset for row in table.select("entry_offset").collect())


def test_what_is_a_week_behind_goes_to_the_archive_and_nothing_else(spark: "SparkSession", root: Root) -> None:
    from latermq.pipeline.timeline.archive import archive_old_rows
    from latermq.pipeline.timeline.compact import compact

    history, other = History("s"), History("other")
    history.cut(0, 0)
    old = history.send(10, "old")
    cancelled = history.send(20, "cancelled")
    cancel = history.cancel("cancelled", due_ms=20)
    recent = history.send(8 * DAY_MS, "recent")
    beyond = history.send(30, "beyond what is known to be delivered")
    other.send(10, "old too")
    ingest(spark, root, history)
    ingest(spark, root, other)
    state = history.state(history.end, done_upto=beyond, done_wake_ms=9 * DAY_MS)
    state.windows = []
    done = compact(spark, root, [state], keep_ms=KEEP_MS)
    assert (done.archived, done.deleted) == (3, 3)
    assert entries(spark, root.timeline) == [recent, beyond]
    assert entries(spark, root.timeline, "other") == [0]
    assert entries(spark, root.archive) == [old, cancelled, cancel]
    assert "record" not in spark.read.format("delta").load(root.archive).columns
    assert archive_old_rows(spark, root, [state], keep_ms=KEEP_MS) == (0, 0)


def test_a_taker_leaves_together_with_what_it_ends_and_not_before(spark: "SparkSession", root: Root) -> None:
    from latermq.pipeline.timeline.archive import archive_old_rows
    from latermq.pipeline.windows.survivors import surviving_rows

    history = History()
    history.cut(0, 0)
    first = history.send(400 * DAY_MS, "moved")
    move = history.move(10, "moved", first)
    gone = history.send(20, "gone")
    cancel = history.cancel("gone")
    again = history.send(400 * DAY_MS, "moved")
    ingest(spark, root, history)
    state = history.state(history.end, done_upto=history.end, done_wake_ms=9 * DAY_MS)
    assert archive_old_rows(spark, root, [state], keep_ms=KEEP_MS) == (3, 3)
    assert entries(spark, root.timeline) == [first, move, again]  # the move as a taker of the first timer
    assert entries(spark, root.archive) == [move, gone, cancel]
    found = surviving_rows(spark.read.format("delta").load(root.timeline))
    assert [row.entry_offset for row in found.collect()] == [again]


@pytest.mark.parametrize("limit", [0, 500_000])
def test_unplaced_takers_get_the_due_times_of_what_they_end(
    spark: "SparkSession", root: Root, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    """Also where there are more of them than every task may get a copy of."""
    from latermq.pipeline.timeline import compact
    from latermq.pipeline.timeline.compact import place_takers
    from latermq.pipeline.timeline.local_timeline import open_local_timeline

    monkeypatch.setattr(compact, "MAX_BROADCAST_ROWS", limit)
    history, other = History(is_placing=False), History("other", is_placing=False)
    history.cut(0, 0)
    first = history.send(100, "a")
    history.send(200, "a")
    history.send(200, "a")
    cancel = history.cancel("a")
    history.send(300, "a")
    history.cancel("nobody")
    moved = history.send(400, "m")
    move = history.move(500, "m", moved)
    other.send(100, "a")
    other.cancel("b")
    ingest(spark, root, history)
    ingest(spark, root, other)
    before = spark.read.format("delta").load(root.timeline).where("taker = 0").count()
    assert place_takers(spark, root) == 4
    table = spark.read.format("delta").load(root.timeline)
    takers = {(row.entry_offset, row.kind, row.due_ms, row.store_id) for row in table.where("taker = 1").collect()}
    assert takers == {(cancel, "cancel", 100, "s"), (cancel, "cancel", 200, "s"), (move, "move", 400, "s")}
    assert table.where("taker = 0").count() == before
    assert table.where("taker = 1 AND due <> timestamp_millis(due_ms)").isEmpty()
    local = open_local_timeline(root, "s")
    assert local is not None
    assert (local.unplaced_takers(), local.ingested) == (0, history.end)
    assert place_takers(spark, root) == 0
    assert first not in {row.entry_offset for row in table.where("taker = 1").collect()}


def test_placing_takers_changes_no_window(spark: "SparkSession", root: Root) -> None:
    from latermq.pipeline.timeline.compact import place_takers
    from latermq.pipeline.timeline.local_timeline import open_local_timeline
    from tests.unit.pipeline.test_pipeline_local_build import built_keys

    history = random_history(61, steps=200)
    ingest(spark, root, history)
    assert place_takers(spark, root)
    timeline = open_local_timeline(root, "s")
    assert timeline is not None
    assert timeline.unplaced_takers() == 0
    for window in history.windows:
        assert built_keys(root, history, window, history.end) == expected_rows(history.rows, window)


def test_a_compaction_that_died_after_archiving_archives_nothing_twice(
    spark: "SparkSession", root: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    from latermq.pipeline.timeline.archive import archive_old_rows
    from latermq.pipeline.timeline.file_swaps import FileSwaps

    history = History()
    old = history.send(10, "old")
    ingest(spark, root, history)
    state = history.state(history.end, done_upto=history.end, done_wake_ms=9 * DAY_MS)

    def dies(*_: object, **__: object) -> None:
        raise RuntimeError("killed here")

    with monkeypatch.context() as patched:
        patched.setattr(FileSwaps, "commit", dies)
        with pytest.raises(RuntimeError, match="killed here"):
            archive_old_rows(spark, root, [state], keep_ms=KEEP_MS)
    assert entries(spark, root.timeline) == entries(spark, root.archive) == [old]
    assert archive_old_rows(spark, root, [state], keep_ms=KEEP_MS) == (0, 1)
    assert entries(spark, root.archive) == [old]


def test_a_compaction_goes_no_further_once_another_driver_has_begun(spark: "SparkSession", root: Root) -> None:
    from latermq.pipeline.timeline.compact import compact

    history = History("s")
    history.cut(0, 0)
    old = history.send(10, "old")
    recent = history.send(8 * DAY_MS, "recent")
    history.send(8 * DAY_MS, "recent too")
    ingest(spark, root, history, appends=2)
    state = history.state(history.end, done_upto=history.end, done_wake_ms=9 * DAY_MS)
    state.windows = []

    seen: list[tuple[int, int, int]] = []

    def fence() -> None:
        seen.append((newest_version(Path(root.archive)), newest_version(Path(root.timeline)), files_of(root)))
        if len(seen) == 3:
            raise IllegalOperation("epoch 1 is over")

    with pytest.raises(IllegalOperation):
        compact(spark, root, [state], keep_ms=KEEP_MS, vacuum_hours=0, fence=fence)
    assert entries(spark, root.archive) == [old]
    assert entries(spark, root.timeline) == [old, recent, recent + 1]
    assert compact(spark, root, [state], keep_ms=KEEP_MS, vacuum_hours=0, fence=fence).files_after == 1
    # Asked before the archive is written, before rows are deleted, before files are clustered, and before they go.
    archive, timeline, files = seen[0]
    assert seen[:3] == [(-1, timeline, files), (-1, timeline, files), (1, timeline, files)]
    assert [versions[:2] for versions in seen[3:]][:4] == [(1, timeline)] * 3 + [(1, timeline + 1)]
    assert seen[-3][2] > files > files_of(root)
    assert archive == -1


def test_the_archive_and_reports_are_kept_for_a_while(spark: "SparkSession", root: Root) -> None:
    from latermq.pipeline.timeline.compact import compact, remove_old_reports

    history = History()
    for at in (10, DAY_MS, 5 * DAY_MS, 300 * DAY_MS):
        history.send(at, f"k{at}")
    ingest(spark, root, history)
    state = history.state(history.end, done_upto=history.end, done_wake_ms=20 * DAY_MS)
    compact(spark, root, [state], keep_ms=KEEP_MS, archive_keep_ms=16 * DAY_MS)
    assert (entries(spark, root.archive), entries(spark, root.timeline)) == ([2], [3])
    names = ("19700101T000000Z", "19700110T000000Z", "mine")
    for name in names:
        Path(root.at("reports", name)).mkdir(parents=True)
    assert remove_old_reports(root, 9 * DAY_MS) == [names[0]]
    assert sorted(path.name for path in Path(root.at("reports")).iterdir()) == [*names[1:]]


def files_of(root: Root) -> int:
    return len(list(Path(root.timeline).glob("*.parquet")))


def timers_in(spark: "SparkSession", root: Root) -> list[str]:
    """All columns of all timers, as Spark reads them. Compaction replaces takers."""
    rows = spark.read.format("delta").load(root.timeline).where("taker = 0").collect()
    assert len(rows) > 20
    return sorted(map(str, rows))


def test_many_appends_become_few_files_that_delta_rs_still_reads(spark: "SparkSession", root: Root) -> None:
    from latermq.pipeline.timeline.compact import compact
    from latermq.pipeline.timeline.local_timeline import open_local_timeline

    history = random_history(9)
    ingest(spark, root, history, appends=4)
    before = timers_in(spark, root)
    done = compact(spark, root, [history.state(0)], vacuum_hours=0)
    assert timers_in(spark, root) == before
    assert done.files_before == 4
    assert done.files_after == 1
    assert len(list(Path(root.timeline).glob("*.parquet"))) == 1
    timeline = open_local_timeline(root, "s")
    assert timeline is not None
    assert timeline.ingested == history.end
    for window in history.windows:
        found = {
            entry for batch in timeline.surviving_rows(window) for entry in batch.column("entry_offset").to_pylist()
        }
        assert found >= {key[1] for key in expected_rows(history.rows, window)}


def test_windows_behind_are_removed_even_where_there_is_no_timeline(spark: "SparkSession", root: Root) -> None:
    from latermq.pipeline.timeline.compact import compact

    history = History()
    window = history.cut(100, 100)
    write_attempt(root, window, [], made_by="local", table_version=-1, ingest_offset=0, now_ms=1)
    state = history.state(0, done_upto=5, done_wake_ms=500)
    assert compact(spark, root, [state]).windows_removed == 0
    state.windows = []
    assert compact(spark, root, [state]).windows_removed == 1
    assert windows_of(root, "s") == []
