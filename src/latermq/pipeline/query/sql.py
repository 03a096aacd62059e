"""Read-only SQL over timers. Only the views that a query names are created."""

from collections.abc import Callable

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from latermq.pipeline.query.pending_timers import VIEW, look, read_timeline
from latermq.pipeline.query.read_only_sql import BadQuery, check_query
from latermq.pipeline.spark.spark_failures import first_line

TIMELINE = "timeline"
TABLES = (VIEW, TIMELINE)


def ask(
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
        seen = look(spark, root, namesrv, allow_partial=allow_partial)
        seen.rows.createOrReplaceTempView(VIEW)
        absent = seen.brokers.absent
    return checked(lambda: spark.sql(query)), absent


def checked(ask_spark: Callable[[], DataFrame]) -> DataFrame:
    """Run Spark on text that a user wrote. A text that it cannot process becomes a one-line error."""
    try:
        return ask_spark()
    except PySparkException as error:
        raise BadQuery(f"Spark does not understand it: {first_line(error)}") from error
