"""Bulk cancellation and moving by SQL predicate: writes the matching timers to a plan, then executes the plan.

A job that runs again executes its existing plan, not what the predicate would match by then.
"""

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from latermq.errors import ConfigError, CorruptStore
from latermq.pipeline.bulk.bulk_job import check_same_order, find_namesrv, find_root, job_folder, read_json, write_json
from latermq.pipeline.bulk.plan_runner import CHUNK_ROWS, PLAN, run_plan, sync_plan
from latermq.pipeline.query.pending_timers import PendingTimers, read_pending
from latermq.pipeline.query.read_only_sql import check_expression
from latermq.pipeline.query.sql import run_user_sql
from latermq.pipeline.spark.spark_failures import spark_errors
from latermq.pipeline.timeline.root import Root

ORDER = "job.json"
SAMPLE_ROWS = 10
HOUR_ROWS = 1_000
# A plan lists at most this many timers per name. If none of those listed is left, the others are not touched.
MAX_IDS = 100


class BulkAction(msgspec.Struct, frozen=True, omit_defaults=True):
    """An action and the predicate that selects its timers: cancel, move by a span, or move to a time."""

    action: Literal["cancel", "move"]
    where: str
    by_ms: int | None = None
    to_ms: int | None = None

    def __post_init__(self) -> None:
        if not self.where.strip():
            raise ConfigError("no predicate is given", hint="Give a predicate; TRUE selects all timers")
        times = (self.by_ms is not None) + (self.to_ms is not None)
        if times != (self.action == "move"):
            raise ConfigError("a move needs either a span or a time", hint="Give one of the two")


class BulkOrder(msgspec.Struct, frozen=True):
    """The request of a job, written when its plan is complete."""

    order: BulkAction
    rows: int
    planned_ms: int
    absent: tuple[str, ...] = ()  # stores whose timers were not read


@dataclass(frozen=True)
class BulkResult:
    """The outcome of a plan: the number of names per verdict, over all runs of the job."""

    job: str
    rows: int
    verdicts: Counter[str]
    done_before: int  # rows done by earlier runs
    absent: tuple[str, ...] = ()  # stores whose timers were not read for the plan


@dataclass(frozen=True)
class Preview:
    """The timers that an action would match now."""

    rows: int
    by_hour: list[dict[str, Any]]  # topic, hour, timers
    sample: list[dict[str, Any]]
    absent: tuple[str, ...] = ()  # stores whose timers were not read


def cancel(
    spark: SparkSession,
    where: str,
    root: Root | str | None = None,
    namesrv: str | None = None,
    *,
    job: str | None = None,
    allow_partial: bool = False,
    on_planned: Callable[[int, int], None] = lambda rows, done: None,
    on_done: Callable[[int], None] = lambda rows: None,
) -> BulkResult:
    """Cancel every timer that matches a predicate over the columns of `pending`.

    `on_planned` receives the number of planned rows and how many of them an earlier run has done. `on_done` receives
    the number of further rows done. An unreachable broker is an error. With `allow_partial` its timers are left out,
    and the result names its store.
    """
    return _run(spark, BulkAction("cancel", where), root, namesrv, job, on_planned, on_done, allow_partial)


def move(
    spark: SparkSession,
    where: str,
    root: Root | str | None = None,
    namesrv: str | None = None,
    *,
    by_ms: int | None = None,
    to_ms: int | None = None,
    job: str | None = None,
    allow_partial: bool = False,
    on_planned: Callable[[int, int], None] = lambda rows, done: None,
    on_done: Callable[[int], None] = lambda rows: None,
) -> BulkResult:
    """Move every timer that matches a predicate, each by the same span or all to one time."""
    return _run(spark, BulkAction("move", where, by_ms, to_ms), root, namesrv, job, on_planned, on_done, allow_partial)


def _run(
    spark: SparkSession,
    action: BulkAction,
    root: Root | str | None,
    namesrv: str | None,
    job: str | None,
    on_planned: Callable[[int, int], None],
    on_done: Callable[[int], None],
    allow_partial: bool,
) -> BulkResult:
    folder, servers = find_root(root, namesrv), find_namesrv(namesrv)
    name = job or new_job(action)
    make_plan(spark, action, folder, servers, name, allow_partial=allow_partial)
    return resume(name, folder, servers, spark=spark, on_planned=on_planned, on_done=on_done)


def new_job(action: BulkAction) -> str:
    """A name for a job that was given none."""
    return f"{action.action}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{time.time_ns() // 1_000_000 % 1000:03d}"


def resume(
    job: str,
    root: Root | str | None = None,
    namesrv: str | None = None,
    *,
    spark: SparkSession | None = None,
    on_planned: Callable[[int, int], None] = lambda rows, done: None,
    on_done: Callable[[int], None] = lambda rows: None,
) -> BulkResult:
    """Execute the rest of a job's plan: on the executors of a session, else in this process, without Spark."""
    folder = find_root(root, namesrv)
    found = find_job(folder, job)
    if found is None:
        raise ConfigError(f"there is no job {job} at {folder.uri}", hint="Start it with --where")
    done_before, verdicts = run_plan(
        folder, job, found.rows, find_namesrv(namesrv), lambda done: on_planned(found.rows, done), on_done, spark
    )
    return BulkResult(job, found.rows, verdicts, done_before, found.absent)


