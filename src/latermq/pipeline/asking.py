"""SQL over the timers: the views that a query names are made, and only those."""

import re
from collections.abc import Callable

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from latermq.errors import ConfigError
from latermq.pipeline.pending_timers import VIEW, look, read_timeline
from latermq.pipeline.spark_failures import first_line


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
    absent: tuple[str, ...] = ()
    if _names(query, "timeline") or version is not None or timestamp is not None:
        read_timeline(spark, root, version=version, timestamp=timestamp).createOrReplaceTempView("timeline")
    if _names(query, "pending"):  # without it no broker has to be there
        seen = look(spark, root, namesrv, allow_partial=allow_partial)
        seen.rows.createOrReplaceTempView(VIEW)
        absent = seen.brokers.absent
    return checked(lambda: spark.sql(query)), absent


def _names(query: str, table: str) -> bool:
    return re.search(rf"\b{table}\b", query, re.IGNORECASE) is not None


def checked(ask_spark: Callable[[], DataFrame]) -> DataFrame:
    """What Spark makes of a text that a person wrote; what it does not understand is told in a line."""
    try:
        return ask_spark()
    except PySparkException as error:
        raise BadQuery(f"Spark does not understand it: {first_line(error)}") from error


class BadQuery(ConfigError):
    """SQL that does not parse, or names what is not there."""
