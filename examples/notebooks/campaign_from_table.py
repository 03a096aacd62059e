"""A campaign from a table: one message for each customer, at nine in the morning of the customer's own time zone."""

# %% A session, and the customers. Here they are made up; usually they are a table.
import os

from latermq import pipeline

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")

spark = pipeline.open_session()
customers = spark.range(300).selectExpr(
    "concat('customer-', id) AS customer",
    "element_at(array('Europe/Berlin', 'Asia/Tokyo', 'America/Chicago'), int(id % 3) + 1) AS zone",
)

# %% Nine in the morning in three days, for each zone.
campaign = customers.selectExpr(
    "'campaign' AS topic",
    "customer AS key",
    "zone AS tag",
    "to_utc_timestamp(timestamp(date_add(current_date(), 3)) + INTERVAL 9 HOURS, zone) AS due",
    "to_json(named_struct('customer', customer, 'text', 'good morning')) AS body",
)

# %% How many at which hour? A dry run checks all rows and schedules nothing.
campaign.groupBy("tag", "due").count().orderBy("due").show(truncate=False)
pipeline.schedule(campaign, namesrv=NAMESRV, job="spring-campaign", dry_run=True)

# %% Schedule them. Run this cell as often as you like: the job knows its keys.
done = pipeline.schedule(campaign, namesrv=NAMESRV, job="spring-campaign")
print(f"{done.scheduled} scheduled, {done.known} known")