def find_job(root: Root, job: str) -> BulkOrder | None:
    """The request of a job; None if it has no complete plan."""
    path = f"{job_folder(root, job)}/{ORDER}"
    found = read_json(root, path)
    if found is None:
        return None
    try:
        return msgspec.convert(found, BulkOrder)
    except msgspec.ValidationError as error:
        raise CorruptStore(f"{path}: {error}") from error


def make_plan(
    spark: SparkSession, action: BulkAction, root: Root, namesrv: str, job: str, *, allow_partial: bool = False
) -> BulkOrder:
    """Write the plan of an action, unless the job already has one. An existing plan must be for the same action."""
    known = find_job(root, job)
    if known is not None:
        check_same_order(msgspec.to_builtins(known.order), msgspec.to_builtins(action), job)
        return known
    found_timers = read_pending(spark, root, namesrv, allow_partial=allow_partial)
    planned = plan_rows(found_timers.rows, action, ends_of(found_timers))
    folder = f"{root.uri}/bulk/{job}/{PLAN}"
    with spark_errors(f"the plan of job {job}"):
        # Overwrite a partial plan left by a killed run. It has no order file, so it was never executed.
        planned.write.option("maxRecordsPerFile", CHUNK_ROWS).mode("overwrite").parquet(folder)
        rows = spark.read.schema(planned.schema).parquet(folder).count()
    sync_plan(root, job)
    order = BulkOrder(action, rows, time.time_ns() // 1_000_000, found_timers.brokers.absent)
    write_json(root, f"{job_folder(root, job)}/{ORDER}", order)
    return order


def matching_rows(pending: DataFrame, where: str) -> DataFrame:
    """The timers that match a predicate."""
    check_expression(pending.sparkSession, where)
    return run_user_sql(lambda: pending.drop("record").where(F.expr(where)), where)


def ends_of(found_timers: PendingTimers) -> dict[str, int]:
    """For each store, the first entry that was not read."""
    return {broker.state.store_id: broker.state.flushed_entry for broker in found_timers.brokers.present}


def plan_rows(pending: DataFrame, action: BulkAction, ends: Mapping[str, int]) -> DataFrame:
    """The plan for pending timers: identities, name and new due time, one row per name, earliest due time first.

    Timers of one name are cancelled or moved together. A move by a span counts from the earliest of them. `ends` gives
    the first unread entry of each store. Timers scheduled from there on are not in the plan.
    """
    rows = matching_rows(pending, action.where)
    ids = F.slice(F.array_sort(F.collect_set("timer_id")), 1, MAX_IDS)
    names = rows.groupBy("store_id", "topic", "unique_key").agg(
        F.min("timer_id").alias("timer_id"),
        ids.alias("timer_ids"),
        F.min("due_ms").alias("due_ms"),
        F.count("*").alias("timers"),
    )
    end = F.lit(None).cast("bigint")
    for store_id, entry in ends.items():
        end = F.when(F.col("store_id") == store_id, F.lit(entry).cast("bigint")).otherwise(end)
    names = names.withColumn("scheduled_before", end)
    if action.to_ms is not None:
        new_due = F.lit(action.to_ms).cast("bigint")
    elif action.by_ms is not None:
        new_due = F.greatest(F.col("due_ms") + F.lit(action.by_ms), F.lit(0)).cast("bigint")
    else:
        new_due = F.lit(None).cast("bigint")
    columns = (
        "store_id", "timer_id", "topic", "unique_key", "due_ms", "timers", "new_due_ms", "timer_ids",
        "scheduled_before",
    )  # fmt: skip
    return names.withColumn("new_due_ms", new_due).select(*columns).orderBy("due_ms", "store_id", "timer_id")


def preview(
    spark: SparkSession,
    where: str,
    root: Root | str | None = None,
    namesrv: str | None = None,
    *,
    allow_partial: bool = False,
) -> Preview:
    """The timers that match a predicate now: their number by topic and hour, and the next few."""
    found_timers = read_pending(spark, root, namesrv, allow_partial=allow_partial)
    rows = matching_rows(found_timers.rows, where).cache()
    try:
        with spark_errors("the dry run"):
            hours = rows.groupBy("topic", F.date_trunc("hour", "due").alias("hour")).agg(F.count("*").alias("timers"))
            by_hour = [row.asDict() for row in hours.orderBy("hour", "topic").limit(HOUR_ROWS).collect()]
            sample = [row.asDict() for row in rows.orderBy("due_ms", "timer_id").limit(SAMPLE_ROWS).collect()]
            return Preview(rows.count(), by_hour, sample, found_timers.brokers.absent)
    finally:
        rows.unpersist()
