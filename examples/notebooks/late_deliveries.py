"""How late were timers delivered? From the topics themselves: every delivered message knows when it was due."""

# %% The delivered messages of a topic.
import os

from pyspark.sql import functions as F

from latermq import pipeline

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
TOPIC = os.environ.get("TOPIC", "campaign")

spark = pipeline.open_session()
messages = (
    spark.read.format("latermq")
    .option("namesrv", NAMESRV)
    .option("topic", TOPIC)
    .option("columns", "broker,timer_id,due,due_ms,store_ms,keys")
    .load()
)
delivered = messages.where("timer_id IS NOT NULL").withColumn("late_ms", F.col("store_ms") - F.col("due_ms"))

# %% Median, 99th percentile and maximum, by broker and hour.
by_hour = delivered.groupBy("broker", F.date_trunc("hour", "due").alias("hour")).agg(
    F.count("*").alias("timers"),
    F.percentile("late_ms", F.lit(0.5)).alias("p50_ms"),
    F.percentile("late_ms", F.lit(0.99)).alias("p99_ms"),
    F.max("late_ms").alias("max_ms"),
)
by_hour.orderBy("hour", "broker").show(truncate=False)

# %% The latest ones, with their keys.
for row in delivered.orderBy(F.desc("late_ms")).limit(5).collect():
    print(f"{row['keys']} was due at {row.due} and {row.late_ms} ms late")
print(f"{delivered.count()} delivered, {delivered.where('late_ms < 0').count()} early")
