"""All pending timers of all brokers, near and far, as one table, and the timeline at an earlier version or time."""

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import reduce
from typing import NamedTuple

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from latermq.errors import ConfigError, QueryNotFound
from latermq.message.record_fields import (
    BETWEEN_HOSTS,
    BODY_LENGTH_AFTER_HOSTS,
    BORN_HOST_AT,
    SYSFLAG_AT,
    SYSFLAG_BORN_V6,
    SYSFLAG_STORE_V6,
    V4_HOST_BYTES,
    V6_HOST_BYTES,
)
from latermq.model.pipeline_state import PipelineState
from latermq.pipeline.bulk.bulk_job import find_namesrv, find_root
from latermq.pipeline.driver.known_stores import Brokers, KnownBroker, find_brokers
from latermq.pipeline.query.tails import read_tail
from latermq.pipeline.spark.spark_failures import spark_errors
from latermq.pipeline.timeline.data_files import data_files
from latermq.pipeline.timeline.delta_reads import read_error
from latermq.pipeline.timeline.local_timeline import LocalTimeline, open_local_timeline
from latermq.pipeline.timeline.root import Root
from latermq.pipeline.timeline.takers import in_layout_2
from latermq.pipeline.timeline.timeline import SCHEMA, ingest_app
from latermq.pipeline.windows import survivors
from latermq.pipeline.windows.local_build import tail_start

COLUMNS = (
    "store_id", "timer_id", "entry_offset", "due_ms", "due", "topic", "unique_key", "keys", "tags", "body_bytes",
    "record",
)  # fmt: skip
VIEW = "pending"
# Tables of up to this many files are read without Delta's planning, which takes half a second, and several seconds for
# the first query of a Spark. It skips files by a condition on due times, which pays off when there are more: here the
# footers of all files are read. Between two compactions ingest adds about 100 files. Sorted ones have up to 128 MiB.
MAX_NAMED_FILES = 256
# Spark's own name for an option that lets a path have characters like [ and *.
_GLOB_OPTION = "__globPaths__"


class Entries(NamedTuple):
    """Rows of the timeline, and at most how many of them are takers."""

    rows: DataFrame
    takers: survivors.TakerCounts


class PendingTimers(NamedTuple):
    """All pending timers, and the brokers that were queried."""

    rows: DataFrame
    brokers: Brokers


def read_pending(
    spark: SparkSession, root: Root | str | None = None, namesrv: str | None = None, *, allow_partial: bool = False
) -> PendingTimers:
    """All timers that are pending now, one row each: everything acknowledged so far and not yet delivered."""
    folder, servers = find_root(root, namesrv), find_namesrv(namesrv)
    # Fetch the state first: entries ingested after that are read twice rather than not at all.
    brokers = find_brokers(folder, servers, allow_partial=allow_partial)
    states = [broker.state for broker in brokers.present]
    entries = all_entries(spark, folder, brokers.present)
    return PendingTimers(pending_rows(entries.rows, states, entries.takers), brokers)


def pending(
    spark: SparkSession,
    root: Root | str | None = None,
    namesrv: str | None = None,
    *,
    view: str = VIEW,
    allow_partial: bool = False,
) -> DataFrame:
    """All pending timers, one row each; also registers the temporary view `pending`.

    The rows are those that the brokers had acknowledged and not delivered at the time of the call. Reading the frame
    later gives the same rows. An unreachable broker is an error. With `allow_partial` a warning names it, and its
    timers are left out.
    """
    found_timers = read_pending(spark, root, namesrv, allow_partial=allow_partial)
    if found_timers.brokers.absent:
        warnings.warn(f"`{view}` lacks the timers of {', '.join(found_timers.brokers.absent)}", stacklevel=2)
    found_timers.rows.createOrReplaceTempView(view)
    return found_timers.rows


def pending_rows(
    entries: DataFrame, states: Iterable[PipelineState], counts: survivors.TakerCounts = survivors.UNCOUNTED
) -> DataFrame:
    """The pending timers among rows of the timeline and entries not yet ingested, in the columns of `pending`."""
    return shown(survivors.pending(entries, states, counts))


def shown(rows: DataFrame) -> DataFrame:
    """Rows of the timeline in the columns of `pending`."""
    return rows.withColumn("body_bytes", body_bytes(F.col("record"))).select(*COLUMNS)


