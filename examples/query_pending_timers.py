"""Ask with SQL what is pending: near timers of the brokers and far timers of the timeline in one table."""

import os

from latermq import pipeline

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
TIMELINE = os.environ.get("LATERMQ_PIPELINE_TIMELINE", "data/pipeline")  # `pipeline.timeline` of the brokers

spark = pipeline.open_session()
pipeline.pending(spark, TIMELINE, NAMESRV)  # also the temporary view `pending`
rows = spark.sql("SELECT topic, date(due) AS day, count(*) AS timers FROM pending GROUP BY 1, 2 ORDER BY 1, 2")
for row in rows.collect():
    print(row.topic, row.day, row.timers)
