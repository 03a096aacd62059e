"""Timers minus what cancels and moves took: transforms of timeline rows, which read and write nothing themselves.

A cancel and a move take every earlier entry of their store and name. local_timeline.py says the same in delta-rs' SQL.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from typing import NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import Window as Over
from pyspark.sql import functions as F

from latermq.handover.window import Window
from latermq.model.pipeline_state import PipelineState
from latermq.pipeline.windows.attempts import KEY, SCHEMA

ENTRY = ("store_id", "entry_offset")
IDENTITY = ("store_id", "timer_id")
# Ranges of delivered entries are cut at multiples of this, so that rows find theirs by equality.
_BUCKET_BITS = 16
_MOST_PARTS = 64
_FEW = 500_000  # rows of names or numbers, at most some 100 MB in memory


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


def taken_entries(scheduled: DataFrame, takers: DataFrame) -> DataFrame:
    """Which entries of `scheduled` a cancel or a move takes: store_id, entry_offset; one may come several times.

    Only narrow columns go through the join, never the records.
    """
    narrow = scheduled.select(*ENTRY, name().alias("name"))
    joined = narrow.join(takers, ["store_id", "name"])
    return joined.where(F.col("taken_at") > F.col("entry_offset")).select(*ENTRY)


def surviving(timeline: DataFrame, cut_entry: int | None = None) -> DataFrame:
    """Timers and moves that nothing took before the cut, one row a timer: its newest entry. All columns."""
    rows = before_entry(timeline, cut_entry)
    scheduled = rows.where(F.col("kind") != "cancel")
    left = scheduled.join(taken_entries(scheduled, takers(rows)), list(ENTRY), "left_anti")
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


class WindowShape(NamedTuple):
    """What is known of a window before its records are read, by which its roll is planned."""

    bounds_ms: Sequence[int]  # the due times at which it is cut into parts
    takers: int  # cancels and moves of its store that may take some of it
    later_entries: int  # rows that are not the first of their timer: moves and what was rolled on


def window_shape(timeline: DataFrame, window: Window, part_rows: int) -> WindowShape:
    """Count, and find out where to cut the window into parts of about so many rows. No record is read for it."""
    of_store = before_entry(timeline, window.cut_entry).where(F.col("store_id") == window.store_id)
    is_taker = F.col("kind") != "timer"
    is_due = (F.col("due_ms") >= window.from_ms) & (F.col("due_ms") < window.until_ms)
    shares = [number / _MOST_PARTS for number in range(1, _MOST_PARTS)]
    counted = of_store.where(is_taker | is_due).agg(
        F.count_if(is_due),
        F.percentile_approx(F.when(is_due, F.col("due_ms")), shares),
        F.count_if(is_taker),
        F.count_if(is_due & (F.col("timer_id") != F.col("entry_offset"))),
    )
    [(rows, dues_ms, takers, later_entries)] = counted.collect()
    parts = min(_MOST_PARTS, -(-rows // part_rows))
    chosen = {dues_ms[number * _MOST_PARTS // parts - 1] for number in range(1, parts)}
    return WindowShape(sorted(chosen - {window.from_ms}), takers, later_entries)


def window_rows(timeline: DataFrame, window: Window, shape: WindowShape) -> DataFrame:
    """What an attempt of the window holds, sorted; what is in the timeline twice comes twice, one behind the other.

    Each part reads what it holds by itself, and most of a table that is clustered by due time it need not read: nothing
    is shuffled, least of all the records.
    """
    far = far_rows_of(timeline, window)
    left = far
    if shape.takers:
        of_store = before_entry(timeline, window.cut_entry).where(F.col("store_id") == window.store_id)
        left = _without(left, taken_entries(far, _sent_if_few(takers(of_store), shape.takers)))
    if shape.later_entries:
        left = _without(left, _rolled_on(far, shape.later_entries))
    ends_ms = (window.from_ms, *shape.bounds_ms, window.until_ms)
    parts = (
        left.where((F.col("due_ms") >= from_ms) & (F.col("due_ms") < until_ms))
        .select(*SCHEMA.names)
        .coalesce(1)
        .sortWithinPartitions(*KEY)
        for from_ms, until_ms in itertools.pairwise(ends_ms)
    )
    return reduce(DataFrame.union, parts)


def _without(rows: DataFrame, gone: DataFrame) -> DataFrame:
    """Entries alone are small enough to be sent to every worker, while the records stay where they are."""
    return rows.join(F.broadcast(gone.select("entry_offset")), "entry_offset", "left_anti")


def _sent_if_few(rows: DataFrame, count: int) -> DataFrame:
    """Rows that are to be joined with many more: while they are few every worker gets all, and nothing is shuffled."""
    return F.broadcast(rows) if count <= _FEW else rows


def _rolled_on(far: DataFrame, later_entries: int) -> DataFrame:
    """Entries of timers that have a newer one among these rows. Only timers with a later entry than their first can."""
    entries = far.select(*IDENTITY, "entry_offset")
    several = entries.where("timer_id <> entry_offset").select(*IDENTITY)
    of_several = entries.join(_sent_if_few(several, later_entries), list(IDENTITY), "left_semi")
    last = F.max("entry_offset").over(Over.partitionBy(*IDENTITY))
    return of_several.withColumn("_last", last).where("entry_offset < _last").select("entry_offset")


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
            & ((F.col("due_ms") < state.done_wake_ms) | _is_done_beyond(state, rows.columns))
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


def is_behind(state: PipelineState) -> bool:
    """Whether T stands still for a window that is missing: then records tell whose a row is, and if it is done."""
    return state.near_done_wake_ms > state.done_wake_ms or bool(state.far_done)


def _is_done_beyond(state: PipelineState, columns: Sequence[str]) -> Column:
    """Whether a row is done that is due after T. Only Spark's own have a record."""
    if not is_behind(state) or "record" not in columns:
        return F.lit(False)
    done = F.col("record").isNull() & (F.col("due_ms") < state.near_done_wake_ms)
    for from_ms, until_ms in state.far_done:
        done |= F.col("record").isNotNull() & (F.col("due_ms") >= from_ms) & (F.col("due_ms") < until_ms)
    return done


def _bucketed(state: PipelineState) -> Iterator[tuple[str, int, int, int]]:
    for start, end in state.done:
        for bucket in range(start >> _BUCKET_BITS, (end - 1 >> _BUCKET_BITS) + 1):
            yield (
                state.store_id,
                bucket,
                max(start, bucket << _BUCKET_BITS),
                min(end, bucket + 1 << _BUCKET_BITS),
            )
