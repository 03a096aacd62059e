"""The timeline's table: how it is made, and that batches are appended once, however they are cut and repeated."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from latermq.errors import ConfigError, CorruptStore
from latermq.pipeline.timeline.root import Root, open_root

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture
def root(tmp_path: Path) -> Root:
    return open_root(str(tmp_path / "pipeline"))


def batch(spark: "SparkSession", start: int, end: int, store_id: str = "s") -> "DataFrame":
    from latermq.pipeline.timeline.timeline import SCHEMA

    rows = [
        (store_id, entry, entry, "timer", 1000 + entry, "t", f"u{entry}", None, None, b"r", 0, None)
        for entry in range(start, end)
    ]
    return spark.createDataFrame(rows, SCHEMA)


def test_overlapping_and_repeated_batches_leave_each_entry_once(spark: "SparkSession", root: Root) -> None:
    from latermq.pipeline.timeline.timeline import append, create_timeline, ingested_entry

    create_timeline(spark, root)
    assert append(batch(spark, 0, 5), root, "s", 0, 5, 0)
    assert not append(batch(spark, 0, 5), root, "s", 0, 5, 0)
    assert not append(batch(spark, 2, 4), root, "s", 2, 4, 0)
    assert append(batch(spark, 3, 8), root, "s", 3, 8, 0)
    assert append(batch(spark, 0, 3, "other"), root, "other", 0, 3, 0)
    # A batch of nothing but cuts moves on too.
    assert append(batch(spark, 8, 8), root, "s", 8, 9, 0)
    assert (ingested_entry(root, "s"), ingested_entry(root, "other"), ingested_entry(root, "new")) == (9, 3, 0)
    rows = spark.read.format("delta").load(root.timeline).select("store_id", "entry_offset").collect()
    assert sorted(map(tuple, rows)) == [("other", entry) for entry in range(3)] + [("s", entry) for entry in range(8)]


def test_entries_are_passed_over_only_where_the_broker_has_none(spark: "SparkSession", root: Root) -> None:
    from latermq.pipeline.timeline.timeline import append, create_timeline, ingested_entry

    create_timeline(spark, root)
    with pytest.raises(CorruptStore, match="ends at entry 0 of store s; the batch begins at 4"):
        append(batch(spark, 4, 6), root, "s", 4, 6, first_entry=3)
    assert ingested_entry(root, "s") == 0
    assert append(batch(spark, 4, 6), root, "s", 4, 6, first_entry=4)


def test_a_table_of_another_schema_version_is_refused(spark: "SparkSession", root: Root) -> None:
    from latermq.pipeline.timeline.timeline import create_timeline

    create_timeline(spark, root)
    create_timeline(spark, root)
    spark.sql(f"ALTER TABLE delta.`{root.timeline}` SET TBLPROPERTIES ('latermq.schema.version' = '3')")
    with pytest.raises(ConfigError, match="has schema version 3, not 2"):
        create_timeline(spark, root)


def test_the_table_is_clustered_and_readable_without_spark(spark: "SparkSession", root: Root) -> None:
    from deltalake import DeltaTable

    from latermq.pipeline.timeline.timeline import SCHEMA, create_timeline

    create_timeline(spark, root)
    detail = spark.sql(f"DESCRIBE DETAIL delta.`{root.timeline}`").collect()[0]
    assert detail.clusteringColumns == ["store_id", "due_ms"]
    assert not {"deletionVectors", "columnMapping", "v2Checkpoint", "typeWidening"} & set(detail.tableFeatures)
    table = DeltaTable(root.timeline)
    assert [field.name for field in table.schema().fields] == SCHEMA.names
