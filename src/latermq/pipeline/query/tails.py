"""The entries that a broker has flushed and that the timeline lacks, as rows of the timeline.

A query reads these rows several times: as timers, and as each kind of takers. While they are few they are pulled once,
by the caller, and become part of the query. Otherwise Spark's tasks pull them each time.
"""

from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from latermq.message.names import TIMER_TOPIC
from latermq.pipeline.driver.brokers import QueuePlace
from latermq.pipeline.driver.ingest import INGESTED_COLUMNS
from latermq.pipeline.driver.known_stores import KnownBroker
from latermq.pipeline.source.options import SourceOptions
from latermq.pipeline.source.part_frames import TopicPart, read_parts
from latermq.pipeline.source.ranges import QueuePart, parts
from latermq.pipeline.source.reader import read_part
from latermq.pipeline.source.records import COLUMN_TYPES
from latermq.pipeline.timeline.ownership import ownership_of
from latermq.pipeline.timeline.takers import with_takers
from latermq.pipeline.windows.survivors import TakerCounts

# A tail up to both limits is pulled by the caller. Half a minute of 1,600 timers per second is below them.
HELD_ENTRIES = 50_000
HELD_BYTES = 16 << 20

_OPTIONS = SourceOptions(TIMER_TOPIC, timeline=True)
_DUE_TIMES = r"^[0-9]+(,[0-9]+)*$"


class Tail(NamedTuple):
    """Rows of the timeline, and at most how many of them are takers."""

    rows: DataFrame
    takers: TakerCounts


def read_tail(spark: SparkSession, broker: KnownBroker, start: int, columns: Sequence[str]) -> Tail:
    """The entries of a broker from `start` to the last flushed one."""
    read = [name for name in INGESTED_COLUMNS if name != "record" or name in columns]
    place = QueuePlace(broker.name, 0, broker.address)
    entries = broker.state.flushed_entry - start
    chosen = parts(
        place, start, broker.state.flushed_entry, _OPTIONS.max_rows_per_partition, ownership_of(broker.state)
    )
    held = _pulled(chosen, read) if entries <= HELD_ENTRIES else None
    if held is None:
        rows = read_parts(spark, [TopicPart(_OPTIONS, part) for part in chosen], read)
        takers = TakerCounts(entries, entries, entries)
    else:
        rows, takers = _frame(spark, held), count_takers(held)
    named = rows.withColumnRenamed("queue_offset", "entry_offset").withColumn("store_id", F.lit(broker.state.store_id))
    return Tail(with_takers(named).select(*columns), takers)


def _frame(spark: SparkSession, held: pa.Table) -> DataFrame:
    if held.num_rows:
        return spark.createDataFrame(held)
    return spark.createDataFrame([], from_arrow_schema(held.schema))  # Spark Connect takes no empty table


def _pulled(chosen: Sequence[QueuePart], columns: Sequence[str]) -> pa.Table | None:
    """The records of these parts; None if they are too long to hold."""
    batches, size_bytes = [], 0
    for part in chosen:
        for batch in read_part(part, columns, _OPTIONS):
            size_bytes += batch.nbytes
            if size_bytes > HELD_BYTES:
                return None
            batches.append(batch)
    return pa.Table.from_batches(batches, pa.schema([(name, COLUMN_TYPES[name]) for name in columns]))


def count_takers(entries: pa.Table) -> TakerCounts:
    """How many takers these entries become. Those with unclear due times count as placed and as unplaced."""
    kinds, takes = entries["kind"], entries["takes"]
    is_change = pc.is_in(kinds, pa.array(["cancel", "move"], kinds.type))
    is_renewal = pc.and_(pc.invert(is_change), pc.not_equal(entries["timer_id"], entries["queue_offset"]))
    is_placed = pc.fill_null(pc.match_substring_regex(takes, _DUE_TIMES), False)
    dues = pc.fill_null(pc.add(pc.count_substring(takes, ","), 1), 0)
    return TakerCounts(
        pc.sum(pc.if_else(is_change, dues, 0)).as_py() or 0,
        pc.sum(is_renewal).as_py() or 0,
        pc.sum(pc.and_(is_change, pc.invert(is_placed))).as_py() or 0,
    )
