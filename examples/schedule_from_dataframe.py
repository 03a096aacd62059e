"""Schedule one timer for each row of a DataFrame. Run again, the same job schedules nothing twice."""

import os

from latermq import pipeline

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")

spark = pipeline.open_session()
invoices = spark.range(1_000).selectExpr("concat('invoice-', id) AS invoice", "current_timestamp() AS sent_at")
# The columns of a schedule: topic, key, body, and a due time.
reminders = invoices.selectExpr(
    "'reminders' AS topic", "invoice AS key", "to_json(struct(*)) AS body", "sent_at + INTERVAL 30 DAYS AS due"
)
first = pipeline.schedule(reminders, namesrv=NAMESRV, job="invoice-reminders")
again = pipeline.schedule(reminders, namesrv=NAMESRV, job="invoice-reminders")
print(f"{first.scheduled} scheduled, then {again.scheduled} scheduled and {again.known} known")
