"""Timers minus the cancelled and moved ones: transforms of timeline rows that do no I/O themselves.

A cancellation or a move cancels every earlier entry of the same store and name. local_timeline.py states the same rule
in delta-rs SQL.
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
# Ranges of delivered entries are split at multiples of this, so that rows can be joined by equality.
_BUCKET_BITS = 16
_MAX_PARTS = 64
_MAX_BROADCAST_ROWS = 500_000  # rows of names or numbers: at most about 100 MB in memory


def name() -> Column:
    """The name of a row. A cancellation holds the full name as its unique key."""
    whole = F.concat(F.col("topic"), F.lit("+"), F.col("unique_key"))
    return F.when(F.col("kind") == "cancel", F.col("unique_key")).otherwise(whole)


def last_changes(timeline: DataFrame) -> DataFrame:
    """The last entry that cancelled or moved each name: store_id, name, changed_at."""
    changes = timeline.where(F.col("kind") != "timer").select("store_id", name().alias("name"), "entry_offset")
    return changes.groupBy("store_id", "name").agg(F.max("entry_offset").alias("changed_at"))


def before_entry(timeline: DataFrame, cut_entry: int | None) -> DataFrame:
    """The rows before a cut, or all rows."""
    return timeline if cut_entry is None else timeline.where(F.col("entry_offset") < cut_entry)


def cancelled_entries(scheduled: DataFrame, changes: DataFrame) -> DataFrame:
    """The entries of `scheduled` that a cancellation or a move cancels: store_id, entry_offset, possibly repeated.

    Only narrow columns go through the join, never the records.
    """
    narrow = scheduled.select(*ENTRY, name().alias("name"))
    joined = narrow.join(changes, ["store_id", "name"])
    return joined.where(F.col("changed_at") > F.col("entry_offset")).select(*ENTRY)


def surviving_rows(timeline: DataFrame, cut_entry: int | None = None) -> DataFrame:
    """Timers and moves not cancelled or moved before the cut: one row per timer, its newest entry, with all columns."""
    rows = before_entry(timeline, cut_entry)
    scheduled = rows.where(F.col("kind") != "cancel")
    left = scheduled.join(cancelled_entries(scheduled, last_changes(rows)), list(ENTRY), "left_anti")
    return newest_of_each_timer(left)


def newest_of_each_timer(rows: DataFrame) -> DataFrame:
    """One row per timer identity. Each renewal of a timer adds an entry."""
    newest = Over.partitionBy(*IDENTITY).orderBy(F.col("entry_offset").desc())
    return rows.withColumn("_place", F.row_number().over(newest)).where("_place = 1").select(*rows.columns)


def far_rows_of(timeline: DataFrame, window: Window) -> DataFrame:
    """The far rows that are due in the window, including cancelled and moved ones."""
    return before_entry(timeline, window.cut_entry).where(
        (F.col("store_id") == window.store_id)
        & (F.col("kind") != "cancel")
        & F.col("record").isNotNull()
        & (F.col("due_ms") >= window.from_ms)
        & (F.col("due_ms") < window.until_ms)
    )


class WindowShape(NamedTuple):
    """Statistics of a window, gathered before its records are read, to plan its build."""

    bounds_ms: Sequence[int]  # the due times that split it into parts
    changes: int  # cancellations and moves of its store that may affect it
    later_entries: int  # rows that are not the first of their timer: moves and renewals


def window_shape(timeline: DataFrame, window: Window, part_rows: int) -> WindowShape:
    """Count rows, and find due times that split the window into parts of about `part_rows`. Reads no records."""
    of_store = before_entry(timeline, window.cut_entry).where(F.col("store_id") == window.store_id)
    is_change = F.col("kind") != "timer"
    is_due = (F.col("due_ms") >= window.from_ms) & (F.col("due_ms") < window.until_ms)
    shares = [number / _MAX_PARTS for number in range(1, _MAX_PARTS)]
    counted = of_store.where(is_change | is_due).agg(
        F.count_if(is_due),
        F.percentile_approx(F.when(is_due, F.col("due_ms")), shares),
        F.count_if(is_change),
        F.count_if(is_due & (F.col("timer_id") != F.col("entry_offset"))),
    )
    [(rows, dues_ms, changes, later_entries)] = counted.collect()
    parts = min(_MAX_PARTS, -(-rows // part_rows))
    chosen = {dues_ms[number * _MAX_PARTS // parts - 1] for number in range(1, parts)}
    return WindowShape(sorted(chosen - {window.from_ms}), changes, later_entries)


def window_rows(timeline: DataFrame, window: Window, shape: WindowShape) -> DataFrame:
    """The rows of an attempt of the window, sorted. Rows that are in the timeline twice come twice, consecutively.

    Each part reads its own rows. It can skip most of a table that is clustered by due time. Nothing is shuffled, least
    of all the records.
    """
    far = far_rows_of(timeline, window)
    left = far
    if shape.changes:
        of_store = before_entry(timeline, window.cut_entry).where(F.col("store_id") == window.store_id)
        left = _without(left, cancelled_entries(far, _broadcast_if_small(last_changes(of_store), shape.changes)))
    if shape.later_entries:
        left = _without(left, _superseded_entries(far, shape.later_entries))
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
    """Rows except the `gone` entries. Entries alone are small enough to broadcast, while the records stay in place."""
    return rows.join(F.broadcast(gone.select("entry_offset")), "entry_offset", "left_anti")


def _broadcast_if_small(rows: DataFrame, count: int) -> DataFrame:
    """Rows to join with a much larger frame. While they are few, they are broadcast and nothing is shuffled."""
    return F.broadcast(rows) if count <= _MAX_BROADCAST_ROWS else rows


def _superseded_entries(far: DataFrame, later_entries: int) -> DataFrame:
    """Entries with a newer entry of the same timer among these rows.

    Only timers with more than one entry can have them.
    """
    entries = far.select(*IDENTITY, "entry_offset")
    several = entries.where("timer_id <> entry_offset").select(*IDENTITY)
    of_several = entries.join(_broadcast_if_small(several, later_entries), list(IDENTITY), "left_semi")
    last = F.max("entry_offset").over(Over.partitionBy(*IDENTITY))
    return of_several.withColumn("_last", last).where("entry_offset < _last").select("entry_offset")


def pending(timeline: DataFrame, states: Iterable[PipelineState]) -> DataFrame:
    """All pending timers of these brokers, near and far: one row each, with all columns of the timeline.

    The timeline lacks entries that are not ingested yet. A caller that needs them must add their rows first.
    """
    known = list(states)
    of_stores = timeline.where(F.col("store_id").isin([state.store_id for state in known]))
    # A renewal leaves the earlier entry behind, so the newest entry decides whether the timer is delivered.
    return without_delivered(surviving_rows(of_stores), known)


def without_delivered(rows: DataFrame, states: Sequence[PipelineState]) -> DataFrame:
    """The rows whose entries no broker reports as delivered, cancelled or moved."""
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


def is_stalled(state: PipelineState) -> bool:
    """Whether T is stalled by a missing window.

    Then the presence of a record tells far rows from near ones, and each kind has its own rule for what is done.
    """
    return state.near_done_wake_ms > state.done_wake_ms or bool(state.far_done)


def _is_done_beyond(state: PipelineState, columns: Sequence[str]) -> Column:
    """Whether a row that is due after T is done. Only far rows have a record."""
    if not is_stalled(state) or "record" not in columns:
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
