"""Timers minus those that takers end: transforms of rows of the timeline that do no I/O themselves.

A taker ends every earlier entry of the same store and name (a renewal: of the same timer) that is due when the taker
says, or at any time if the taker is unplaced. local_timeline.py states the same rule in delta-rs SQL.

A taker is compared with timers of the same due time only. So a condition on due times, which Spark applies to both
sides of the join, selects the files of that span and no others.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from typing import NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from latermq.handover.window import Window
from latermq.model.pipeline_state import PipelineState
from latermq.pipeline.timeline.data_files import TAKER, TIMER
from latermq.pipeline.timeline.takers import RENEWAL, is_unplaced, name
from latermq.pipeline.windows.attempts import KEY, SCHEMA

ENTRY = ("store_id", "entry_offset")
IDENTITY = ("store_id", "timer_id")
# Ranges of delivered entries are split at multiples of a power of two, so that rows can be joined by equality.
_BUCKET_BITS = 16
MAX_PIECES = 100_000  # of ranges; longer buckets keep to it
_MAX_PARTS = 64
MAX_BROADCAST_ROWS = 500_000  # of names or numbers: at most about 100 MB in memory


class TakerCounts(NamedTuple):
    """The numbers of takers to compare timers with. Few are sent to all tasks; with None, Spark decides by size."""

    placed: int | None = None
    renewals: int | None = None
    unplaced: int | None = None


UNCOUNTED = TakerCounts()


def without_taken(timers: DataFrame, takers: DataFrame, counts: TakerCounts = UNCOUNTED) -> DataFrame:
    """The timers that no taker ends, with all their columns."""
    is_renewal = F.col("kind") == RENEWAL
    is_placed = F.col("due_ms").isNotNull()
    left = timers
    if counts.placed != 0:
        left = _anti_join(left, takers.where(is_placed & ~is_renewal), counts.placed, is_placed=True, key=name())
    if counts.renewals != 0:
        renewals = takers.where(is_placed & is_renewal)
        left = _anti_join(left, renewals, counts.renewals, is_placed=True, key=F.col("timer_id"))
    if counts.unplaced != 0:
        left = _anti_join(left, takers.where(~is_placed), counts.unplaced, is_placed=False, key=name())
    return left


def _anti_join(timers: DataFrame, takers: DataFrame, count: int | None, *, is_placed: bool, key: Column) -> DataFrame:
    """Timers without those that have an equal key and a later taker."""
    other = takers.select(
        F.col("store_id").alias("_store_id"),
        F.col("due_ms").alias("_due_ms"),
        F.col("due").alias("_due"),
        key.alias("_key"),
        F.col("entry_offset").alias("_taker"),
    )
    takes = (
        (F.col("store_id") == F.col("_store_id")) & (key == F.col("_key")) & (F.col("entry_offset") < F.col("_taker"))
    )
    if is_placed:  # both columns, so that a condition on either of them reaches the takers
        takes &= (F.col("due_ms") == F.col("_due_ms")) & (F.col("due") == F.col("_due"))
    return timers.join(_broadcast_if_few(other, count), takes, "left_anti")


def _broadcast_if_few(rows: DataFrame, count: int | None) -> DataFrame:
    """Rows to join with a much larger frame. While they are few, they are broadcast and nothing is shuffled."""
    return F.broadcast(rows) if count is not None and count <= MAX_BROADCAST_ROWS else rows


def surviving_rows(timeline: DataFrame, cut_entry: int | None = None, counts: TakerCounts = UNCOUNTED) -> DataFrame:
    """Timers that no taker before the cut ends, with all columns."""
    rows = timeline if cut_entry is None else timeline.where(F.col("entry_offset") < cut_entry)
    return without_taken(rows.where(F.col("taker") == TIMER), rows.where(F.col("taker") == TAKER), counts)


class WindowShape(NamedTuple):
    """Statistics of a window, gathered before its records are read, to plan its build."""

    bounds_ms: Sequence[int]  # the due times that split it into parts
    takers: TakerCounts


def window_shape(timeline: DataFrame, window: Window, part_rows: int) -> WindowShape:
    """Count rows, and find due times that split the window into parts of about `part_rows`. Reads no records."""
    is_timer, is_renewal = F.col("taker") == TIMER, F.col("kind") == RENEWAL
    is_placed = (F.col("taker") == TAKER) & _is_due_in(window)
    shares = [number / _MAX_PARTS for number in range(1, _MAX_PARTS)]
    counted = _of_window(timeline, window).agg(
        F.count_if(is_timer),
        F.percentile_approx(F.when(is_timer, F.col("due_ms")), shares),
        F.count_if(is_placed & ~is_renewal),
        F.count_if(is_placed & is_renewal),
        F.count_if(is_unplaced()),
    )
    [(rows, dues_ms, *takers)] = counted.collect()
    parts = min(_MAX_PARTS, -(-rows // part_rows))
    chosen = {dues_ms[number * _MAX_PARTS // parts - 1] for number in range(1, parts)}
    return WindowShape(sorted(chosen - {window.from_ms}), TakerCounts(*takers))


def window_rows(timeline: DataFrame, window: Window, shape: WindowShape) -> DataFrame:
    """The rows of an attempt of the window, sorted. Rows that are in the timeline twice come twice, consecutively.

    Each part reads its own rows, and can skip most of the table. Unless there are very many takers, nothing is
    shuffled, least of all the records.
    """
    rows = _of_window(timeline, window)
    far = rows.where((F.col("taker") == TIMER) & F.col("record").isNotNull())
    left = without_taken(far, rows.where(F.col("taker") == TAKER), shape.takers)
    ends_ms = (window.from_ms, *shape.bounds_ms, window.until_ms)
    parts = (
        left.where((F.col("due_ms") >= from_ms) & (F.col("due_ms") < until_ms))
        .select(*SCHEMA.names)
        .coalesce(1)
        .sortWithinPartitions(*KEY)
        for from_ms, until_ms in itertools.pairwise(ends_ms)
    )
    return reduce(DataFrame.union, parts)


def _of_window(timeline: DataFrame, window: Window) -> DataFrame:
    """The timers and takers in a window's span before its cut, and the unplaced takers of its store."""
    return timeline.where(
        (F.col("store_id") == window.store_id)
        & (F.col("entry_offset") < window.cut_entry)
        & (_is_due_in(window) | is_unplaced())
    )


