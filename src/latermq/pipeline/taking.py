"""Timers minus what cancels and moves took: transforms of timeline rows, which read and write nothing themselves.

A cancel and a move take every earlier entry of their store and name. local_timeline.py says the same in delta-rs' SQL.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import Window as Over
from pyspark.sql import functions as F

from latermq.pipeline.attempts import KEY, SCHEMA
from latermq.pipeline.window import Window
from latermq.protocol.remoting.pipeline_bodies import PipelineState

ENTRY = ("store_id", "entry_offset")
IDENTITY = ("store_id", "timer_id")
# Ranges of delivered entries are cut at multiples of this, so that rows find theirs by equality.
_BUCKET_BITS = 16


def name() -> Column:
    """What a row is called; a cancel has the whole name as its unique key."""
    whole = F.concat(F.col("topic"), F.lit("+"), F.col("unique_key"))
    return F.when(F.col("kind") == "cancel", F.col("unique_key")).otherwise(whole)


def takers(timeline: DataFrame) -> DataFrame:
    """The last entry by which each name was taken: store_id, name, taken_at."""
    taking = timeline.where(F.col("kind") != "timer").select("store_id", name().alias("name"), "entry_offset")
    return taking.groupBy("store_id", "name").agg(F.max("entry_offset").alias("taken_at"))


def before_entry(timeline: DataFrame, cut_entry: int | None) -> DataFrame:
    """The rows that stand before a cut, or all."""
    return timeline if cut_entry is None else timeline.where(F.col("entry_offset") < cut_entry)


def taken_entries(scheduled: DataFrame, timeline: DataFrame) -> DataFrame:
    """Which entries of `scheduled` a cancel or a move of the timeline takes: store_id, entry_offset.

    Only narrow columns go through the join, never the records.
    """
    narrow = scheduled.select(*ENTRY, name().alias("name"))
    joined = narrow.join(takers(timeline), ["store_id", "name"])
    return joined.where(F.col("taken_at") > F.col("entry_offset")).select(*ENTRY).distinct()


def surviving(timeline: DataFrame, cut_entry: int | None = None) -> DataFrame:
    """Timers and moves that nothing took before the cut, one row a timer: its newest entry. All columns."""
    rows = before_entry(timeline, cut_entry)
    scheduled = rows.where(F.col("kind") != "cancel")
    left = scheduled.join(taken_entries(scheduled, rows), list(ENTRY), "left_anti")
    return newest_of_each_timer(left)


def newest_of_each_timer(rows: DataFrame) -> DataFrame:
    """One row an identity. A timer that was rolled has an entry for each roll."""
    newest = Over.partitionBy(*IDENTITY).orderBy(F.col("entry_offset").desc())
    return rows.withColumn("_place", F.row_number().over(newest)).where("_place = 1").select(*rows.columns)


def far_rows_of(timeline: DataFrame, window: Window) -> DataFrame:
    """What was Spark's and is due in the window, taken or not."""
    return before_entry(timeline, window.cut_entry).where(
        (F.col("store_id") == window.store_id)
        & (F.col("kind") != "cancel")
        & F.col("record").isNotNull()
        & (F.col("due_ms") >= window.from_ms)
        & (F.col("due_ms") < window.until_ms)
    )


def window_rows(timeline: DataFrame, window: Window, bounds_ms: Sequence[int] = ()) -> DataFrame:
    """What an attempt of the window holds, sorted; a row that is there twice comes once.

    `bounds_ms` are the due times at which it is cut into partitions. Each reads what it holds by itself, and most of a
    table that is clustered by due time it need not read: nothing is shuffled, least of all the records.
    """
    far = far_rows_of(timeline, window)
    of_store = before_entry(timeline, window.cut_entry).where(F.col("store_id") == window.store_id)
    gone = taken_entries(far, of_store).select("entry_offset").union(_rolled_on(far))
    # Entries alone: small enough to be sent to every worker, while the records stay where they are.
    left = far.join(F.broadcast(gone), "entry_offset", "left_anti").select(*SCHEMA.names)
    ends_ms = (window.from_ms, *bounds_ms, window.until_ms)
    parts = (
        _sorted_once(left.where((F.col("due_ms") >= from_ms) & (F.col("due_ms") < until_ms)))
        for from_ms, until_ms in itertools.pairwise(ends_ms)
    )
    return reduce(DataFrame.union, parts)


def _sorted_once(rows: DataFrame) -> DataFrame:
    """The rows as one sorted partition.

    Of a timer one entry is left, so what follows a row with the same due and timer is that row again. The window
    function wants the order that the rows have by then: they are sorted once.
    """
    again = Over.partitionBy(*KEY[:2]).orderBy(KEY[2])
    ordered = rows.coalesce(1).sortWithinPartitions(*KEY)
    return ordered.withColumn("_place", F.row_number().over(again)).where("_place = 1").select(*SCHEMA.names)


def _rolled_on(far: DataFrame) -> DataFrame:
    """Entries of timers that have a newer one among these rows."""
    last = F.max("entry_offset").over(Over.partitionBy(*IDENTITY))
    placed = far.select(*IDENTITY, "entry_offset").withColumn("_last", last)
    return placed.where("entry_offset < _last").select("entry_offset")


def pending(timeline: DataFrame, states: Iterable[PipelineState]) -> DataFrame:
    """All timers of these brokers that wait, near and far: one row each, with all columns of the timeline.

    What is not ingested yet is not in the timeline; whoever wants it adds its rows to it first.
    """
    known = list(states)
    of_stores = timeline.where(F.col("store_id").isin([state.store_id for state in known]))
    # A roll leaves the entry before it behind: the newest decides whether the timer is delivered.
    return without_delivered(surviving(of_stores), known)


def without_delivered(rows: DataFrame, states: Sequence[PipelineState]) -> DataFrame:
    """The rows whose entries no broker tells to be delivered or taken."""
    for state in states:
        behind = (
            (F.col("store_id") == state.store_id)
            & (F.col("entry_offset") < state.done_upto)
            & (F.col("due_ms") < state.done_wake_ms)
        )
        rows = rows.where(~behind)
    ranges = [piece for state in states for piece in _bucketed(state)]
    if not ranges:
        return rows
    done = rows.sparkSession.createDataFrame(ranges, "store_id string, _bucket bigint, _start bigint, _end bigint")
    placed = rows.withColumn("_bucket", F.shiftright("entry_offset", _BUCKET_BITS))
    inside = (
        (placed.store_id == done.store_id)
        & (placed._bucket == done._bucket)
        & (placed.entry_offset >= done._start)
        & (placed.entry_offset < done._end)
    )
    return placed.join(F.broadcast(done), inside, "left_anti").drop("_bucket")


def _bucketed(state: PipelineState) -> Iterator[tuple[str, int, int, int]]:
    for start, end in state.done:
        for bucket in range(start >> _BUCKET_BITS, (end - 1 >> _BUCKET_BITS) + 1):
            yield (
                state.store_id,
                bucket,
                max(start, bucket << _BUCKET_BITS),
                min(end, bucket + 1 << _BUCKET_BITS),
            )
