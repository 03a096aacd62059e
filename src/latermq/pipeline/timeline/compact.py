"""Compaction: archives rows that are no longer needed, clusters the rest, and removes unused files."""

import itertools
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from operator import or_

from delta.exceptions import DeltaConcurrentModificationException
from delta.tables import DeltaTable
from pyarrow import fs
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from latermq.config import Duration
from latermq.model.pipeline_state import PipelineState
from latermq.pipeline.spark.spark_failures import spark_errors
from latermq.pipeline.timeline.local_timeline import open_local_timeline
from latermq.pipeline.timeline.root import REPORT_NAME, Root, file_errors
from latermq.pipeline.timeline.table_sync import TableSync, TableSyncs
from latermq.pipeline.timeline.takers import TAKER, TIMER, is_unplaced, placed
from latermq.pipeline.timeline.timeline import ARCHIVE_PROPERTIES, ARCHIVE_SCHEMA, CLUSTERED_BY, SCHEMA
from latermq.pipeline.windows.attempts import remove_finished_windows
from latermq.pipeline.windows.survivors import ENTRY, MAX_BROADCAST_ROWS

_log = logging.getLogger("latermq.pipeline")

KEEP_MS = int(Duration.parse("7d"))
ARCHIVE_KEEP_MS = int(Duration.parse("90d"))
# How long files of older versions are kept. It bounds how long a reader may keep them open and how far back SQL can
# look.
VACUUM_HOURS = 168.0
# A window is a small part of the table. If each file covers a small span of due times, a build can skip most of them.
FILE_BYTES = 128 << 20
CONFLICT_TRIES = 5
_ROW = ("store_id", "entry_offset", "taker", "due_ms")  # identifies a row of the archive


@dataclass(frozen=True)
class Compaction:
    """The result of one compaction."""

    archived: int
    deleted: int
    placed_takers: int
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
    archive_keep_ms: int = ARCHIVE_KEEP_MS,
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
    if states:
        remove_old_reports(root, min(state.now_ms for state in states) - archive_keep_ms)
    archived = deleted = placed_takers = before = after = 0
    if open_local_timeline(root, "") is not None:
        with spark_errors(f"compacting {root.timeline}"):
            before = count_files(spark, root.timeline)
            placed_takers = place_takers(spark, root, fence=fence)
            archived, deleted = archive_old_rows(
                spark, root, states, keep_ms=keep_ms, fence=fence, archive_sync=syncs.archive
            )
            _forget_archived(spark, root, states, archive_keep_ms, fence)
            for address, sync in ((root.timeline, syncs.timeline), (root.archive, syncs.archive)):
                if DeltaTable.isDeltaTable(spark, address):
                    optimize(spark, address, vacuum_hours, sync, fence=fence)
            after = count_files(spark, root.timeline)
    done = Compaction(archived, deleted, placed_takers, before, after, removed, time.monotonic() - began_s)
    _log.info("compaction finished: %s", done)
    return done


def place_takers(spark: SparkSession, root: Root, *, fence: Callable[[], None] = lambda: None) -> int:
    """Give unplaced takers the due times of the timers that they end, in one commit. Returns how many there were.

    All entries before a taker are in the table with it, so what it ends is known. One that ends nothing is removed.
    """
    local = open_local_timeline(root, "")
    count = local.unplaced_takers() if local is not None else 0
    if local is None or not count:
        return 0
    timeline = spark.read.format("delta").option("versionAsOf", local.version).load(root.timeline)
    unplaced = timeline.where(is_unplaced())
    few = F.broadcast(unplaced) if count <= MAX_BROADCAST_ROWS else unplaced
    found = placed(few, timeline.where(F.col("taker") == TIMER)).select(*SCHEMA.names)
    key = "kept.store_id = new.store_id AND kept.entry_offset = new.entry_offset"
    is_same = f"kept.taker = {TAKER} AND kept.due_ms IS NULL AND new.due_ms IS NULL AND {key}"
    merge = (
        DeltaTable.forPath(spark, root.timeline)
        .alias("kept")
        .merge(found.unionByName(unplaced.dropDuplicates(list(ENTRY))).alias("new"), is_same)
        .whenMatchedDelete()
        .whenNotMatchedInsertAll("new.due_ms IS NOT NULL")
    )
    fence()
    retry_conflicts(merge.execute)
    return count


def archive_old_rows(
    spark: SparkSession,
    root: Root,
    states: Sequence[PipelineState],
    *,
    keep_ms: int,
    fence: Callable[[], None] = lambda: None,
    archive_sync: TableSync | None = None,
) -> tuple[int, int]:
    """Move rows that are no longer needed to the archive. Returns the numbers of archived and deleted rows.

    A taker is as old as the timers that it ends, and leaves together with them.
    """
    old = reduce(or_, (_is_old(root, state, keep_ms) for state in states), F.lit(False))
    table = DeltaTable.forPath(spark, root.timeline)
    # Use one version throughout, whatever is appended in the meantime.
    version = _version(table)
    timeline = spark.read.format("delta").option("versionAsOf", version).load(root.timeline)
    # Usually no row is old, and the file statistics show that without a scan.
    gone = timeline.where(old).select(*ARCHIVE_SCHEMA.names)
    if gone.isEmpty():
        return 0, 0
    fence()
    archived = _append_to_archive(spark, root, gone.dropDuplicates(list(_ROW)))
    (archive_sync or TableSync(root, root.archive)).sync()  # before the timeline deletes anything
    fence()
    deleted = _changed_rows(table, "numDeletedRows", lambda: retry_conflicts(lambda: table.delete(old)))
    return archived, deleted


def _is_old(root: Root, state: PipelineState, keep_ms: int) -> Column:
    """The rows of a store that are too old for anything to read them."""
    timeline = open_local_timeline(root, state.store_id)
    ingested = 0 if timeline is None else timeline.ingested
    return (
        (F.col("store_id") == state.store_id)
        & (F.col("due_ms") < state.done_wake_ms - keep_ms)
        & (F.col("entry_offset") < min(state.done_upto, ingested))
    )


def retry_conflicts(change: Callable[[], object]) -> None:
    """Change a table, again if a commit of ingest came in between."""
    for tries in itertools.count(1):
        try:
            change()
            return
        except DeltaConcurrentModificationException:
            if tries == CONFLICT_TRIES:
                raise


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
    return _changed_rows(table, "numOutputRows", lambda: new.write.format("delta").mode("append").save(root.archive))


def _forget_archived(
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


def remove_old_reports(root: Root, before_ms: int) -> list[str]:
    """Remove reports made before this time, which their names state. Returns their names."""
    last = time.strftime(REPORT_NAME, time.gmtime(max(0, before_ms) / 1000))
    with file_errors(f"the reports at {root.uri}"):
        found = root.files.get_file_info(fs.FileSelector(root.at("reports"), allow_not_found=True))
        old = [one for one in found if one.type == fs.FileType.Directory and _is_report(one.base_name)]
        old = [one for one in old if one.base_name < last]
        for one in old:
            root.files.delete_dir(one.path)
    return sorted(one.base_name for one in old)


def _is_report(name: str) -> bool:
    try:
        return bool(time.strptime(name, REPORT_NAME))
    except ValueError:  # a folder of a user's
        return False


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
