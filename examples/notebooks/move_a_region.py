"""Move the timers of one region by two hours, for example because its service is down: look first, then act."""

# %% What would be moved? Nothing changes yet.
import os

from latermq import pipeline

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
TIMELINE = os.environ.get("LATERMQ_PIPELINE_TIMELINE", "data/pipeline")  # `pipeline.timeline` of the brokers
REGION = "topic = 'campaign' AND tags = 'Asia/Tokyo'"

spark = pipeline.open_session()
found = pipeline.preview(spark, REGION, TIMELINE, NAMESRV)
print(f"{found.rows} timers match")
for row in found.by_hour:
    print(row["topic"], row["hour"], row["timers"])

# %% Move them. The selection becomes a plan, and Spark's executors apply it.
done = pipeline.move(spark, REGION, TIMELINE, NAMESRV, by_ms=2 * 3_600_000, job="tokyo-is-down")
print(dict(done.verdicts))

# %% If the notebook died in between, this applies the rest of the plan. Otherwise it changes nothing.
again = pipeline.resume("tokyo-is-down", TIMELINE, NAMESRV)
print(f"{again.done_before} of {again.rows} were done before")
