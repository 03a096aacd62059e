"""Scheduled against delivered: what became of every timer, how late it was, and how many are due when."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from latermq.pipeline.windows.survivors import ENTRY, IDENTITY, name

DELIVERED, DEAD_LETTER, CANCELLED, MOVED = "delivered", "dead letter", "cancelled", "moved"
ROLLED, NOT_KEPT, MISSING = "rolled", "not kept", "missing"


def fates(entries: DataFrame, deliveries: DataFrame, from_ms: int, until_ms: int, kept_from_ms: int = 0) -> DataFrame:
    """What became of each entry that was scheduled to be due in [from, until).

    A delivered record decides; where there is none, the first cancel or move after the entry. What is due before
    `kept_from_ms` may have been delivered into a record that retention has removed since.
    """
    narrow = entries.select(*ENTRY, "timer_id", "kind", "due_ms", "topic", "unique_key", "keys", name().alias("name"))
    inside = (F.col("due_ms") >= from_ms) & (F.col("due_ms") < until_ms)
    scheduled = narrow.where((F.col("kind") != "cancel") & inside)
    takings = narrow.where(F.col("kind") != "timer").select(
        "store_id", "name", F.col("entry_offset").alias("taken_at"), F.col("kind").alias("taken_by")
    )
    taken = (
        scheduled.select(*ENTRY, "name")
        .join(takings, ["store_id", "name"])
        .where(F.col("taken_at") > F.col("entry_offset"))
        .groupBy(*ENTRY)
        .agg(F.min_by("taken_by", "taken_at").alias("taken_by"))
    )
    delivered = deliveries.groupBy(*ENTRY).agg(F.max("dead").alias("dead"), F.min("store_ms").alias("store_ms"))
    newest = narrow.where(F.col("kind") != "cancel").groupBy(*IDENTITY).agg(F.max("entry_offset").alias("newest"))
    joined = (
        scheduled.join(delivered, list(ENTRY), "left")
        .join(taken, list(ENTRY), "left")
        .join(newest, list(IDENTITY), "left")
    )
    columns = (*ENTRY, "timer_id", "topic", "unique_key", "keys", "due_ms", "store_ms", "fate")
    return joined.withColumn("fate", _fate(kept_from_ms)).select(*columns)


def _fate(kept_from_ms: int) -> Column:
    return (
        F.when(F.col("dead"), DEAD_LETTER)
        .when(F.col("dead").isNotNull(), DELIVERED)
        .when(F.col("taken_by") == "cancel", CANCELLED)
        .when(F.col("taken_by") == "move", MOVED)
        .when(F.col("newest") > F.col("entry_offset"), ROLLED)
        .when(F.col("due_ms") < kept_from_ms, NOT_KEPT)
        .otherwise(MISSING)
    )


def fates_by_topic(found: DataFrame) -> DataFrame:
    """How many timers of each topic met which fate; a roll is the same timer again."""
    return found.where(F.col("fate") != ROLLED).groupBy("topic", "fate").agg(F.count("*").alias("timers"))


def doubled(deliveries: DataFrame) -> DataFrame:
    """Timers that were delivered more than once."""
    counted = deliveries.groupBy(*IDENTITY).agg(F.count("*").alias("times"), F.first("topic").alias("topic"))
    return counted.where("times > 1")


def early(deliveries: DataFrame) -> DataFrame:
    """Deliveries before their time."""
    return deliveries.where(~F.col("dead") & (F.col("store_ms") < F.col("due_ms")))


def lateness(deliveries: DataFrame) -> DataFrame:
    """How long after their due time timers were stored in their topics, by topic and hour of the due time."""
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
    """How many timers of each topic are due in each second in which one is."""
    second = F.timestamp_seconds(F.floor(F.col("due_ms") / 1000)).alias("second")
    return waiting.groupBy("topic", second).agg(F.count("*").alias("timers"))


def worst_seconds(expected: DataFrame, count: int) -> DataFrame:
    """The seconds with the most timers of all topics, and which topic has most of them."""
    by_second = expected.groupBy("second").agg(
        F.sum("timers").alias("timers"),
        F.max_by("topic", "timers").alias("most_of"),
        F.count("*").alias("topics"),
    )
    return by_second.orderBy(F.desc("timers"), "second").limit(count)


def load_over_time(expected: DataFrame, from_s: int, width_s: int) -> DataFrame:
    """The forecast in spans of equal length, numbered: how many timers of each topic, and its busiest second."""
    bucket = F.floor((F.unix_timestamp("second") - from_s) / width_s).alias("bucket")
    return expected.groupBy(bucket, "topic").agg(F.sum("timers").alias("timers"), F.max("timers").alias("busiest"))