def all_entries(
    spark: SparkSession, root: Root, brokers: Iterable[KnownBroker], columns: Sequence[str] = SCHEMA.names
) -> Entries:
    """The newest version of the timeline, plus each broker's flushed entries that it lacks, without duplicates.

    Callers that need no records should leave out that column: records are most of the pulled data.
    """
    table = open_local_timeline(root, "")
    stored = stored_rows(spark, root, table) if table is not None else spark.createDataFrame([], SCHEMA)
    frames = [stored.select(*columns)]
    counts = [stored_takers(table)]
    for broker in brokers:
        start = tail_start(root, broker.state, _of_store(table, broker.state.store_id))
        if start < broker.state.flushed_entry:
            rows, takers = read_tail(spark, broker, start, columns)
            frames.append(rows)
            counts.append(takers)
    total = survivors.TakerCounts(*(sum(count or 0 for count in kind) for kind in zip(*counts, strict=True)))
    return Entries(reduce(DataFrame.unionByName, frames), total)


def stored_rows(spark: SparkSession, root: Root, table: LocalTimeline) -> DataFrame:
    """The rows of a version of the timeline: read from its files directly, or through Delta if there are many."""
    files = data_files(table.table)
    if not 0 < len(files) <= MAX_NAMED_FILES or not root.is_local or not _are_plain(table):
        return _read(spark, root, table.version)
    # Without the first option, names of folders above the timeline could become columns.
    reader = spark.read.schema(SCHEMA).option("recursiveFileLookup", True).option(_GLOB_OPTION, False)
    try:
        return reader.parquet(*(f"{root.timeline}/{file.path}" for file in files))
    except PySparkException as error:  # a file is missing
        raise read_error(root, root.timeline, error) from error


def _are_plain(table: LocalTimeline) -> bool:
    """Whether each row of the files is a row of the table, in its columns."""
    return table.layout == 2 and table.table.protocol().min_reader_version == 1


def stored_takers(table: LocalTimeline | None) -> survivors.TakerCounts:
    """How many takers a version of the timeline has."""
    return survivors.TakerCounts(*(table.taker_counts() if table is not None else (0, 0, 0)))


def _of_store(table: LocalTimeline | None, store_id: str) -> LocalTimeline | None:
    """The same version, with the ingest progress of this store."""
    return None if table is None else replace(table, ingested=_ingested(table, store_id))


def _ingested(table: LocalTimeline | None, store_id: str) -> int:
    return 0 if table is None else table.table.transaction_version(ingest_app(store_id)) or 0


def body_bytes(record: Column) -> Column:
    """The body length of a record; NULL where the record is not kept, as for near timers."""

    def word(at: Column) -> Column:
        return F.conv(F.hex(F.substring(record, at + 1, F.lit(4))), 16, 10).cast("int")

    flags = word(F.lit(SYSFLAG_AT))
    born = F.when(flags.bitwiseAND(SYSFLAG_BORN_V6) != 0, V6_HOST_BYTES).otherwise(V4_HOST_BYTES)
    stored = F.when(flags.bitwiseAND(SYSFLAG_STORE_V6) != 0, V6_HOST_BYTES).otherwise(V4_HOST_BYTES)
    return F.when(
        record.isNotNull(), word(F.lit(BORN_HOST_AT) + born + BETWEEN_HOSTS.size + stored + BODY_LENGTH_AFTER_HOSTS)
    )


def read_timeline(
    spark: SparkSession,
    root: Root | str | None = None,
    *,
    version: int | None = None,
    timestamp: str | None = None,
) -> DataFrame:
    """The timeline now, at a version, or at a time (`2027-01-01 00:00:00`, in UTC)."""
    folder = find_root(root)
    if version is not None and timestamp is not None:
        raise ConfigError("both a version and a time were given", hint="Give one of them")
    if open_local_timeline(folder, "") is None:
        raise QueryNotFound(
            f"there is no timeline at {folder.timeline}", hint="The pipeline creates it at its first run"
        )
    return _read(spark, folder, version, timestamp)


def _read(spark: SparkSession, root: Root, version: int | None, timestamp: str | None = None) -> DataFrame:
    reader = spark.read.format("delta")
    if version is not None:
        reader = reader.option("versionAsOf", version)
    if timestamp is not None:
        reader = reader.option("timestampAsOf", timestamp)
    with spark_errors(f"reading {root.timeline}"):
        return in_layout_2(reader.load(root.timeline))
