"""All timers that wait, near and far, of all brokers, as one table; and the timeline as it was at another time."""

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import reduce
from typing import NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from latermq.errors import ConfigError, QueryNotFound
from latermq.message.names import TIMER_TOPIC
from latermq.message.record_fields import (
    BETWEEN_HOSTS,
    BODY_LENGTH_BEHIND_HOSTS,
    BORN_HOST_AT,
    SYSFLAG_AT,
    SYSFLAG_BORN_V6,
    SYSFLAG_STORE_V6,
    V4_HOST_BYTES,
    V6_HOST_BYTES,
)
from latermq.model.pipeline_state import PipelineState
from latermq.pipeline.bulk.bulk_job import find_namesrv, find_root
from latermq.pipeline.driver.brokers import QueuePlace
from latermq.pipeline.driver.known_stores import Brokers, KnownBroker, find_brokers
from latermq.pipeline.source.options import SourceOptions
from latermq.pipeline.source.part_frames import TopicPart, read_parts
from latermq.pipeline.source.ranges import parts
from latermq.pipeline.spark.spark_failures import told_by_spark
from latermq.pipeline.timeline.local_timeline import LocalTimeline, open_local_timeline
from latermq.pipeline.timeline.ownership import ownership_of
from latermq.pipeline.timeline.root import Root
from latermq.pipeline.timeline.timeline import SCHEMA, ingest_app
from latermq.pipeline.windows import survivors
from latermq.pipeline.windows.local_build import tail_start

COLUMNS = (
    "store_id", "timer_id", "entry_offset", "due_ms", "due", "topic", "unique_key", "keys", "tags", "body_bytes",
    "record",
)  # fmt: skip
VIEW = "pending"
# Between the addresses of a record's hosts and its body: store time, reconsume times, prepared transaction.


class Seen(NamedTuple):
    """Every timer that waits, and who was asked for it."""

    rows: DataFrame
    brokers: Brokers


def look(
    spark: SparkSession, root: Root | str | None = None, namesrv: str | None = None, *, allow_partial: bool = False
) -> Seen:
    """Every timer that waits now, one row each: all that was acknowledged before and is not delivered yet."""
    folder, servers = find_root(root), find_namesrv(namesrv)
    # The state first: what is ingested from then on is read twice, not never.
    brokers = find_brokers(folder, servers, allow_partial=allow_partial)
    states = [broker.state for broker in brokers.present]
    return Seen(pending_rows(all_entries(spark, folder, brokers.present), states), brokers)


def pending(
    spark: SparkSession,
    root: Root | str | None = None,
    namesrv: str | None = None,
    *,
    view: str = VIEW,
    allow_partial: bool = False,
) -> DataFrame:
    """Every timer that waits, one row each; also the temporary view `pending`.

    It is what the brokers had acknowledged and not delivered when this was called: reading it later gives the same
    rows. A broker that is away is an error; with `allow_partial` a warning names it, and its timers are left out.
    """
    seen = look(spark, root, namesrv, allow_partial=allow_partial)
    if seen.brokers.absent:
        warnings.warn(f"`{view}` lacks the timers of {', '.join(seen.brokers.absent)}", stacklevel=2)
    seen.rows.createOrReplaceTempView(view)
    return seen.rows


def pending_rows(entries: DataFrame, states: Iterable[PipelineState]) -> DataFrame:
    """Timeline rows and those not ingested yet → what waits, under the columns of `pending`."""
    return shown(survivors.pending(entries, states))


def shown(rows: DataFrame) -> DataFrame:
    """Rows of the timeline under the columns of `pending`."""
    named = rows.withColumn("due", F.timestamp_millis("due_ms")).withColumn("body_bytes", body_bytes(F.col("record")))
    return named.select(*COLUMNS)


def all_entries(
    spark: SparkSession, root: Root, brokers: Iterable[KnownBroker], columns: Sequence[str] = SCHEMA.names
) -> DataFrame:
    """The timeline in its newest version, and behind it what each broker has flushed that is not in it: each once.

    Who needs no records leaves them out of the columns: they are most of what is pulled.
    """
    table = open_local_timeline(root, "")
    stored = _read(spark, root, table.version) if table is not None else spark.createDataFrame([], SCHEMA)
    frames = [stored.select(*columns)]
    for broker in brokers:
        start = tail_start(root, broker.state, _of_store(table, broker.state.store_id))
        if start < broker.state.flushed_entry:
            frames.append(tail(spark, broker, start, columns))
    return reduce(DataFrame.unionByName, frames)


def _of_store(table: LocalTimeline | None, store_id: str) -> LocalTimeline | None:
    """The very same version, and how far it goes for this store."""
    if table is None:
        return None
    return replace(table, ingested=table.table.transaction_version(ingest_app(store_id)) or 0)


def tail(spark: SparkSession, broker: KnownBroker, start: int, columns: Sequence[str]) -> DataFrame:
    """The entries of a broker from `start` to the last that was flushed, as rows of the timeline."""
    read = ["queue_offset", *(name for name in columns if name not in ("store_id", "entry_offset"))]
    options = SourceOptions(TIMER_TOPIC, timeline=True)
    place = QueuePlace(broker.name, 0, broker.address)
    owned = ownership_of(broker.state)
    found = parts(place, start, broker.state.flushed_entry, options.max_rows_per_partition, owned)
    rows = read_parts(spark, [TopicPart(options, part) for part in found], read)
    named = rows.withColumnRenamed("queue_offset", "entry_offset").withColumn("store_id", F.lit(broker.state.store_id))
    return named.select(*columns)


def body_bytes(record: Column) -> Column:
    """How long the body in a record is; NULL where the record is not kept, as of near timers."""

    def word(at: Column) -> Column:
        return F.conv(F.hex(F.substring(record, at + 1, F.lit(4))), 16, 10).cast("int")

    flags = word(F.lit(SYSFLAG_AT))
    born = F.when(flags.bitwiseAND(SYSFLAG_BORN_V6) != 0, V6_HOST_BYTES).otherwise(V4_HOST_BYTES)
    stored = F.when(flags.bitwiseAND(SYSFLAG_STORE_V6) != 0, V6_HOST_BYTES).otherwise(V4_HOST_BYTES)
    return F.when(
        record.isNotNull(), word(F.lit(BORN_HOST_AT) + born + BETWEEN_HOSTS.size + stored + BODY_LENGTH_BEHIND_HOSTS)
    )


def read_timeline(
    spark: SparkSession,
    root: Root | str | None = None,
    *,
    version: int | None = None,
    timestamp: str | None = None,
) -> DataFrame:
    """The timeline as it is, as it was in a version, or as it was at a time (`2027-01-01 00:00:00`, in UTC)."""
    folder = find_root(root)
    if version is not None and timestamp is not None:
        raise ConfigError("a version and a time were given", hint="Give one of them")
    if open_local_timeline(folder, "") is None:
        raise QueryNotFound(f"there is no timeline at {folder.timeline}", hint="The pipeline makes it at its first run")
    return _read(spark, folder, version, timestamp)


def _read(spark: SparkSession, root: Root, version: int | None, timestamp: str | None = None) -> DataFrame:
    reader = spark.read.format("delta")
    if version is not None:
        reader = reader.option("versionAsOf", version)
    if timestamp is not None:
        reader = reader.option("timestampAsOf", timestamp)
    with told_by_spark(f"reading {root.timeline}"):
        return reader.load(root.timeline)
