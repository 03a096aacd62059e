"""Migration of a timeline and its archive from schema version 1, when a driver starts.

Each step is one commit, and finds from the table itself whether it is done. A driver that dies between two steps leaves
a table that readers of this release understand, and the next driver continues. The first step sets the version, so that
older releases keep away, and so that an append that an older driver has under way fails.
"""

import logging

from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from latermq.pipeline.spark.spark_failures import spark_errors
from latermq.pipeline.timeline.data_files import TIMER
from latermq.pipeline.timeline.local_timeline import SCHEMA_VERSION, SCHEMA_VERSION_PROPERTY, open_local_timeline
from latermq.pipeline.timeline.root import Root
from latermq.pipeline.timeline.table_sync import TableSyncs
from latermq.pipeline.timeline.takers import in_layout_2, is_unplaced, placed
from latermq.pipeline.timeline.timeline import ARCHIVE_PROPERTIES, ARCHIVE_SCHEMA, CLUSTERED_BY, PROPERTIES, SCHEMA

_log = logging.getLogger("latermq.pipeline")


def migrate(spark: SparkSession, root: Root, table_syncs: TableSyncs | None = None) -> bool:
    """Bring the tables of a root to the current schema version. Returns whether there was anything to do."""
    with spark_errors(f"migrating {root.timeline}"):
        is_changed = False
        if open_local_timeline(root, "") is not None:
            is_changed = _migrate_table(spark, root.timeline, SCHEMA.names, PROPERTIES)
        if DeltaTable.isDeltaTable(spark, root.archive):
            is_changed |= _migrate_table(spark, root.archive, ARCHIVE_SCHEMA.names, ARCHIVE_PROPERTIES)
    if is_changed:
        syncs = table_syncs or TableSyncs(root)
        syncs.timeline.sync()
        syncs.archive.sync()
        _log.info("the timeline %s has schema version %s now", root.timeline, SCHEMA_VERSION)
    return is_changed


def _migrate_table(spark: SparkSession, address: str, columns: list[str], properties: dict[str, str]) -> bool:
    detail = DeltaTable.forPath(spark, address).detail().select("properties", "clusteringColumns").first()
    assert detail is not None
    known, clustered_by = detail
    is_changed = False
    if SCHEMA_VERSION_PROPERTY in properties and known.get(SCHEMA_VERSION_PROPERTY) != SCHEMA_VERSION:
        _log.info("migrating %s to schema version %s", address, SCHEMA_VERSION)
        _set_properties(spark, address, {SCHEMA_VERSION_PROPERTY: SCHEMA_VERSION})
        is_changed = True
    rows = spark.read.format("delta").load(address)
    if "taker" not in rows.columns:
        _rewrite(_with_placed_takers(rows).select(*columns), address)
        is_changed = True
    # After the rewrite: statistics are kept of columns that it adds.
    wanted = {key: value for key, value in properties.items() if known.get(key) != value}
    if wanted.keys() - {SCHEMA_VERSION_PROPERTY}:
        _set_properties(spark, address, wanted)
        is_changed = True
    if tuple(clustered_by or ()) != CLUSTERED_BY:
        _cluster(spark, address)
        is_changed = True
    return is_changed


def _with_placed_takers(rows: DataFrame) -> DataFrame:
    """Rows of version 1 as timers and placed takers. Takers that end nothing in the table are left out."""
    current = in_layout_2(rows)
    timers, unplaced = current.where(F.col("taker") == TIMER), current.where(is_unplaced())
    renewals = current.where((F.col("taker") != TIMER) & F.col("due_ms").isNotNull())
    return timers.unionByName(renewals).unionByName(placed(unplaced, timers))


def _rewrite(rows: DataFrame, address: str) -> None:
    """Replace rows and schema in one commit. What ingest has counted in the table stays."""
    rows.write.format("delta").mode("overwrite").option("overwriteSchema", "true").save(address)


def _set_properties(spark: SparkSession, address: str, properties: dict[str, str]) -> None:
    pairs = ", ".join(f"'{key}' = '{value}'" for key, value in properties.items())
    spark.sql(f"ALTER TABLE delta.`{address}` SET TBLPROPERTIES ({pairs})")


def _cluster(spark: SparkSession, address: str) -> None:
    spark.sql(f"ALTER TABLE delta.`{address}` CLUSTER BY ({', '.join(CLUSTERED_BY)})")
