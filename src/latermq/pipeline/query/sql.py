"""Read-only SQL over timers. Only the views that a query names are created."""

from collections.abc import Callable

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from latermq.pipeline.query.bad_query import TABLES, TIMELINE
from latermq.pipeline.query.pending_timers import VIEW, read_pending, read_timeline
from latermq.pipeline.query.read_only_sql import check_query
from latermq.pipeline.query.sql_mistakes import rejected
from latermq.pipeline.remote.running_driver import is_connect_session


def run_query(
    spark: SparkSession,
    query: str,
    root: str | None = None,
    namesrv: str | None = None,
    *,
    version: int | None = None,
    timestamp: str | None = None,
    allow_partial: bool = False,
) -> tuple[DataFrame, tuple[str, ...]]:
    """The result of a query over `pending` and `timeline` (as of a version or a time), and the missing stores.

    Stores are missing only with `allow_partial`, when their brokers are unreachable.
    """
    named = check_query(spark, query, TABLES)
    absent: tuple[str, ...] = ()
    if TIMELINE in named or version is not None or timestamp is not None:
        read_timeline(spark, root, version=version, timestamp=timestamp).createOrReplaceTempView(TIMELINE)
    if VIEW in named:  # queries without it need no broker
        found_timers = read_pending(spark, root, namesrv, allow_partial=allow_partial)
        found_timers.rows.createOrReplaceTempView(VIEW)
        absent = found_timers.brokers.absent
    return run_user_sql(lambda: spark.sql(query), query), absent


def run_user_sql(call: Callable[[], DataFrame], text: str = "") -> DataFrame:
    """Run Spark on text that a user wrote. A text that it cannot process becomes an error that shows the place."""
    try:
        found = call()
        if is_connect_session(found.sparkSession):
            _ = found.schema  # Spark Connect resolves names only when it must
    except PySparkException as error:
        raise rejected(error, text) from error
    return found
