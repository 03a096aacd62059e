"""Reconciliation of scheduled and delivered timers: the fate and lateness of each, and a forecast."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from latermq.pipeline.report.report_plots import OTHERS
from latermq.pipeline.timeline.data_files import TAKER, TIMER
from latermq.pipeline.timeline.takers import RENEWAL, name
from latermq.pipeline.windows.survivors import ENTRY, IDENTITY

DELIVERED, DEAD_LETTER, CANCELLED, MOVED = "delivered", "dead letter", "cancelled", "moved"
RENEWED, NOT_KEPT, MISSING = "rolled", "not kept", "missing"
MAX_TOPICS = 1_000  # with fates of their own in a report; the tables have all


def fates(entries: DataFrame, deliveries: DataFrame, from_ms: int, until_ms: int, kept_from_ms: int = 0) -> DataFrame:
    """The fate of each entry with a due time in [from, until).

    A delivered record decides. Without one, the first taker after the entry decides. The delivery of a timer due before
    `kept_from_ms` may have been removed by retention.
    """
    inside = (F.col("due_ms") >= from_ms) & (F.col("due_ms") < until_ms)
    columns = (*ENTRY, "timer_id", "kind", "due_ms", "topic", "unique_key", "keys")
    scheduled = entries.where((F.col("taker") == TIMER) & inside).select(*columns, name().alias("name"))
    takers = entries.where((F.col("taker") == TAKER) & (inside | F.col("due_ms").isNull()))
    changes = takers.where(F.col("kind") != RENEWAL).select(
        "store_id",
        name().alias("name"),
        F.col("due_ms").alias("place_ms"),
        F.col("entry_offset").alias("changed_at"),
        F.col("kind").alias("changed_by"),
    )
    changed = (
        scheduled.select(*ENTRY, "name", "due_ms")
        .join(changes, ["store_id", "name"])
        .where(F.col("changed_at") > F.col("entry_offset"))
        .where(F.col("place_ms").isNull() | (F.col("place_ms") == F.col("due_ms")))
        .groupBy(*ENTRY)
        .agg(F.min_by("changed_by", "changed_at").alias("changed_by"))
    )
    delivered = deliveries.groupBy(*ENTRY).agg(F.max("dead").alias("dead"), F.min("store_ms").alias("store_ms"))
    renewals = takers.where(F.col("kind") == RENEWAL)
    newest = renewals.groupBy(*IDENTITY).agg(F.max("entry_offset").alias("newest"))
    joined = (
        scheduled.join(delivered, list(ENTRY), "left")
        .join(changed, list(ENTRY), "left")
        .join(newest, list(IDENTITY), "left")
    )
    result = (*ENTRY, "timer_id", "topic", "unique_key", "keys", "due_ms", "store_ms", "fate")
    return joined.withColumn("fate", _fate(kept_from_ms)).select(*result)


def _fate(kept_from_ms: int) -> Column:
    return (
        F.when(F.col("dead"), DEAD_LETTER)
        .when(F.col("dead").isNotNull(), DELIVERED)
        .when(F.col("changed_by") == "cancel", CANCELLED)
        .when(F.col("changed_by") == "move", MOVED)
        .when(F.col("newest") > F.col("entry_offset"), RENEWED)
        .when(F.col("due_ms") < kept_from_ms, NOT_KEPT)
        .otherwise(MISSING)
    )


def fates_by_topic(found: DataFrame) -> DataFrame:
    """The number of timers per topic and fate. A renewal is the same timer."""
    counted = found.where(F.col("fate") != RENEWED).groupBy("topic", "fate").agg(F.count("*").alias("timers"))
    return merge_small_topics(counted, MAX_TOPICS).groupBy("topic", "fate").agg(F.sum("timers").alias("timers"))


def doubled(deliveries: DataFrame) -> DataFrame:
    """Timers that were delivered more than once."""
    counted = deliveries.groupBy(*IDENTITY).agg(F.count("*").alias("times"), F.first("topic").alias("topic"))
    return counted.where("times > 1")


def early(deliveries: DataFrame) -> DataFrame:
    """Deliveries before their due time."""
    return deliveries.where(~F.col("dead") & (F.col("store_ms") < F.col("due_ms")))


def lateness(deliveries: DataFrame) -> DataFrame:
    """The delay between due time and storage in the target topic, by topic and hour of the due time."""
    late = deliveries.where(~F.col("dead")).withColumn("late_ms", F.col("store_ms") - F.col("due_ms"))
    by_hour = late.groupBy("topic", F.date_trunc("hour", F.timestamp_millis("due_ms")).alias("hour"))
    return by_hour.agg(
        F.count("*").alias("timers"),
        F.percentile("late_ms", F.lit(0.5)).alias("p50_ms"),
        F.percentile("late_ms", F.lit(0.99)).alias("p99_ms"),
        F.max("late_ms").alias("max_ms"),
        F.sum(F.when(F.col("late_ms") < 0, 1).otherwise(0)).alias("early"),
    ).orderBy("hour", "topic")


def forecast(waiting: DataFrame) -> DataFrame:
    """The number of timers per topic for each second that has any."""
    second = F.timestamp_seconds(F.floor(F.col("due_ms") / 1000)).alias("second")
    return waiting.groupBy("topic", second).agg(F.count("*").alias("timers"))


def worst_seconds(expected: DataFrame, count: int) -> DataFrame:
    """The seconds with the most timers across all topics, and the topic with the most in each."""
    by_second = expected.groupBy("second").agg(
        F.sum("timers").alias("timers"),
        F.max_by("topic", "timers").alias("most_of"),
        F.count("*").alias("topics"),
    )
    return by_second.orderBy(F.desc("timers"), "second").limit(count)


def load_over_time(expected: DataFrame, from_s: int, width_s: int) -> DataFrame:
    """The forecast in numbered spans of equal length: timers per topic, and each topic's busiest second."""
    bucket = F.floor((F.unix_timestamp("second") - from_s) / width_s).alias("bucket")
    return expected.groupBy(bucket, "topic").agg(F.sum("timers").alias("timers"), F.max("timers").alias("busiest"))


def merge_small_topics(rows: DataFrame, most: int) -> DataFrame:
    """The same rows with at most so many topics: the largest keep their names, and all others become one."""
    by_topic = rows.groupBy("topic").agg(F.sum("timers").alias("timers")).orderBy(F.desc("timers"), "topic")
    largest = [row.topic for row in by_topic.limit(most + 1).collect()]
    if len(largest) <= most:
        return rows
    is_large = F.col("topic").isin(largest[: most - 1])
    return rows.withColumn("topic", F.when(is_large, F.col("topic")).otherwise(F.lit(OTHERS)))
