"""The rewriting of data files in small groups: each is one job of Spark and one commit.

A driver that dies, or a commit that conflicts, loses the work on one group. Its new files are not in the table, and are
removed with other unused files.
"""

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass

import pyarrow as pa
from delta.exceptions import ConcurrentDeleteDeleteException
from pyspark.sql import SparkSession

from latermq.errors import LaterMQError
from latermq.pipeline.spark.pools import COMPACT_POOL, use_pool
from latermq.pipeline.spark.spark_failures import spark_errors
from latermq.pipeline.timeline.data_files import DataFile, data_files
from latermq.pipeline.timeline.file_swaps import FileSwaps
from latermq.pipeline.timeline.local_timeline import open_local_timeline
from latermq.pipeline.timeline.rewrite_plan import DEFAULT_LIMITS, RewriteLimits, rewrite_groups
from latermq.pipeline.timeline.root import Root, open_root
from latermq.pipeline.timeline.sorted_files import TABLE, OldRows, Rewrite, WrittenFile, rewrite
from latermq.pipeline.timeline.table_sync import UNSYNCED_COMMITS, TableSync

_log = logging.getLogger("latermq.pipeline")

MAX_PARALLEL = 8  # groups rewritten at once, on a cluster with as many cores or more
# New files are sorted in the first round, merged in the second, and what they become is merged in the third. More are
# needed only after conflicts; the next compaction continues.
MAX_ROUNDS = 5
# Commits between two syncs of the table. With those of ingest, fewer than are looked through after a power cut.
COMMITS_PER_SYNC = UNSYNCED_COMMITS // 4
_WRITTEN_DDL = "path string, size_bytes bigint, rows bigint, stats string"
_WRITTEN = pa.schema([("path", pa.string()), ("size_bytes", pa.int64()), ("rows", pa.int64()), ("stats", pa.string())])


@dataclass(frozen=True)
class TableVersion:
    """One version of the timeline: its files, and the commits that replace some of them."""

    swaps: FileSwaps
    files: list[DataFile]


def newest_version(spark: SparkSession, root: Root) -> TableVersion:
    """The newest version. What is planned for it can be committed later, unless its files are gone by then."""
    swaps = FileSwaps(spark, root.timeline)
    timeline = open_local_timeline(root, "", swaps.version)
    assert timeline is not None
    return TableVersion(swaps, data_files(timeline.table))


def cluster(
    spark: SparkSession,
    root: Root,
    *,
    limits: RewriteLimits = DEFAULT_LIMITS,
    fence: Callable[[], None] = lambda: None,
    table_sync: TableSync | None = None,
) -> int:
    """Sort new files, and merge files where too many overlap. Returns the bytes of the files that were replaced."""
    replaced_bytes = 0
    for _ in range(MAX_ROUNDS):
        version = newest_version(spark, root)
        groups = rewrite_groups(version.files, limits)
        if not groups:
            break
        for group in rewrite_each(spark, root, version, groups, limits=limits, fence=fence, table_sync=table_sync):
            replaced_bytes += sum(file.size_bytes for file in group)
    return replaced_bytes


def rewrite_each(
    spark: SparkSession,
    root: Root,
    version: TableVersion,
    groups: Sequence[Sequence[DataFile]],
    *,
    limits: RewriteLimits,
    fence: Callable[[], None],
    old: Sequence[OldRows] = (),
    drops_unplaced: bool = False,
    table_sync: TableSync | None = None,
) -> Iterator[Sequence[DataFile]]:
    """Rewrite groups of files, several at once, and yield those that were committed.

    A group that fails does not stop the others. The first error is raised at the end.
    """
    if not groups:
        return
    sync = table_sync or TableSync(root, root.timeline)
    sync.sync()  # what earlier calls have committed
    unsynced = 0
    parallel = max(1, min(MAX_PARALLEL, spark.sparkContext.defaultParallelism))
    errors: list[LaterMQError] = []
    with ThreadPoolExecutor(parallel, "latermq-rewrite", use_pool, (spark, COMPACT_POOL)) as threads:
        jobs = {
            threads.submit(_run, spark, root.uri, _task_of(group, limits, old, drops_unplaced)): group
            for group in groups
        }
        try:
            for job in as_completed(jobs):
                group = jobs[job]
                try:
                    written = job.result()
                except LaterMQError as error:
                    errors.append(error)
                    continue
                fence()
                if _commit(root, version.swaps, group, written):
                    unsynced += 1
                    if unsynced == COMMITS_PER_SYNC:
                        sync.sync()
                        unsynced = 0
                    yield group
        finally:
            threads.shutdown(cancel_futures=True)
    if errors:
        raise errors[0]


def _task_of(group: Sequence[DataFile], limits: RewriteLimits, old: Sequence[OldRows], drops_unplaced: bool) -> Rewrite:
    are_sorted = all(file.is_sorted for file in group) and len({file.store_id for file in group}) == 1
    return Rewrite([file.path for file in group], are_sorted, limits, old, drops_unplaced)


def _run(spark: SparkSession, root_uri: str, task: Rewrite) -> list[WrittenFile]:
    """Rewrite files in one of Spark's workers."""

    def write(_: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        files = rewrite(open_root(root_uri), task)
        columns = zip(*((file.path, file.size_bytes, file.rows, file.stats) for file in files), strict=True)
        arrays = (
            [pa.array(column, field.type) for column, field in zip(columns, _WRITTEN, strict=True)] if files else []
        )
        if arrays:
            yield pa.RecordBatch.from_arrays(arrays, schema=_WRITTEN)

    with spark_errors(f"rewriting {len(task.paths)} files of {root_uri}"):
        rows = spark.range(0, 1, 1, 1).mapInArrow(write, _WRITTEN_DDL).collect()
    return [WrittenFile(row.path, row.size_bytes, row.rows, row.stats) for row in rows]


def _commit(root: Root, swaps: FileSwaps, group: Sequence[DataFile], written: Sequence[WrittenFile]) -> bool:
    """Put new files in place of a group. Returns whether the group was still in the table."""
    try:
        swaps.commit(group, written)
    except ConcurrentDeleteDeleteException as error:
        if _is_committed(root, written):
            return True
        _log.info("a rewrite of %d files is repeated: %s", len(group), str(error).partition("\n")[0])
        for file in written:
            with contextlib.suppress(OSError):
                root.files.delete_file(root.at(TABLE, file.path))
        return False
    return True


def _is_committed(root: Root, written: Sequence[WrittenFile]) -> bool:
    """Whether new files are in the table although their commit failed.

    An object store's client sends a request again if it gets no answer. Then a commit may find itself in the table, and
    takes itself for another one that has removed the same files.
    """
    timeline = open_local_timeline(root, "")
    assert timeline is not None
    return not {file.path for file in written}.isdisjoint(file.path for file in data_files(timeline.table))