def _is_due_in(window: Window) -> Column:
    return (F.col("due_ms") >= window.from_ms) & (F.col("due_ms") < window.until_ms)


def pending(timeline: DataFrame, states: Iterable[PipelineState], counts: TakerCounts = UNCOUNTED) -> DataFrame:
    """All pending timers of these brokers, near and far: one row each, with all columns of the timeline.

    The timeline lacks entries that are not ingested yet. A caller that needs them must add their rows first.
    """
    known = list(states)
    of_stores = timeline.where(F.col("store_id").isin([state.store_id for state in known]))
    # A renewal takes the earlier entry, so the newest entry decides whether the timer is delivered.
    return without_delivered(surviving_rows(of_stores, counts=counts), known)


def without_delivered(rows: DataFrame, states: Sequence[PipelineState]) -> DataFrame:
    """The rows whose entries no broker reports as delivered, cancelled or moved."""
    for state in states:
        behind = (
            (F.col("store_id") == state.store_id)
            & (F.col("entry_offset") < state.done_upto)
            & ((F.col("due_ms") < state.done_wake_ms) | _is_done_beyond(state, rows.columns))
        )
        rows = rows.where(~behind)
    bits = _bucket_bits(states)
    ranges = [piece for state in states for piece in _bucketed(state, bits)]
    if not ranges:
        return rows
    done = rows.sparkSession.createDataFrame(ranges, "store_id string, _bucket bigint, _start bigint, _end bigint")
    placed = rows.withColumn("_bucket", F.shiftright("entry_offset", bits))
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


def _bucket_bits(states: Sequence[PipelineState]) -> int:
    """The size of buckets, as a power of two: long enough that long ranges do not become too many pieces."""
    ranges = sum(len(state.done) for state in states)
    length = sum(end - start for state in states for start, end in state.done)
    bits = _BUCKET_BITS
    while (length >> bits) + 2 * ranges > max(MAX_PIECES, 3 * ranges):
        bits += 1
    return bits


def _bucketed(state: PipelineState, bits: int) -> Iterator[tuple[str, int, int, int]]:
    for start, end in state.done:
        for bucket in range(start >> bits, (end - 1 >> bits) + 1):
            yield (state.store_id, bucket, max(start, bucket << bits), min(end, bucket + 1 << bits))
