"""Compaction while ingest commits, and while its files are replaced by others: no row is lost or doubled."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from latermq.errors import IllegalOperation
from latermq.pipeline.timeline.rewrite_plan import RewriteLimits
from latermq.pipeline.timeline.root import open_root
from tests.support.faults.timer_histories import History, frame
from tests.support.interpreted_queries import interpreted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ONE_BY_ONE = RewriteLimits(sort_bytes=1)


@pytest.fixture(autouse=True)
def quick(spark: "SparkSession") -> Iterator[None]:
    with interpreted(spark):
        yield


class Table:
    """A timeline of one store, to which timers are appended one commit after the other."""

    def __init__(self, spark: "SparkSession", path: Path, *, is_placing: bool = True) -> None:
        from latermq.pipeline.timeline.timeline import create_timeline

        self.spark, self.root = spark, open_root(str(path))
        self.history = History(is_placing=is_placing)
        self.ingested = 0
        create_timeline(spark, self.root)

    def append(self) -> None:
        from latermq.pipeline.timeline.timeline import append

        start, self.ingested = self.ingested, self.history.end
        rows = frame(self.spark, self.history.rows[start:]).coalesce(1)
        append(rows, self.root, "s", start, self.ingested, 0)

    def entries(self) -> list[int]:
        rows = self.spark.read.format("delta").load(self.root.timeline).where("taker = 0")
        return sorted(row.entry_offset for row in rows.select("entry_offset").collect())

    def files(self) -> list[str]:
        from latermq.pipeline.timeline.clustering import newest_version

        return sorted(file.path for file in newest_version(self.spark, self.root).files)


def test_appends_between_plan_and_commit_stay_and_cost_no_second_try(spark: "SparkSession", tmp_path: Path) -> None:
    from latermq.pipeline.timeline.clustering import cluster, newest_version, rewrite_each
    from latermq.pipeline.timeline.rewrite_plan import rewrite_groups

    table = Table(spark, tmp_path)
    for number in range(2):
        table.history.send(number, f"k{number}")
        table.append()

    def ingest_meanwhile() -> None:
        table.history.send(100, "new")
        table.append()

    version = newest_version(spark, table.root)
    groups = rewrite_groups(version.files, ONE_BY_ONE)
    assert len(groups) == 2
    done = list(rewrite_each(spark, table.root, version, groups, limits=ONE_BY_ONE, fence=ingest_meanwhile))
    assert len(done) == 2, "no conflict"
    assert table.entries() == [0, 1, 2, 3]
    assert sum(path.startswith("sorted-") for path in table.files()) == 2
    assert cluster(spark, table.root)
    assert table.entries() == [0, 1, 2, 3]
    assert all(path.startswith("sorted-") for path in table.files())


def test_a_group_whose_file_was_replaced_meanwhile_is_planned_again(spark: "SparkSession", tmp_path: Path) -> None:
    from delta.tables import DeltaTable

    from latermq.pipeline.timeline.clustering import cluster

    table = Table(spark, tmp_path)
    for key in ("a", "b"):
        table.history.send(5, key)
        table.history.send(7, key)
        table.append()
    fences = 0

    def delete_meanwhile() -> None:
        nonlocal fences
        fences += 1
        if fences == 1:
            DeltaTable.forPath(spark, table.root.timeline).delete("due_ms = 5 AND entry_offset = 0")

    cluster(spark, table.root, fence=delete_meanwhile)
    assert table.entries() == [1, 2, 3]
    assert fences == 2, "planned again, after a conflict"
    [path] = table.files()
    assert [one.name for one in Path(table.root.timeline).glob("sorted-*")] == [path], "the first try left no file"


def test_a_driver_that_dies_between_two_groups_keeps_the_first(spark: "SparkSession", tmp_path: Path) -> None:
    from latermq.pipeline.timeline.clustering import cluster

    table = Table(spark, tmp_path)
    for number in range(3):
        table.history.send(number, f"k{number}")
        table.append()
    fences = 0

    def fence() -> None:
        nonlocal fences
        fences += 1
        if fences == 2:
            raise IllegalOperation("epoch 1 is over")

    with pytest.raises(IllegalOperation):
        cluster(spark, table.root, limits=ONE_BY_ONE, fence=fence)
    assert sum(path.startswith("sorted-") for path in table.files()) == 1
    assert table.entries() == [0, 1, 2]
    cluster(spark, table.root, limits=ONE_BY_ONE)
    assert all(path.startswith("sorted-") for path in table.files())
    assert table.entries() == [0, 1, 2]


def test_takers_are_placed_while_ingest_commits(spark: "SparkSession", tmp_path: Path) -> None:
    from latermq.pipeline.timeline.compact import place_takers
    from latermq.pipeline.timeline.local_timeline import open_local_timeline

    table = Table(spark, tmp_path, is_placing=False)
    table.history.send(5, "a")
    table.history.cancel("a")
    table.append()
    has_ended = threading.Event()
    appended = 0

    def ingest() -> None:
        nonlocal appended
        while not has_ended.is_set():
            table.history.send(9, "b")
            table.append()
            appended += 1

    thread = threading.Thread(target=ingest)
    thread.start()
    try:
        assert place_takers(spark, table.root) == 1
    finally:
        has_ended.set()
        thread.join()
    assert appended
    timeline = open_local_timeline(table.root, "s")
    assert timeline is not None
    assert (timeline.unplaced_takers(), timeline.ingested) == (0, table.history.end)
    assert table.entries() == [0, *range(2, table.history.end)]


def test_a_missing_table_file_fails_its_group_and_no_other(spark: "SparkSession", tmp_path: Path) -> None:
    from latermq.errors import LaterMQError
    from latermq.pipeline.timeline.clustering import cluster

    table = Table(spark, tmp_path)
    for number in range(2):
        table.history.send(number, f"k{number}")
        table.append()
    lost = next(path for path in table.files())
    (Path(table.root.timeline) / lost).unlink()
    with pytest.raises(LaterMQError, match="rewriting"):
        cluster(spark, table.root, limits=ONE_BY_ONE)
    assert [path for path in table.files() if not path.startswith("sorted-")] == [lost]
