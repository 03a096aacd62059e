"""Schedules the demo's campaign from a DataFrame, in a program of its own, as a user would write it.

Its arguments are the name server, rows, and the milliseconds to the first due time and from there to the last.
 Prints a JSON line for each progress, and one with the result.
"""

import json
import sys
import time

TOPIC = "demo-campaign"
REGIONS = 10


def main() -> None:
    namesrv, rows, ahead_ms, spread_ms = sys.argv[1], *map(int, sys.argv[2:5])
    import latermq.pipeline

    spark = latermq.pipeline.connect(namesrv=namesrv)
    first_due_ms = time.time_ns() // 1_000_000 + ahead_ms
    customers = spark.range(rows).selectExpr(
        f"'{TOPIC}' AS topic",
        "concat('customer-', id) AS key",
        f"concat('region-', id % {REGIONS}) AS tag",
        "to_json(named_struct('customer', id, 'voucher', 10)) AS body",
        f"{first_due_ms} + id * {spread_ms} div {rows} AS due_ms",
    )
    began_s = time.monotonic()
    sent = 0

    def report(count: int) -> None:
        nonlocal sent
        sent += count
        print(json.dumps({"sent": sent}), flush=True)

    done = latermq.pipeline.schedule(customers, namesrv=namesrv, job="campaign", on_sent=report)
    took_s = time.monotonic() - began_s
    print(json.dumps({"scheduled": done.scheduled, "first_due_ms": first_due_ms, "took_s": took_s}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
