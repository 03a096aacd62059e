"""The load of the next year: pending timers by month, the busiest days, and the busiest second."""

# %% All pending timers, near and far, as one table.
import os

from latermq import pipeline

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
TIMELINE = os.environ.get("LATERMQ_PIPELINE_TIMELINE", "data/pipeline")  # `pipeline.timeline` of the brokers

spark = pipeline.open_session()
pipeline.pending(spark, TIMELINE, NAMESRV).createOrReplaceTempView("pending")
year = "due < current_timestamp() + INTERVAL 1 YEAR"

# %% By month and topic.
months = spark.sql(
    f"SELECT date_format(due, 'yyyy-MM') AS month, topic, count(*) AS timers FROM pending WHERE {year} GROUP BY 1, 2"
)
months.orderBy("month", "topic").show(100, truncate=False)

# %% The ten busiest days.
days = spark.sql(f"SELECT date(due) AS day, count(*) AS timers FROM pending WHERE {year} GROUP BY 1")
days.orderBy("timers", ascending=False).limit(10).show()

# %% The busiest second: is it below what your consumers can do?
seconds = spark.sql(
    f"SELECT date_trunc('second', due) AS second, count(*) AS timers FROM pending WHERE {year} GROUP BY 1"
)
for row in seconds.orderBy("timers", ascending=False).limit(1).collect():
    print(f"busiest second: {row.second}, {row.timers} timers")
