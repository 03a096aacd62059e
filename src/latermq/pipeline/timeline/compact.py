"""Compaction: archives rows that are no longer needed, clusters the rest, and removes unused files."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from operator import or_

from delta.tables import DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from latermq.config import Duration
from latermq.model.pipeline_state import PipelineState
from latermq.pipeline.spark.spark_failures import spark_errors
from latermq.pipeline.timeline.local_timeline import open_local_timeline
from latermq.pipeline.timeline.root import Root
from latermq.pipeline.timeline.table_sync import TableSync, TableSyncs
from latermq.pipeline.timeline.timeline import SCHEMA
from latermq.pipeline.windows.attempts import remove_finished_windows
from latermq.pipeline.windows.survivors import ENTRY, last_changes, name

_log = logging.getLogger("latermq.pipeline")

KEEP_MS = int(Duration.parse("7d"))
# How long files of older versions are kept. It bounds how long a reader may keep them open and how far back SQL can
# look.
VACUUM_HOURS = 168.0
# A window is a small part of the table. If each file covers a small span of due times, a build can skip most of them.
FILE_BYTES = 128 << 20
_ARCHIVE_SCHEMA = StructType([field for field in SCHEMA if field.name != "record"])
_ARCHIVE_PROPERTIES = {
    "delta.dataSkippingStatsColumns": "due_ms,timer_id",
    "delta.enableDeletionVectors": "false",
    "delta.checkpointPolicy": "classic",
}


@dataclass(frozen=True)
class Compaction:
    """The result of one compaction."""

    archived: int
    deleted: int
    files_before: int
    files_after: int
    windows_removed: int
    duration_s: float


def compact(
    spark: SparkSession,
    root: Root,
    states: Sequence[PipelineState],
    *,
    keep_ms: int = KEEP_MS,
    vacuum_hours: float = VACUUM_HOURS,
    fence: Callable[[], None] = lambda: None,
    table_syncs: TableSyncs | None = None,
) -> Compaction:
    """Compact the timeline. Every step can be interrupted and repeated: a row is archived before its deletion, once.

    `fence` is called before each step that writes or removes, and raises if another driver has begun.
    """
    began_s = time.monotonic()
    syncs = table_syncs or TableSyncs(root)
    fence()
    removed = sum(len(remove_finished_windows(root, state)) for state in states)
    archived = deleted = before = after = 0
    if open_local_timeline(root, "") is not None:
        with spark_errors(f"compacting {root.timeline}"):
            before = count_files(spark, root.timeline)
            archived, deleted = archive_old_rows(
                spark, root, states, keep_ms=keep_ms, fence=fence, archive_sync=syncs.archive
            )
            for address, sync in ((root.timeline, syncs.timeline), (root.archive, syncs.archive)):
                if DeltaTable.isDeltaTable(spark, address):
                    optimize(spark, address, vacuum_hours, sync, fence=fence)
            after = count_files(spark, root.timeline)
    done = Compaction(archived, deleted, before, after, removed, time.monotonic() - began_s)
    _log.info("compaction finished: %s", done)
    return done


def archive_old_rows(
    spark: SparkSession,
    root: Root,
    states: Sequence[PipelineState],
    *,
    keep_ms: int,
    fence: Callable[[], None] = lambda: None,
    archive_sync: TableSync | None = None,
) -> tuple[int, int]:
    """Move rows that are no longer needed to the archive. Returns the numbers of archived and deleted rows."""
    old = reduce(or_, (_is_old(root, state, keep_ms) for state in states), F.lit(False))
    table = DeltaTable.forPath(spark, root.timeline)
    # Use one version throughout, whatever is appended in the meantime.
    version = _version(table)
    timeline = spark.read.format("delta").option("versionAsOf", version).load(root.timeline)
    # Usually no row is old, and the file statistics show that without a scan.
    if timeline.where(old).isEmpty():
        return 0, 0
    cancelled = cancelled_by_old(timeline, old).cache()
    try:
        gone = timeline.where(old).select(*_ARCHIVE_SCHEMA.names).union(cancelled).dropDuplicates(list(ENTRY))
        fence()
        archived = _append_to_archive(spark, root, gone)
        (archive_sync or TableSync(root, root.archive)).sync()  # before the timeline deletes anything
        deleted = 0
        fence()
        # Delete cancelled rows before the rows that cancel them. In the other order a crash in between would bring
        # timers back.
        if not cancelled.isEmpty():
            same = "kept.store_id = gone.store_id AND kept.entry_offset = gone.entry_offset"
            merge = table.alias("kept").merge(cancelled.alias("gone"), same)
            deleted += _changed_rows(table, "numTargetRowsDeleted", merge.whenMatchedDelete().execute)
        fence()
        deleted += _changed_rows(table, "numDeletedRows", lambda: table.delete(old))
    finally:
        cancelled.unpersist()
    return archived, deleted


def cancelled_by_old(timeline: DataFrame, old: Column) -> DataFrame:
    """Rows that are not old, but that an old cancellation or move cancels. They must be removed together with it."""
    rest = timeline.where(~old & (F.col("kind") != "cancel"))
    named = rest.select(*_ARCHIVE_SCHEMA.names, name().alias("name"))
    joined = named.join(last_changes(timeline.where(old)), ["store_id", "name"])
    found = joined.where(F.col("changed_at") > F.col("entry_offset"))
    return found.select(*_ARCHIVE_SCHEMA.names).dropDuplicates(list(ENTRY))


def _is_old(root: Root, state: PipelineState, keep_ms: int) -> Column:
    """The rows of a store that are too old for anything to read them.

    A cancellation or a move may go only if it comes before every cut whose window may still be built. Every attempt of
    a window, even a later one, must leave out the timers that it cancelled.
    """
    timeline = open_local_timeline(root, state.store_id)
    ingested = 0 if timeline is None else timeline.ingested
    first_cut = min([window.cut_entry for window in state.windows], default=state.ingest_offset)
    return (
        (F.col("store_id") == state.store_id)
        & (F.col("due_ms") < state.done_wake_ms - keep_ms)
        & (F.col("entry_offset") < min(state.done_upto, ingested))
        & ((F.col("kind") == "timer") | (F.col("entry_offset") < first_cut))
    )


def _append_to_archive(spark: SparkSession, root: Root, gone: DataFrame) -> int:
    builder = DeltaTable.createIfNotExists(spark).location(root.archive).addColumns(_ARCHIVE_SCHEMA).clusterBy("due_ms")
    for key, value in _ARCHIVE_PROPERTIES.items():
        builder = builder.property(key, value)
    table = builder.execute()
    span = gone.agg(F.min("due_ms"), F.max("due_ms")).first()
    assert span is not None
    archived = table.toDF().where(F.col("due_ms").between(*span)).select(*ENTRY)
    new = gone.join(archived, list(ENTRY), "left_anti").select(*_ARCHIVE_SCHEMA.names)
    return _changed_rows(table, "numOutputRows", lambda: new.write.format("delta").mode("append").save(root.archive))


def optimize(
    spark: SparkSession,
    address: str,
    vacuum_hours: float,
    sync: TableSync,
    *,
    fence: Callable[[], None] = lambda: None,
) -> None:
    """Cluster the new files of a table, and remove files that only old versions use."""
    table = DeltaTable.forPath(spark, address)
    with _settings(
        spark,
        {
            "spark.databricks.delta.optimize.maxFileSize": str(FILE_BYTES),
            "spark.databricks.delta.retentionDurationCheck.enabled": "false",
            # VACUUM lists one folder with this many tasks. The default of 10,000 takes minutes.
            "spark.sql.sources.parallelPartitionDiscovery.parallelism": str(
                spark.conf.get("spark.sql.shuffle.partitions")
            ),
        },
    ):
        fence()
        table.optimize().executeCompaction()
        sync.sync()  # before the files that these replace are removed
        fence()
        table.vacuum(vacuum_hours)


def count_files(spark: SparkSession, address: str) -> int:
    """The number of files in the newest version of a table."""
    detail = DeltaTable.forPath(spark, address).detail().select("numFiles").first()
    assert detail is not None
    return int(detail[0])


def _version(table: DeltaTable) -> int:
    last = table.history(1).select("version").first()
    assert last is not None
    return int(last[0])


def _changed_rows(table: DeltaTable, key: str, change: Callable[[], object]) -> int:
    """The row count that a change of a table reports. A change that finds nothing to do writes no version.

    Ingest may write versions in between.
    """
    before = _version(table)
    change()
    since = table.history().where(F.col("version") > before).select("operationMetrics").collect()
    return sum(int(row[0].get(key) or 0) for row in since if row[0].get(key))


@contextmanager
def _settings(spark: SparkSession, settings: dict[str, str]) -> Iterator[None]:
    before = {key: spark.conf.get(key, None) for key in settings}
    for key, value in settings.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key, old in before.items():
            if old is None:
                spark.conf.unset(key)
            else:
                spark.conf.set(key, old)
