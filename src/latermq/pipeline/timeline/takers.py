"""Takers: rows of the timeline that end timers. Each stands at the due time of a timer that it ends.

A cancel, a move or a renewal ends earlier entries. It becomes one taker for each due time at which there are such
entries, so that a reader of a span of due times finds there what ends the timers of that span. If these due times are
unknown, it becomes one *unplaced* taker, without a due time. Transforms without I/O.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from latermq.pipeline.timeline.data_files import TAKER, TIMER

RENEWAL = "renewal"


def name() -> Column:
    """The name of a row. A cancel holds the full name as its unique key."""
    whole = F.concat(F.col("topic"), F.lit("+"), F.col("unique_key"))
    return F.when(F.col("kind") == "cancel", F.col("unique_key")).otherwise(whole)


def with_takers(entries: DataFrame) -> DataFrame:
    """Timers and takers of these entries of timer topics: the columns of the timeline, without `takes`."""
    is_taker = F.col("taker") == TAKER
    rows = entries.withColumn("_row", F.explode(_rows_of_entry())).drop("due_ms", "takes")
    rows = rows.withColumns({"taker": F.col("_row.taker"), "due_ms": F.col("_row.due_ms")}).drop("_row")
    changed = {
        "kind": F.when(is_taker & (F.col("kind") == "timer"), RENEWAL).otherwise(F.col("kind")),
        "due": F.timestamp_millis("due_ms"),
    }
    if "record" in rows.columns:
        changed["record"] = F.when(~is_taker, F.col("record"))
    return rows.withColumns(changed)


def _rows_of_entry() -> Column:
    """The rows that one entry becomes: an array of `taker` and `due_ms`."""
    own = F.array(_row(TIMER, F.col("due_ms")))
    # A text that is not a number, which no broker writes, is an unknown place.
    places = F.transform(F.split("takes", ","), lambda text: text.try_cast("bigint"))
    unplaced = F.array(F.lit(None).cast("bigint"))
    takers = F.transform(F.coalesce(places, unplaced), lambda due_ms: _row(TAKER, due_ms))
    is_renewal = F.col("timer_id") != F.col("entry_offset")
    return (
        F.when(F.col("kind") == "cancel", takers)
        .when(F.col("kind") == "move", F.concat(own, takers))
        # A renewal has the due time of the entry that it renews.
        .when(is_renewal, F.array(_row(TIMER, F.col("due_ms")), _row(TAKER, F.col("due_ms"))))
        .otherwise(own)
    )


def _row(taker: int, due_ms: Column) -> Column:
    return F.struct(F.lit(taker).alias("taker"), due_ms.alias("due_ms"))


def in_layout_2(rows: DataFrame) -> DataFrame:
    """Rows of a timeline, whichever layout it has. The takers of layout 1 are all unplaced."""
    return rows if "taker" in rows.columns else with_takers(rows.withColumn("takes", F.lit(None).cast("string")))


def is_unplaced() -> Column:
    """Which rows are takers without a due time."""
    return (F.col("taker") == TAKER) & F.col("due_ms").isNull()


def placed(unplaced: DataFrame, timers: DataFrame) -> DataFrame:
    """Unplaced takers at the due times of the timers that they end. Those that end none are left out."""
    targets = timers.select(
        F.col("store_id").alias("_store_id"),
        F.col("entry_offset").alias("_entry"),
        F.col("due_ms").alias("_due_ms"),
        name().alias("_name"),
    )
    takes = (
        (F.col("store_id") == F.col("_store_id"))
        & (name() == F.col("_name"))
        & (F.col("entry_offset") > F.col("_entry"))
    )
    found = unplaced.join(targets, takes).dropDuplicates(["store_id", "entry_offset", "_due_ms"])
    dues = {"due_ms": F.col("_due_ms"), "due": F.timestamp_millis("_due_ms")}
    return found.withColumns(dues).select(*unplaced.columns)
