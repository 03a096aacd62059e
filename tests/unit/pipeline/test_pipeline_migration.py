"""Migration of timelines of schema version 1: same windows before, between and after its steps."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from latermq.pipeline.timeline.local_timeline import open_local_timeline
from latermq.pipeline.timeline.root import Root, open_root
from latermq.pipeline.windows.local_build import build_locally
from tests.support.faults.timer_histories import (
    History,
    append_rows,
    expected_rows,
    random_history,
    timeline_rows,
    write_timeline,
)
from tests.support.interpreted_queries import interpreted
from tests.unit.pipeline.test_pipeline_local_build import built_keys

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(autouse=True)
def quick(spark: "SparkSession") -> Iterator[None]:
    with interpreted(spark):
        yield


@pytest.fixture
def root(tmp_path: Path) -> Root:
    return open_root(str(tmp_path))


def check_windows(root: Root, history: History) -> None:
    for window in history.windows:
        assert built_keys(root, history, window, history.end) == expected_rows(history.rows, window)


def rows_of(spark: "SparkSession", address: str) -> list[tuple[object, ...]]:
    names = ("store_id", "entry_offset", "timer_id", "kind", "due_ms", "topic", "unique_key", "taker", "due")
    found = spark.read.format("delta").load(address).select(*names).collect()
    return sorted((tuple(row) for row in found), key=repr)


def create_first_table(spark: "SparkSession", address: str, *, properties: dict[str, str]) -> None:
    """A table as drivers of version 1 created it."""
    from delta.tables import DeltaTable
    from pyspark.sql.pandas.types import from_arrow_schema

    from tests.support.faults.timer_histories import SCHEMA_1

    builder = DeltaTable.create(spark).location(address).addColumns(from_arrow_schema(SCHEMA_1)).clusterBy("due_ms")
    builder = builder.property("delta.dataSkippingStatsColumns", "due_ms,timer_id")
    builder = builder.property("delta.enableDeletionVectors", "false")
    for key, value in properties.items():
        builder = builder.property(key, value)
    builder.execute()


def fill(spark: "SparkSession", address: str, history: History) -> None:
    from pyspark.sql.pandas.types import from_arrow_schema

    from tests.support.faults.timer_histories import SCHEMA_1

    rows = [tuple(row[name] for name in SCHEMA_1.names) for row in history.rows]
    writer = spark.createDataFrame(rows, from_arrow_schema(SCHEMA_1)).write.format("delta").mode("append")
    app = f"latermq-ingest-{history.store_id}"
    writer.option("txnAppId", app).option("txnVersion", history.end).save(address)


def test_every_step_leaves_a_table_with_the_same_windows(
    spark: "SparkSession", root: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    from latermq.pipeline.timeline import migration

    history, other = random_history(51), random_history(52, store_id="other")
    create_first_table(spark, root.timeline, properties={"latermq.schema.version": "1"})
    for one in (history, other):
        fill(spark, root.timeline, one)
    check_windows(root, history)

    class Killed(Exception):
        pass

    steps = 0

    def stop_before(step: int) -> None:
        """Let the driver die before a step that writes."""
        for name in ("_set_properties", "_rewrite", "_cluster"):
            function = getattr(migration, name)

            def counted(*given: object, function: object = function) -> None:
                nonlocal steps
                steps += 1
                if steps > step:
                    raise Killed
                function(*given)  # type: ignore[operator]

            patched.setattr(migration, name, counted)

    died = 0
    for _ in range(10):
        steps = 0
        with monkeypatch.context() as patched:
            stop_before(1)
            try:
                migration.migrate(spark, root)
            except Killed:
                died += 1
                check_windows(root, history)
                continue
            break
    assert died == 3
    check_windows(root, history)
    timeline = open_local_timeline(root, "s")
    assert timeline is not None
    assert (timeline.layout, timeline.ingested, timeline.unplaced_takers()) == (2, history.end, 0)
    assert not migration.migrate(spark, root)


def test_the_rows_are_those_that_a_broker_of_today_would_have_caused(spark: "SparkSession", root: Root) -> None:
    from latermq.pipeline.timeline.migration import migrate
    from latermq.pipeline.timeline.timeline import CLUSTERED_BY, PROPERTIES

    history = History()
    history.cut(0, 0)
    first = history.send(100, "a")
    history.send(100, "a", timer_id=first)
    history.move(500, "a", first)
    history.cancel("a")
    history.send(900, "kept")
    create_first_table(spark, root.timeline, properties={"latermq.schema.version": "1"})
    create_first_table(spark, root.archive, properties={})
    fill(spark, root.timeline, history)
    fill(spark, root.archive, history)
    assert migrate(spark, root)
    wanted = spark.createDataFrame(
        [tuple(row.values()) for row in timeline_rows(history.rows)],
        spark.read.format("delta").load(root.timeline).schema,
    )
    names = ("store_id", "entry_offset", "timer_id", "kind", "due_ms", "topic", "unique_key", "taker", "due")
    expected = {tuple(row) for row in wanted.select(*names).collect()}
    # By name alone the cancel ends the first timer once more, which changes nothing.
    for address in (root.timeline, root.archive):
        found = set(rows_of(spark, address))
        assert found >= expected
        assert {(row[1], row[3], row[4]) for row in found - expected} == {(4, "cancel", 100), (3, "move", 100)} - {
            (row[1], row[3], row[4]) for row in expected
        }
    from delta.tables import DeltaTable

    detail = DeltaTable.forPath(spark, root.timeline).detail().select("properties", "clusteringColumns").first()
    assert detail is not None
    assert PROPERTIES.items() <= detail[0].items()
    assert tuple(detail[1]) == CLUSTERED_BY


def test_a_broker_builds_its_windows_from_a_table_that_no_driver_has_migrated(root: Root) -> None:
    history = random_history(3)
    write_timeline(root.timeline, [history, random_history(4, store_id="another")], history.end // 2, version="1")
    rest = [row for row in history.rows if row["entry_offset"] >= history.end // 2]
    check_windows_at(root, history, history.end // 2)
    append_rows(root.timeline, rest, "s", history.end)
    check_windows_at(root, history, history.end)
    timeline = open_local_timeline(root, "s")
    assert timeline is not None
    assert timeline.layout == 1
    kinds = {row["entry_offset"]: row["kind"] for batch in timeline.rows_from("s", 0) for row in batch.to_pylist()}
    assert set(kinds.values()) == {"timer", "move", "cancel"}


def check_windows_at(root: Root, history: History, ingested: int) -> None:
    for window in history.windows:
        attempt = build_locally(root, history.state(ingested), window, history.pull, now_ms=5)
        assert attempt.manifest.rows == len(expected_rows(history.rows, window))
