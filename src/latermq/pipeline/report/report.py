"""The report: a forecast, the lateness, and the reconciliation of every timer in a closed time range."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pyarrow.fs import FileType
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from latermq.errors import InvalidParameter
from latermq.pipeline.bulk.bulk_job import find_namesrv, find_root
from latermq.pipeline.driver.known_stores import KnownBroker, find_brokers
from latermq.pipeline.query.pending_timers import all_entries
from latermq.pipeline.report import reconciliation
from latermq.pipeline.report.deliveries import kept_records, read_deliveries
from latermq.pipeline.report.health import BrokerHealth, broker_health
from latermq.pipeline.report.report_page import render_page
from latermq.pipeline.report.report_plots import MAX_SERIES
from latermq.pipeline.spark.spark_failures import spark_errors
from latermq.pipeline.timeline.data_files import TIMER
from latermq.pipeline.timeline.root import REPORT_NAME, Root, file_errors, open_root, write_file
from latermq.pipeline.timeline.takers import in_layout_2
from latermq.pipeline.timeline.timeline import SCHEMA
from latermq.pipeline.windows import survivors
from latermq.pipeline.windows.survivors import ENTRY

DAY_MS = 86_400_000
# A timer due just now may be delivered but not flushed, and the pipeline sees only flushed records.
SETTLED_MS = 60_000
WORST_SECONDS = 20
SPANS = 120
MAX_LISTED = 200  # per kind on the page; the tables have all
MAX_LATENESS = 5_000  # hours of topics on the page: the worst
_NARROW = [name for name in SCHEMA.names if name != "record"]


@dataclass
class Report:
    """The figures of a report, and the locations of its tables and page."""

    name: str
    from_ms: int
    until_ms: int
    made_ms: int
    folder: str
    page: str = ""
    waiting: int = 0
    fates: dict[str, dict[str, int]] = field(default_factory=dict)  # topic → fate → timers
    early: int = 0
    doubled: int = 0
    missing: list[dict[str, Any]] = field(default_factory=list)
    lateness: list[dict[str, Any]] = field(default_factory=list)
    worst: list[dict[str, Any]] = field(default_factory=list)
    span_s: int = 1
    spans_from_s: int = 0
    spans: list[dict[str, Any]] = field(default_factory=list)
    absent: tuple[str, ...] = ()  # stores that the report does not cover
    brokers: list[BrokerHealth] = field(default_factory=list)  # the pipeline's health at each broker

    def count(self, fate: str) -> int:
        """The number of timers of all topics with this fate."""
        return sum(of_topic.get(fate, 0) for of_topic in self.fates.values())

    @property
    def scheduled(self) -> int:
        return sum(sum(of_topic.values()) for of_topic in self.fates.values())

    @property
    def is_clean(self) -> bool:
        """Whether every timer was delivered exactly once and in time, cancelled or moved."""
        return not (self.count(reconciliation.MISSING) or self.early or self.doubled)


def make_report(
    spark: SparkSession,
    root: Root | str | None = None,
    namesrv: str | None = None,
    *,
    from_ms: int | None = None,
    until_ms: int | None = None,
    out: str | None = None,
    allow_partial: bool = False,
) -> Report:
    """Forecast all pending timers, and reconcile those due in [from, until), by default the last day.

    The tables are Delta tables below `reports/`. The page is there too, or in the folder `out`. An unreachable broker
    is an error. With `allow_partial` the report covers the other brokers and names the missing store.
    """
    folder, servers = find_root(root, namesrv), find_namesrv(namesrv)
    brokers, absent = find_brokers(folder, servers, allow_partial=allow_partial)
    now_ms = min((broker.state.now_ms for broker in brokers), default=time.time_ns() // 1_000_000)
    until = now_ms - SETTLED_MS if until_ms is None else until_ms
    since = until - DAY_MS if from_ms is None else from_ms
    if since >= until or until > now_ms:
        raise InvalidParameter("the period must be in the past and must not be empty", hint="Check --from and --until")
    name = time.strftime(REPORT_NAME, time.gmtime(now_ms / 1000))
    report = Report(name, since, until, now_ms, f"{folder.uri}/reports/{name}", absent=absent)
    report.brokers = [broker_health(one.name, one.address, one.state) for one in brokers]
    with spark_errors("building the report"):
        _forecast_load(spark, folder, brokers, report)
        _reconcile(spark, folder, servers, brokers, report)
    place = open_root(out) if out else folder
    path = place.at("report.html") if out else place.at("reports", name, "report.html")
    write_file(place, path, render_page(report).encode())
    report.page = path
    return report


def _forecast_load(spark: SparkSession, root: Root, brokers: Sequence[KnownBroker], report: Report) -> None:
    needs_records = any(survivors.is_stalled(broker.state) for broker in brokers)
    entries = all_entries(spark, root, brokers, (*_NARROW, "record") if needs_records else _NARROW)
    states = [broker.state for broker in brokers]
    waiting = survivors.pending(entries.rows, states, entries.takers)
    _write(reconciliation.forecast(waiting), report, "forecast")
    expected = spark.read.format("delta").load(f"{report.folder}/forecast")
    _write(reconciliation.worst_seconds(expected, WORST_SECONDS), report, "worst_seconds")
    report.worst = _rows(spark, report, "worst_seconds", F.desc("timers"), "second")
    ends = expected.agg(
        F.min(F.unix_timestamp("second")), F.max(F.unix_timestamp("second")), F.coalesce(F.sum("timers"), F.lit(0))
    ).first()
    assert ends is not None
    report.waiting = ends[2]
    if report.waiting:
        report.spans_from_s = ends[0]
        report.span_s = max(1, -(-(ends[1] + 1 - ends[0]) // SPANS))
        shown = reconciliation.merge_small_topics(expected, MAX_SERIES)
        spans = reconciliation.load_over_time(shown, report.spans_from_s, report.span_s)
        report.spans = [row.asDict() for row in spans.orderBy("bucket", "topic").collect()]


def _reconcile(spark: SparkSession, root: Root, namesrv: str, brokers: Sequence[KnownBroker], report: Report) -> None:
    entries = all_entries(spark, root, brokers, _NARROW).rows
    if _has_archive(root):
        archived = in_layout_2(spark.read.format("delta").load(root.archive)).select(*_NARROW)
        # An interrupted compaction may have archived rows that are still in the timeline.
        entries = entries.unionByName(archived).dropDuplicates([*ENTRY, "taker", "due_ms"])
    # For other stores there are no deliveries to compare with.
    entries = entries.where(F.col("store_id").isin([broker.state.store_id for broker in brokers]))
    inside = (F.col("due_ms") >= report.from_ms) & (F.col("due_ms") < report.until_ms)
    topics = sorted(
        row.topic for row in entries.where(inside & (F.col("taker") == TIMER)).select("topic").distinct().collect()
    )
    kept = kept_records(namesrv, topics, {broker.name for broker in brokers})
    deliveries = read_deliveries(spark, kept, brokers, report.from_ms, report.until_ms)
    _write(deliveries, report, "deliveries")
    delivered = spark.read.format("delta").load(f"{report.folder}/deliveries")
    _write(reconciliation.lateness(delivered), report, "lateness")
    worst = _rows(spark, report, "lateness", F.desc("max_ms"), limit=MAX_LATENESS)
    report.lateness = sorted(worst, key=lambda row: (row["hour"], row["topic"]))
    _write(
        reconciliation.fates(entries, delivered, report.from_ms, report.until_ms, kept.since_ms),
        report,
        "reconciliation",
    )
    found = spark.read.format("delta").load(f"{report.folder}/reconciliation")
    for row in reconciliation.fates_by_topic(found).collect():
        report.fates.setdefault(row.topic, {})[row.fate] = row.timers
    missing = found.where(F.col("fate") == reconciliation.MISSING).orderBy("due_ms", *ENTRY)
    report.missing = [row.asDict() for row in missing.limit(MAX_LISTED).collect()]
    report.early = reconciliation.early(delivered).count()
    report.doubled = reconciliation.doubled(delivered).count()


def _has_archive(root: Root) -> bool:
    """Whether compaction has archived rows. Delta's Python functions for Spark need a JVM in this process."""
    with file_errors(root.archive):
        return bool(root.files.get_file_info(root.at("archive", "_delta_log")).type == FileType.Directory)


def _write(rows: DataFrame, report: Report, table: str) -> None:
    rows.write.format("delta").mode("overwrite").save(f"{report.folder}/{table}")


def _rows(
    spark: SparkSession, report: Report, table: str, *order: str | Column, limit: int = MAX_LISTED
) -> list[dict[str, Any]]:
    """The first rows of a table. They go through the driver, so there is a limit."""
    found = spark.read.format("delta").load(f"{report.folder}/{table}")
    return [row.asDict() for row in found.orderBy(*order).limit(limit).collect()]
