"""The archive: rows of the timeline that nothing needs any more, moved there before they are deleted.

Files that hold nothing else are removed without being read again. A large file that holds other rows too is left until
most of its rows are old: otherwise each compaction would rewrite all files that span the age limit.
"""

from collections.abc import Callable, Sequence
from functools import reduce
from operator import or_

from delta.tables import DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from latermq.model.pipeline_state import PipelineState
from latermq.pipeline.timeline.clustering import TableVersion, newest_version, rewrite_each
from latermq.pipeline.timeline.data_files import DataFile
from latermq.pipeline.timeline.local_timeline import open_local_timeline
from latermq.pipeline.timeline.rewrite_plan import DEFAULT_LIMITS, RewriteLimits
from latermq.pipeline.timeline.root import Root
from latermq.pipeline.timeline.sorted_files import OldRows
from latermq.pipeline.timeline.table_sync import TableSync, TableSyncs
from latermq.pipeline.timeline.timeline import ARCHIVE_PROPERTIES, ARCHIVE_SCHEMA, CLUSTERED_BY, SCHEMA

SMALL_BYTES = 8 << 20  # files up to this size are rewritten for any old row
OLD_SHARE = 0.9  # of the rows of a larger file
_ROW = ("store_id", "entry_offset", "taker", "due_ms")  # identifies a row of the archive


def archive_old_rows(
    spark: SparkSession,
    root: Root,
    states: Sequence[PipelineState],
    *,
    keep_ms: int,
    limits: RewriteLimits = DEFAULT_LIMITS,
    fence: Callable[[], None] = lambda: None,
    table_syncs: TableSyncs | None = None,
) -> tuple[int, int]:
    """Move rows that are no longer needed to the archive. Returns the numbers of archived and deleted rows.

    A taker is as old as the timers that it ends, and leaves together with them.
    """
    old = [_old_rows(root, state, keep_ms) for state in states]
    version = newest_version(spark, root)
    candidates = [file for file in version.files if any(_may_hold(file, one) for one in old)]
    # Usually no row is old, and the statistics show that without a scan.
    if not candidates:
        return 0, 0
    rows = spark.read.schema(SCHEMA).parquet(*(f"{root.timeline}/{file.path}" for file in candidates))
    gone = rows.where(reduce(or_, map(_is_old, old)))
    counts: dict[str, int] = dict(gone.groupBy("_metadata.file_name").count().collect())
    leaving = [file for file in candidates if _is_leaving(file, counts.get(file.path, 0))]
    if not leaving:
        return 0, 0
    in_leaving = F.col("_metadata.file_name").isin([file.path for file in leaving])
    fence()
    archived = _append_to_archive(spark, root, gone.where(in_leaving).dropDuplicates(list(_ROW)))
    syncs = table_syncs or TableSyncs(root)
    syncs.archive.sync()  # before the timeline deletes anything
    deleted = _delete(spark, root, version, leaving, counts, old, limits, fence, syncs.timeline)
    return archived, deleted


def _old_rows(root: Root, state: PipelineState, keep_ms: int) -> OldRows:
    """The rows of a store that are too old for anything to read them."""
    timeline = open_local_timeline(root, state.store_id)
    ingested = 0 if timeline is None else timeline.ingested
    return OldRows(state.store_id, state.done_wake_ms - keep_ms, min(state.done_upto, ingested))


def _is_old(old: OldRows) -> Column:
    return (
        (F.col("store_id") == old.store_id)
        & (F.col("due_ms") < old.before_ms)
        & (F.col("entry_offset") < old.before_entry)
    )


def _may_hold(file: DataFile, old: OldRows) -> bool:
    return file.store_id in (None, old.store_id) and (file.from_ms is None or file.from_ms < old.before_ms)


def _is_leaving(file: DataFile, old_rows: int) -> bool:
    """Whether the old rows of a file are worth its rewriting."""
    return old_rows > 0 and (file.size_bytes <= SMALL_BYTES or old_rows >= OLD_SHARE * file.rows)


def _delete(
    spark: SparkSession,
    root: Root,
    version: TableVersion,
    leaving: Sequence[DataFile],
    counts: dict[str, int],
    old: Sequence[OldRows],
    limits: RewriteLimits,
    fence: Callable[[], None],
    table_sync: TableSync,
) -> int:
    """Remove the old rows of files. Returns how many were deleted."""
    whole = [file for file in leaving if counts[file.path] == file.rows]
    partial = [file for file in leaving if counts[file.path] != file.rows]
    deleted = 0
    if whole:
        fence()
        version.swaps.commit(whole, [])
        deleted += sum(file.rows for file in whole)
    groups = [[file] for file in partial]
    for [file] in rewrite_each(
        spark, root, version, groups, limits=limits, fence=fence, old=old, table_sync=table_sync
    ):
        deleted += counts[file.path]
    return deleted


def _append_to_archive(spark: SparkSession, root: Root, gone: DataFrame) -> int:
    builder = (
        DeltaTable.createIfNotExists(spark).location(root.archive).addColumns(ARCHIVE_SCHEMA).clusterBy(*CLUSTERED_BY)
    )
    for key, value in ARCHIVE_PROPERTIES.items():
        builder = builder.property(key, value)
    table = builder.execute()
    span = gone.agg(F.min("due_ms"), F.max("due_ms")).first()
    assert span is not None
    archived = table.toDF().where(F.col("due_ms").between(*span)).select(*_ROW)
    new = gone.join(archived, list(_ROW), "left_anti").select(*ARCHIVE_SCHEMA.names)
    return changed_rows(table, "numOutputRows", lambda: new.write.format("delta").mode("append").save(root.archive))


def changed_rows(table: DeltaTable, key: str, change: Callable[[], object]) -> int:
    """The row count that a change of a table reports. A change that finds nothing to do writes no version.

    Others may write versions in between.
    """
    before = _version(table)
    change()
    since = table.history().where(F.col("version") > before).select("operationMetrics").collect()
    return sum(int(row[0].get(key) or 0) for row in since if row[0].get(key))


def _version(table: DeltaTable) -> int:
    last = table.history(1).select("version").first()
    assert last is not None
    return int(last[0])


def forget_archived(
    spark: SparkSession, root: Root, states: Sequence[PipelineState], keep_ms: int, fence: Callable[[], None]
) -> None:
    """Delete rows from the archive that were due long ago. Usually the file statistics show that there are none."""
    if not states or not DeltaTable.isDeltaTable(spark, root.archive):
        return
    is_over = F.col("due_ms") < min(state.done_wake_ms for state in states) - keep_ms
    archive = DeltaTable.forPath(spark, root.archive)
    if not archive.toDF().where(is_over).isEmpty():
        fence()
        archive.delete(is_over)
