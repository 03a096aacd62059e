"""SQL over the timers: it only reads, and the views that a query names are made, and only those."""

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
    """The answer to a query over `pending` and `timeline`, the latter as of a version or a time; and what it lacks.

    It lacks something only where it may be partial: what stores hold whose brokers are away.
    """
    named = check_query(spark, query, TABLES)
    absent: tuple[str, ...] = ()
    if TIMELINE in named or version is not None or timestamp is not None:
        read_timeline(spark, root, version=version, timestamp=timestamp).createOrReplaceTempView(TIMELINE)
    if VIEW in named:  # without it no broker has to be there
        seen = look(spark, root, namesrv, allow_partial=allow_partial)
        seen.rows.createOrReplaceTempView(VIEW)
        absent = seen.brokers.absent
    return checked(lambda: spark.sql(query)), absent


def checked(ask_spark: Callable[[], DataFrame]) -> DataFrame:
    """What Spark makes of a text that a person wrote; what it does not understand is told in a line."""
    try:
        return ask_spark()
    except PySparkException as error:
        raise BadQuery(f"Spark does not understand it: {first_line(error)}") from error
