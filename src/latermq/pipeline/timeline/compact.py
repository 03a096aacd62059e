"""Compaction: archives rows that are no longer needed, sorts and merges files, and removes unused ones."""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from delta.tables import DeltaTable
from pyarrow import fs
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from latermq.config import Duration
from latermq.model.pipeline_state import PipelineState
from latermq.pipeline.spark.spark_failures import spark_errors
from latermq.pipeline.timeline.archive import archive_old_rows, forget_archived
from latermq.pipeline.timeline.clustering import cluster, newest_version, rewrite_each
from latermq.pipeline.timeline.data_files import TIMER
from latermq.pipeline.timeline.local_timeline import open_local_timeline
from latermq.pipeline.timeline.rewrite_plan import DEFAULT_LIMITS, RewriteLimits, groups_to_sort
from latermq.pipeline.timeline.root import REPORT_NAME, Root, file_errors
from latermq.pipeline.timeline.table_sync import TableSync, TableSyncs
from latermq.pipeline.timeline.takers import is_unplaced, placed
from latermq.pipeline.timeline.timeline import SCHEMA
from latermq.pipeline.windows.attempts import remove_finished_windows
from latermq.pipeline.windows.survivors import MAX_BROADCAST_ROWS

_log = logging.getLogger("latermq.pipeline")

KEEP_MS = int(Duration.parse("7d"))
ARCHIVE_KEEP_MS = int(Duration.parse("90d"))
# How long files of older versions are kept. It bounds how long a reader may keep them open and how far back SQL can
# look.
VACUUM_HOURS = 168.0


@dataclass(frozen=True)
class Compaction:
    """The result of one compaction."""

    archived: int
    deleted: int
    placed_takers: int
    rewritten_bytes: int
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
    limits: RewriteLimits = DEFAULT_LIMITS,
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
    archived = deleted = placed_takers = rewritten_bytes = before = after = 0
    if open_local_timeline(root, "") is not None:
        with spark_errors(f"compacting {root.timeline}"):
            before = count_files(spark, root.timeline)
            placed_takers = place_takers(spark, root, limits=limits, fence=fence, table_sync=syncs.timeline)
            archived, deleted = archive_old_rows(
                spark, root, states, keep_ms=keep_ms, limits=limits, fence=fence, table_syncs=syncs
            )
            forget_archived(spark, root, states, archive_keep_ms, fence)
            rewritten_bytes = cluster(spark, root, limits=limits, fence=fence, table_sync=syncs.timeline)
            vacuum(spark, root.timeline, vacuum_hours, syncs.timeline, fence=fence)
            if DeltaTable.isDeltaTable(spark, root.archive):
                fence()
                DeltaTable.forPath(spark, root.archive).optimize().executeCompaction()
                vacuum(spark, root.archive, vacuum_hours, syncs.archive, fence=fence)
            after = count_files(spark, root.timeline)
    done = Compaction(
        archived, deleted, placed_takers, rewritten_bytes, before, after, removed, time.monotonic() - began_s
    )
    _log.info("compaction finished: %s", done)
    return done


def place_takers(
    spark: SparkSession,
    root: Root,
    *,
    limits: RewriteLimits = DEFAULT_LIMITS,
    fence: Callable[[], None] = lambda: None,
    table_sync: TableSync | None = None,
) -> int:
    """Give unplaced takers the due times of the timers that they end. Returns how many there were.

    All entries before a taker are in the table with it, so what it ends is known. First the placed ones are appended,
    then the unplaced ones are removed, file by file. Ingest may append meanwhile, which a MERGE would conflict with. In
    between a taker may be in the table in both ways, which changes no result.
    """
    version = newest_version(spark, root)
    holders = [file for file in version.files if file.unplaced or not file.rows]
    local = open_local_timeline(root, "", version.swaps.version)
    count = local.unplaced_takers() if local is not None and holders else 0
    if not count:
        return 0
    timeline = spark.read.format("delta").option("versionAsOf", version.swaps.version).load(root.timeline)
    unplaced = timeline.where(is_unplaced())
    few = F.broadcast(unplaced) if count <= MAX_BROADCAST_ROWS else unplaced
    found = placed(few, timeline.where(F.col("taker") == TIMER)).select(*SCHEMA.names)
    fence()
    found.write.format("delta").mode("append").save(root.timeline)
    groups = [*groups_to_sort(holders, limits), *([file] for file in holders if file.is_sorted)]
    for _ in rewrite_each(
        spark, root, version, groups, limits=limits, fence=fence, drops_unplaced=True, table_sync=table_sync
    ):
        pass
    return count


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


def vacuum(
    spark: SparkSession,
    address: str,
    hours: float,
    sync: TableSync,
    *,
    fence: Callable[[], None] = lambda: None,
) -> None:
    """Remove files that only versions older than this use."""
    settings = {
        "spark.databricks.delta.retentionDurationCheck.enabled": "false",
        # VACUUM lists one folder with this many tasks. The default of 10,000 takes minutes.
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": str(spark.conf.get("spark.sql.shuffle.partitions")),
    }
    sync.sync()  # before the files that newer ones replace are removed
    fence()
    with _settings(spark, settings):
        DeltaTable.forPath(spark, address).vacuum(hours)


def count_files(spark: SparkSession, address: str) -> int:
    """The number of files in the newest version of a table."""
    detail = DeltaTable.forPath(spark, address).detail().select("numFiles").first()
    assert detail is not None
    return int(detail[0])


@contextmanager
def _settings(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
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
